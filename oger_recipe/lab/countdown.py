"""The Countdown task: reach a target by combining given numbers, each exactly once, with + - * and /.

Problems are solvable by construction, seeded, and split by a hash of their numbers, so that what is held out shares no
set of numbers with what is trained on while both come from the same distribution.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from oger_recipe.base.files import atomic_write, write_jsonl
from oger_recipe.grading.verifiers import verify
from oger_recipe.lab.countdown_problem import (
    MOST_NUMBERS,
    OPERATORS,
    Expression,
    Problem,
    random_expression,
    render,
    solutions,
    steps,
    value_of,
)
from oger_recipe.lab.countdown_teachers import TEACHERS, slip

Split = Literal["train", "held_out"]
TeacherSolutions = Literal["same", "different"]

# Draws in a row without a new problem (a few tenths of a second) after which the space counts as exhausted.
_PATIENCE = 50_000


@dataclass(frozen=True)
class Difficulty:
    """The kind of problems. Raises ValueError on settings that allow none.

    num_numbers: 2 to 6; max_number: numbers are drawn from 1..max_number; max_target: targets lie in 1..max_target,
    values on the way in 1..10*max_target; operators: those that the generator may use, out of + - * /; min_solutions:
    least number of different right solutions, counted as the verifier grades (countdown_problem.solutions).
    """

    num_numbers: int = 3
    max_number: int = 20
    max_target: int = 100
    operators: str = OPERATORS
    min_solutions: int = 1

    def __post_init__(self) -> None:
        _require(2 <= self.num_numbers <= 6, f"num_numbers must be 2 to 6, not {self.num_numbers}")
        _require(self.max_number >= 2, f"max_number must be at least 2, not {self.max_number}")
        _require(self.max_target >= 1, f"max_target must be at least 1, not {self.max_target}")
        distinct = set(self.operators)
        _require(
            bool(distinct) and distinct <= set(OPERATORS) and len(distinct) == len(self.operators),
            f"operators must be some of {OPERATORS}, each at most once, not {self.operators!r}",
        )
        _require(self.min_solutions >= 1, f"min_solutions must be at least 1, not {self.min_solutions}")
        _require(
            self.min_solutions == 1 or self.num_numbers <= MOST_NUMBERS,
            f"min_solutions above 1 needs num_numbers of at most {MOST_NUMBERS}, not {self.num_numbers}",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def split_of(numbers: Sequence[int], held_out_share: float = 0.1) -> Split:
    """Return the split of a set of numbers, whatever their order and the target."""
    digest = hashlib.sha256(",".join(map(str, sorted(numbers))).encode()).digest()
    return "held_out" if int.from_bytes(digest[:8], "big") < held_out_share * 2**64 else "train"


def generate_problems(
    count: int, *, difficulty: Difficulty, seed: int, split: Split, held_out_share: float = 0.1
) -> list[Problem]:
    """Generate `count` distinct problems of one split; the same arguments give the same problems.

    Raises ValueError for an unknown split or a share outside 0..1, and when the difficulty has too few problems.
    """
    _require(split in ("train", "held_out"), f"split must be 'train' or 'held_out', not {split!r}")
    _require(0.0 <= held_out_share <= 1.0, f"held_out_share must be 0 to 1, not {held_out_share}")
    rng = random.Random(seed)
    found: dict[str, Problem] = {}
    refused: set[str] = set()  # listing a problem's solutions again would take longest of all
    idle = 0
    while len(found) < count:
        problem = _draw(difficulty, rng, split, held_out_share)
        if problem is not None and problem.uid not in found and problem.uid not in refused:
            if _has_solutions(problem, difficulty.min_solutions):
                found[problem.uid] = problem
                idle = 0
                continue
            refused.add(problem.uid)
        idle += 1
        if idle == _PATIENCE:
            raise ValueError(_too_few(len(found), count, split, difficulty))
    return list(found.values())


def _draw(difficulty: Difficulty, rng: random.Random, split: Split, held_out_share: float) -> Problem | None:
    numbers = tuple(1 + int(rng.random() * difficulty.max_number) for _ in range(difficulty.num_numbers))
    if split_of(numbers, held_out_share) != split:
        return None
    drawn = random_expression(numbers, difficulty.operators, rng, 10 * difficulty.max_target)
    if drawn is None or drawn[1] > difficulty.max_target or _has_filler(drawn[0]):
        return None
    return Problem(numbers, target=drawn[1], expression=drawn[0])


def _has_solutions(problem: Problem, least: int) -> bool:
    return least == 1 or len(solutions(problem.numbers, problem.target)) >= least


def _has_filler(expression: Expression) -> bool:
    """Say whether some step leaves its operand as it is (x*1, 1*x, x/1) and so hardly counts as using the 1."""
    return any(
        (operator == "*" and 1 in (left, right)) or (operator == "/" and right == 1)
        for left, operator, right, _ in steps(expression)
    )


def _too_few(found: int, count: int, split: Split, difficulty: Difficulty) -> str:
    lower = ", lower min_solutions" if difficulty.min_solutions > 1 else ""
    return (
        f"found only {found} of {count} {split} Countdown problems with {difficulty}: "
        f"raise max_number first, then max_target{lower}, or ask for fewer"
    )


def prompt_of(problem: Problem) -> str:
    """Word the question to the policy, before any chat template."""
    return f"Using the numbers {list(problem.numbers)}, create an equation that equals {problem.target}."


def build_rows(
    problems: Iterable[Problem],
    *,
    seed: int,
    wrong_share: float = 0.0,
    max_teachers: int = 3,
    teacher_solutions: TeacherSolutions = "same",
) -> list[dict[str, Any]]:
    """Build dataset rows (uid, prompt, answer, solution, task, datasource, teachers), one per problem.

    Each trajectory is wrong with probability `wrong_share`. With `max_teachers` below 3 each row has its own random
    choice of styles. `teacher_solutions`: all teachers explain the problem's own expression (same), or each another
    solution while there are enough (different). A row depends on the seed and its problem only, not on its neighbours.
    Raises ValueError for a share outside 0..1, more teachers than there are, or unknown teacher_solutions.
    """
    _require(0.0 <= wrong_share <= 1.0, f"wrong_share must be 0 to 1, not {wrong_share}")
    _require(0 <= max_teachers <= len(TEACHERS), f"max_teachers must be 0 to {len(TEACHERS)}, not {max_teachers}")
    known = get_args(TeacherSolutions)
    _require(teacher_solutions in known, f"teacher_solutions must be {' or '.join(known)}, not {teacher_solutions!r}")
    different = teacher_solutions == "different"
    return [
        _row(problem, random.Random(f"{seed}:{problem.uid}"), wrong_share, max_teachers, different)
        for problem in problems
    ]


def _row(
    problem: Problem, rng: random.Random, wrong_share: float, max_teachers: int, different: bool
) -> dict[str, Any]:
    answer = json.dumps({"numbers": list(problem.numbers), "target": problem.target}, separators=(",", ":"))
    chosen = rng.sample(list(TEACHERS), max_teachers)
    explained = itertools.cycle(_solved_differently(problem, rng) if different else [problem])
    return {
        "uid": problem.uid,
        "prompt": prompt_of(problem),
        "answer": answer,
        "solution": render(problem.expression),
        "task": "countdown",
        "datasource": "countdown",
        "teachers": [
            _trajectory(next(explained), source, answer, rng, wrong=rng.random() < wrong_share)
            for source in TEACHERS
            if source in chosen
        ],
    }


def _solved_differently(problem: Problem, rng: random.Random) -> list[Problem]:
    """Return the problem with one expression of each class that the generator could have drawn, in random order."""
    count = len(problem.numbers)
    _require(count <= MOST_NUMBERS, f"different teacher_solutions need at most {MOST_NUMBERS} numbers, not {count}")
    ways = solutions(problem.numbers, problem.target).values()
    found = [next((tree for tree in trees if _is_drawn(tree)), None) for trees in ways]
    rng.shuffle(found)
    return [replace(problem, expression=tree) for tree in found if tree is not None] or [problem]


def _is_drawn(expression: Expression) -> bool:
    """Say whether all values on the way are positive integers, and every step does something."""
    try:
        value_of(expression)
    except ValueError:
        return False
    return not _has_filler(expression)


def _trajectory(problem: Problem, source: str, answer: str, rng: random.Random, *, wrong: bool) -> dict[str, Any]:
    teacher = TEACHERS[source]
    text = slip(problem, teacher, rng) if wrong else teacher(problem, rng)
    verdict = verify("countdown", text, answer)
    correct = verdict.score == 1.0
    assert correct is not wrong, f"{source} on {problem}: meant to be {'wrong' if wrong else 'right'}, {verdict}"
    return {"source": source, "text": text, "correct": correct}


def write_rows(rows: Iterable[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows as JSONL; the file appears whole or not at all. Make missing folders."""
    with atomic_write(Path(path)) as partial:
        write_jsonl(rows, partial)
