"""The real command on the smoke recipe, and what its run folder holds."""

import json
import subprocess
import sys
from pathlib import Path

import yaml
from hang import HANG_S
from metric_rows import without_row

ROOT = Path(__file__).parents[2]
SMOKE = "countdown_cpu_smoke"
# Its sizes, for other recipes on Countdown: data and warm start are in the cache already. Two steps, no evaluation.
SMALL = [
    "--oger.task.train_problems", "64", "--oger.task.eval_problems", "16", "--oger.task.warm_start_steps", "650",
    "--rollout.batch_size", "16", "--oger.total_training_steps", "2", "--no-oger.val_before_train",
    "--no-oger.val_after_train", "--ckpt.save_steps", "-1",
]  # fmt: skip


def caches_in(folder: Path) -> list[str]:
    """The flags that keep all caches of a run in a folder."""
    names = {"task.cache": "tasks", "embedding_cache": "embeddings", "data_cache": "data", "reward.cache": "verdicts"}
    return [part for knob, name in names.items() for part in (f"--oger.{knob}", str(folder / name))]


def typed(run_dir: Path, cache: Path, *flags: str, recipe: str | Path = SMOKE) -> list[str]:
    """``oger train`` on one of configs/ or a file; the caches lie in ``cache``: nothing of the user's is touched."""
    file = recipe if isinstance(recipe, Path) else ROOT / "configs" / f"{recipe}.yaml"
    command = [sys.executable, "-m", "oger_recipe.cli.train", "--recipe", str(file), "--oger.run_dir", str(run_dir)]
    return [*command, *caches_in(cache), *flags]


def train(run_dir: Path, cache: Path, *flags: str, recipe: str | Path = SMOKE) -> subprocess.CompletedProcess[str]:
    """Run it; whatever it wrote as a metric has a row in the table of metrics."""
    command = typed(run_dir, cache, *flags, recipe=recipe)
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert not without_row(run_dir)
    return done


def lines(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def samples(run_dir: Path, step: int) -> list[dict]:
    return lines(run_dir / "samples" / f"step_{step:05d}.jsonl")


def dataset(run_dir: Path) -> list[dict]:
    """The dataset rows that the run read."""
    return lines(Path(yaml.safe_load((run_dir / "recipe.yaml").read_text())["data"]["prompt_dataset"]))


def recipe_of(name: str, folder: Path, **changed: dict) -> Path:
    """A shipped recipe in a file of its own, with other keys in the sources of its reward, by their names."""
    path, shipped = folder / f"{name}.yaml", ROOT / "configs" / f"{name}.yaml"
    sources = yaml.safe_load(shipped.read_text())["oger"]["reward"]["sources"]
    assert changed.keys() <= {source["name"] for source in sources}
    sources = [source | changed.get(source["name"], {}) for source in sources]
    path.write_text(yaml.safe_dump({"extends": str(shipped), "oger": {"reward": {"sources": sources}}}))
    return path
