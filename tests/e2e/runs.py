"""The real command on the smoke recipe, and what its run folder holds."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = "countdown_cpu_smoke"


def train(run_dir: Path, cache: Path, *flags: str, recipe: str = SMOKE) -> subprocess.CompletedProcess[str]:
    """``oger train`` on a recipe file; the caches lie in ``cache`` so that nothing of the user's is touched."""
    file = ROOT / "configs" / f"{recipe}.yaml"
    command = [sys.executable, "-m", "oger_recipe.cli.train", "--recipe", str(file), "--oger.run_dir", str(run_dir)]
    caches = ["--oger.task.cache", str(cache / "tasks"), "--oger.embedding_cache", str(cache / "embeddings")]
    return subprocess.run([*command, *caches, *flags], capture_output=True, text=True, timeout=600)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def samples(run_dir: Path, step: int) -> list[dict]:
    return lines(run_dir / "samples" / f"step_{step:05d}.jsonl")
