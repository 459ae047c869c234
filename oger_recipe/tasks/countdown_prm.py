"""The built-in task's process reward models: tiny, trained by `oger prm train`'s code on labels that arithmetic gives.

They know problems of three and four numbers up to 10, with + and -. What they read: solutions in the teachers' styles,
right ones and dead ends, in most of which some numbers are wrong; so they see what any policy may write.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oger_recipe.data.labelled_steps import Solution
from oger_recipe.prm.settings import Training
from oger_recipe.steps import cut_text
from oger_recipe.tasks import tiny_policy
from oger_recipe.tasks.countdown import Difficulty, build_rows, generate_problems, prompt_of
from oger_recipe.tasks.countdown_problem import Problem
from oger_recipe.tasks.countdown_steps import STEPS, step_labels
from oger_recipe.tasks.countdown_teachers import TEACHERS, dead_end

_COUNTS = {3: 450, 4: 3000}  # numbers of a problem -> problems
_RIGHT, _UNTOUCHED = 0.7, 0.3  # shares of solutions that were right, and that are left as they were
_WRONG_NUMBERS = (0.04, 0.1, 0.2)  # shares of the numbers of a solution


@dataclass(frozen=True)
class Data:
    """How many solutions to learn from, and how often they are seen."""

    solutions: int
    epochs: int


GOOD = Data(solutions=25_600, epochs=1)
FEW = Data(solutions=160, epochs=20)  # so few that it knows them by heart, and guesses elsewhere


def save_prm(base: Path, data: Data, folder: Path) -> Path:
    """Train the model of `save_base` to score steps, format trl; prm.json: what it reaches on held-out problems."""
    from oger_recipe.prm.training import train

    entry = {"model": str(base), "format": "trl"}
    how = Training(
        epochs=data.epochs, learning_rate=1e-3, batch_size=64, micro_batch_size=64, max_length=512, held_out=0.1
    )
    made = folder / "made"
    train(entry, list(solutions(data.solutions, seed=1)), ["countdown"], how, made)
    for file in made.iterdir():
        file.rename(folder / file.name)
    made.rmdir()
    return folder


def save_base(folder: Path) -> Path:
    """Make a language model that writes such solutions: it knows sums and differences before it judges them."""
    tiny_policy.warm_start(
        build_rows(_problems(seed=1), seed=1),
        folder,
        steps=500,
        batch_size=32,
        learning_rate=2e-3,
        decay=0.4,
        hidden_size=96,
        num_layers=3,
        seed=0,
    )
    shutil.rmtree(folder / "trainer", ignore_errors=True)
    return folder


def solutions(count: int, seed: int) -> Iterator[Solution]:
    """Yield labelled solutions, some for each problem."""
    rng = random.Random(seed)
    problems = _problems(seed)
    rng.shuffle(problems)
    for number in range(count):
        problem = problems[number % len(problems)]
        steps = tuple(cut_text(_written(problem, rng), STEPS))
        labels = step_labels(steps, problem.numbers, problem.target)
        yield Solution(f"{problem.uid}-{number}", prompt_of(problem), steps, tuple(map(float, labels)))


def _problems(seed: int) -> list[Problem]:
    return [
        problem
        for numbers, count in _COUNTS.items()
        for problem in generate_problems(
            count, difficulty=Difficulty(numbers, max_number=10, operators="+-"), seed=seed, split="train"
        )
    ]


def _written(problem: Problem, rng: random.Random) -> str:
    is_right = rng.random() < _RIGHT
    meant = problem if is_right else replace(problem, expression=dead_end(problem, rng))
    text = rng.choice([*TEACHERS.values()])(meant, rng)
    return text if rng.random() < _UNTOUCHED else _with_wrong_numbers(text, rng.choice(_WRONG_NUMBERS), rng)


def _with_wrong_numbers(text: str, share: float, rng: random.Random) -> str:
    def wrong(found: re.Match[str]) -> str:
        number = int(found.group())
        if rng.random() >= share:
            return found.group()
        near: Sequence[int] = (number - 2, number - 1, number + 1, number + 2)
        return str(max(1, rng.choice((*near, rng.randint(1, 10), rng.randint(1, 30)))))

    return re.sub(r"\d+", wrong, text)
