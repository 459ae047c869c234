"""The real command on the smoke recipe, and what its run folder holds."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import yaml
from exact import MAY_DIFFER
from hang import HANG_S
from metric_rows import without_row

from oger_recipe.run_folder import checkpoints

ROOT = Path(__file__).parents[2]
SMOKE = "countdown_cpu_smoke"
# Its sizes, for other recipes on Countdown: data and warm start are in the cache already. Two steps, no evaluation.
SMALL = [
    "--oger.task.train_problems", "64", "--oger.task.eval_problems", "16", "--oger.task.warm_start_steps", "650",
    "--rollout.batch_size", "16", "--oger.total_training_steps", "2", "--no-oger.val_before_train",
    "--no-oger.val_after_train", "--ckpt.save_steps", "-1",
]  # fmt: skip

SCHEDULE = ["--actor.lr_scheduler", "cosine_with_min_lr"]  # another learning rate in each step


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


# Two runs of one command.


def differences(one: Path, other: Path) -> list[str]:
    """List what two runs of one command do not have alike, bit for bit: metrics, samples, and weights and optimizer of
    the final model and of the checkpoints that both have kept."""
    measured = [[_without_time(step) for step in lines(run_dir / "metrics.jsonl")] for run_dir in (one, other)]
    found = [
        f"metrics.jsonl, step {first['step']}: {name}"
        for first, second in zip_longest(*measured, fillvalue={"step": None})
        for name in first.keys() | second.keys()
        if repr(first.get(name)) != repr(second.get(name))  # nan is nan
    ]
    for files in ("samples/*.jsonl", "model/*.safetensors"):
        names = {file.relative_to(run_dir) for run_dir in (one, other) for file in run_dir.glob(files)}
        assert names, files
        found += [str(name) for name in names if _bytes(one / name) != _bytes(other / name)]
    kept = [{each.step for each in checkpoints.found(run_dir / "checkpoints")} for run_dir in (one, other)]
    for step in sorted(kept[0] & kept[1]):
        states = [dict(_tensors(run_dir / "checkpoints", step)) for run_dir in (one, other)]
        assert states[0], step
        found += [
            name
            for name in states[0].keys() | states[1].keys()
            if not torch.equal(states[0].get(name, torch.tensor(0)), states[1].get(name, torch.tensor(0)))
        ]
    assert kept[0] & kept[1]
    return sorted(found)


def _without_time(step: dict) -> dict:
    return {name: value for name, value in step.items() if not MAY_DIFFER.fullmatch(name)}


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _tensors(folder: Path, step: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a checkpoint, by its file and its place there."""
    for file in sorted(folder.glob(f"_*/global_step{step}/**/*.pt")):
        yield from _within(torch.load(file, weights_only=False), str(file.relative_to(folder)))


def _within(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _within(item, f"{name}/{key}")
