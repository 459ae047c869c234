"""The real command on the smoke recipe, and what its run folder holds."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = "countdown_cpu_smoke"


def train(run_dir: Path, cache: Path, *flags: str, recipe: str | Path = SMOKE) -> subprocess.CompletedProcess[str]:
    """``oger train`` on one of configs/ or a file; the caches lie in ``cache``: nothing of the user's is touched."""
    file = recipe if isinstance(recipe, Path) else ROOT / "configs" / f"{recipe}.yaml"
    command = [sys.executable, "-m", "oger_recipe.cli.train", "--recipe", str(file), "--oger.run_dir", str(run_dir)]
    folders = {"task.cache": "tasks", "embedding_cache": "embeddings", "data_cache": "data"}
    caches = [part for knob, name in folders.items() for part in (f"--oger.{knob}", str(cache / name))]
    return subprocess.run([*command, *caches, *flags], capture_output=True, text=True, timeout=600)


def lines(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def samples(run_dir: Path, step: int) -> list[dict]:
    return lines(run_dir / "samples" / f"step_{step:05d}.jsonl")
