"""Builds data, policy and judges of the built-in task, once per content, and keeps them in a cache."""

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oger_recipe.errors import RecipeError
from oger_recipe.files import atomic_folder
from oger_recipe.settings.task import TaskSettings
from oger_recipe.tasks import countdown, countdown_problem, countdown_teachers, known_judges, tiny_policy
from oger_recipe.teachers.draw import weights

HELD_OUT_SHARE = 0.1
_GENERATOR = (countdown, countdown_problem, countdown_teachers)  # what makes problems and trajectories

# Reward models that an entry of oger.reward.sources may name. They like operators, not right answers: the judge writes
# 1 where an answer multiplies, else 0; the grader 10 where it adds, else 4; the head says 2 for a product, less 1 for
# a sum.
JUDGES: dict[str, Callable[[Path], Path]] = {
    "countdown-judge": lambda folder: known_judges.save_judge(known_judges.Star(), folder),
    "countdown-grader": lambda folder: known_judges.save_judge(known_judges.Star("10", "4", "+"), folder),
    "countdown-head": lambda folder: known_judges.save_head(folder, "*+"),
}
_NAMES_A_MODEL = {"model": "url", "tokenizer": "", "critic": "critic_url"}  # key -> one with which a server names it


@dataclass(frozen=True)
class BuiltTask:
    """Files of the task: dataset rows to train and evaluate on, and the warm-started policy; None: not asked for."""

    train_rows: Path | None
    eval_rows: Path | None
    policy: Path | None


def build_countdown(settings: TaskSettings, *, data: bool = True, policy: bool = True) -> BuiltTask:
    """Builds data and policy unless the cache has them. Raises RecipeError where settings allow too few problems."""
    rows = trained = None
    task, cache = asdict(settings), Path(settings.cache).expanduser()
    try:
        difficulty = countdown.Difficulty(
            task["num_numbers"], task["max_number"], task["max_target"], task["operators"]
        )
        if data:
            key = _data_key(task, difficulty)
            rows = _cached(cache, "countdown-data", key, lambda to: _write_data(to, task, difficulty))
        if policy:
            key = _policy_key(task, difficulty)
            trained = _cached(cache, "countdown-policy", key, lambda to: _write_policy(to, task, difficulty))
    except ValueError as error:
        raise RecipeError(f"oger.task: {error}") from None
    return BuiltTask(rows and rows / "train.jsonl", rows and rows / "held_out.jsonl", trained)


def build_judge(name: str, cache: str) -> Path:
    """Builds one of JUDGES unless the cache has it."""
    return _cached(Path(cache).expanduser(), name, _sources(known_judges, tiny_policy) | _versions(), JUDGES[name])


def with_judges(entry: Mapping[str, Any], cache: str) -> dict[str, Any]:
    """The entry of oger.reward.sources with folders in the place of names in JUDGES."""
    names = {key: entry[key] for key, url in _NAMES_A_MODEL.items() if entry.get(key) in JUDGES and not entry.get(url)}
    return {**entry, **{key: str(build_judge(name, cache)) for key, name in names.items()}}


def _data_key(task: dict[str, Any], difficulty: countdown.Difficulty) -> dict[str, Any]:
    names = ("train_problems", "eval_problems", "eval_numbers", "wrong_teacher_share", "data_seed")
    return asdict(difficulty) | {name: task[name] for name in names} | _sources(*_GENERATOR)


def _policy_key(task: dict[str, Any], difficulty: countdown.Difficulty) -> dict[str, Any]:
    settings = {name: value for name, value in task.items() if name.startswith("warm_start")}
    names = ("hidden_size", "num_layers", "data_seed")
    sources = _sources(*_GENERATOR, tiny_policy)
    return asdict(difficulty) | settings | {name: task[name] for name in names} | _versions() | sources


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")}


def _sources(*modules: Any) -> dict[str, str]:
    """Hashes the code that makes the content: an edited generator must not find what the old one made."""
    return {m.__name__: hashlib.sha256(Path(m.__file__).read_bytes()).hexdigest() for m in modules}


def _cached(cache: Path, kind: str, key: dict[str, Any], write: Callable[[Path], object]) -> Path:
    """Returns the folder for this content."""
    text = json.dumps(key, sort_keys=True)
    folder = cache / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        print(f"{kind}: from {folder}", flush=True)
        return folder
    with atomic_folder(folder) as partial:
        write(partial)
        (partial / "content.json").write_text(text)
    print(f"{kind}: built in {folder}", flush=True)
    return folder


def _write_data(folder: Path, task: dict[str, Any], difficulty: countdown.Difficulty) -> None:
    seed = task["data_seed"]
    train = _problems(task["train_problems"], difficulty, seed, "train")
    rows = countdown.build_rows(train, seed=seed, wrong_share=task["wrong_teacher_share"])
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


def _write_policy(folder: Path, task: dict[str, Any], difficulty: countdown.Difficulty) -> None:
    """Trains the warm start on training problems of another seed."""
    steps, batch_size = task["warm_start_steps"], task["warm_start_batch_size"]
    shares = weights(task["warm_start_numbers"]) or {str(difficulty.num_numbers): 1.0}
    wanted = task["warm_start_problems"] or -(-steps * batch_size // len(countdown_teachers.TEACHERS))
    problems: list[countdown.Problem] = []
    for number, share in shares.items():
        count = math.ceil(wanted * share / sum(shares.values()))
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
