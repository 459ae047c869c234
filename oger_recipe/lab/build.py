"""Builds data and policy of the built-in task, once per content, and keeps them in a cache."""

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_folder, to_json
from oger_recipe.lab import countdown, countdown_problem, countdown_teachers, tiny_policy
from oger_recipe.settings.task import TaskSettings
from oger_recipe.teachers.draw import weights

HELD_OUT_SHARE = 0.1
_GENERATOR = (countdown, countdown_problem, countdown_teachers)  # what makes problems and trajectories


@dataclass(frozen=True)
class BuiltTask:
    """Files of the task: dataset rows to train and evaluate on, and the warm-started policy; None: not asked for."""

    train_rows: Path | None
    eval_rows: Path | None
    policy: Path | None


def build_countdown(settings: TaskSettings, *, data: bool = True, policy: bool = True) -> BuiltTask:
    """Build data and policy unless the cache has them. Raises RecipeError where settings allow too few problems."""
    rows = trained = None
    task, cache = asdict(settings), Path(settings.cache).expanduser()
    try:
        difficulty = _difficulty(settings)
        if data:
            key = _data_key(task, difficulty)
            rows = cached(cache, "countdown-data", key, lambda to: _write_data(to, task, difficulty))
        if policy:
            key = _policy_key(task, difficulty)
            trained = cached(cache, "countdown-policy", key, lambda to: _write_policy(to, task, difficulty))
    except ValueError as error:
        raise RecipeError(f"oger.task: {error}") from None
    return BuiltTask(rows and rows / "train.jsonl", rows and rows / "held_out.jsonl", trained)


def policy_folder(settings: TaskSettings) -> Path:
    """Return where the policy is, or will be once it is built."""
    key = _policy_key(asdict(settings), _difficulty(settings))
    return place(Path(settings.cache).expanduser(), "countdown-policy", key)


def _difficulty(settings: TaskSettings) -> countdown.Difficulty:
    return countdown.Difficulty(
        settings.num_numbers, settings.max_number, settings.max_target, settings.operators, settings.min_solutions
    )


def _data_key(task: dict[str, Any], difficulty: countdown.Difficulty) -> dict[str, Any]:
    names = (
        "train_problems", "eval_problems", "eval_numbers", "wrong_teacher_share", "teacher_solutions", "data_seed"
    )  # fmt: skip
    return asdict(difficulty) | {name: task[name] for name in names} | sources_of(*_GENERATOR)


def _policy_key(task: dict[str, Any], difficulty: countdown.Difficulty) -> dict[str, Any]:
    settings = {name: value for name, value in task.items() if name.startswith("warm_start")}
    names = ("hidden_size", "num_layers", "data_seed")
    sources = sources_of(*_GENERATOR, tiny_policy)
    return asdict(difficulty) | settings | {name: task[name] for name in names} | versions() | sources


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")}


def sources_of(*modules: Any) -> dict[str, str]:
    """Hash the code that makes the content, so that an edited generator does not find what the old one made."""
    return {m.__name__: hashlib.sha256(Path(m.__file__).read_bytes()).hexdigest() for m in modules}


def place(cache: Path, kind: str, key: dict[str, Any]) -> Path:
    """Return the folder for this content, which may not be there yet."""
    text = json.dumps(key, sort_keys=True)
    return cache / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def cached(cache: Path, kind: str, key: dict[str, Any], write: Callable[[Path], object]) -> Path:
    """Return the folder for this content; have ``write`` make it unless it is there."""
    folder = place(cache, kind, key)
    if folder.is_dir():
        print(f"{kind}: from {folder}", flush=True)
        return folder
    print(f"{kind}: being built, once on this machine: later runs find it in {folder}", flush=True)
    with atomic_folder(folder) as partial:
        write(partial)
        (partial / "content.json").write_text(to_json(key, sort_keys=True))
    return folder


def _write_data(folder: Path, task: dict[str, Any], difficulty: countdown.Difficulty) -> None:
    seed = task["data_seed"]
    train = _problems(task["train_problems"], difficulty, seed, "train")
    rows = countdown.build_rows(
        train, seed=seed, wrong_share=task["wrong_teacher_share"], teacher_solutions=task["teacher_solutions"]
    )
    countdown.write_rows(rows, folder / "train.jsonl")
    held_out = []
    for number in task["eval_numbers"] or (difficulty.num_numbers,):
        problems = _problems(task["eval_problems"], replace(difficulty, num_numbers=number), seed, "held_out")
        name = {"datasource": f"countdown_{number}"} if task["eval_numbers"] else {}
        held_out += [row | name for row in countdown.build_rows(problems, seed=seed)]
    countdown.write_rows(held_out, folder / "held_out.jsonl")


def _problems(
    count: int, difficulty: countdown.Difficulty, seed: int, split: countdown.Split
) -> list[countdown.Problem]:
    return countdown.generate_problems(
        count, difficulty=difficulty, seed=seed, split=split, held_out_share=HELD_OUT_SHARE
    )


def problems_of_each(wanted: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return how many problems of each number of numbers make ``wanted``: at least the share of it that is written."""
    written = {number: Fraction(str(share)) for number, share in shares.items()}
    return {number: math.ceil(wanted * share / sum(written.values())) for number, share in written.items()}


def _write_policy(folder: Path, task: dict[str, Any], difficulty: countdown.Difficulty) -> None:
    """Train the warm start on training problems of another seed."""
    steps, batch_size = task["warm_start_steps"], task["warm_start_batch_size"]
    shares = weights(task["warm_start_numbers"]) or {str(difficulty.num_numbers): 1.0}
    wanted = task["warm_start_problems"] or -(-steps * batch_size // len(countdown_teachers.TEACHERS))
    problems: list[countdown.Problem] = []
    for number, count in problems_of_each(wanted, shares).items():
        problems += _problems(count, replace(difficulty, num_numbers=int(number)), task["data_seed"] + 1, "train")
    tiny_policy.warm_start(
        countdown.build_rows(problems, seed=task["data_seed"] + 1),
        folder,
        steps=steps,
        batch_size=batch_size,
        learning_rate=task["warm_start_lr"],
        decay=task["warm_start_decay"],
        hidden_size=task["hidden_size"],
        num_layers=task["num_layers"],
        seed=task["data_seed"],
    )
