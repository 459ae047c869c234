"""Make data to train a language model on: word problems of two steps, which three teachers solve in different orders.

``python -m oger_recipe.lab.word_problems FOLDER`` writes FOLDER/train.jsonl and FOLDER/held_out.jsonl, files such as a
user brings (docs/data.md): columns prompt, answer, task, teachers.
"""

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oger_recipe.base.files import write_jsonl
from oger_recipe.grading.verifiers.gsm8k import verify_gsm8k

TRAIN, HELD_OUT = 1920, 128
NAMES = ("Anna", "Ben", "Carla", "Daniel", "Emma", "Frank", "Grace", "Henry")
THINGS = ("apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "stamps")
STORIES = (
    "{name} has {start} {things}, gets {more} and gives {less} away. How many are left?",
    "A box holds {start} {things}. {name} adds {more} and takes {less}. How many are in it?",
    "{name} had {start} {things}, found {more} and lost {less}. How many are left?",
    "A shop has {start} {things}, buys {more} and sells {less}. How many does it have?",
)


def forward(start: int, more: int, less: int) -> str:
    """Write a solution that takes the steps as the story has them."""
    return f"First {start}+{more}={start + more}, then {start + more}-{less}={start + more - less}"


def away_first(start: int, more: int, less: int) -> str:
    """Write a solution that subtracts before it adds."""
    left = start - less
    return f"Without {less}: {start}-{less}={left}, {left}+{more}={left + more}"


def change(start: int, more: int, less: int) -> str:
    """Write a solution that first joins what is added and what is taken away into one change."""
    if more > less:
        return f"The change: {more}-{less}={more - less}, {start}+{more - less}={start + more - less}"
    return f"The change: {less}-{more}={less - more}, {start}-{less - more}={start + more - less}"


TEACHERS: dict[str, Callable[[int, int, int], str]] = {"forward": forward, "away_first": away_first, "change": change}


def problem(rng: random.Random) -> tuple[int, int, int]:
    """Draw three different numbers of two digits: what there is, what is added, and what is taken away again."""
    start = rng.randint(20, 99)
    less = rng.randint(10, start - 1)
    return start, rng.choice([number for number in range(10, 100) if number not in (start, less)]), less


def row(numbers: tuple[int, int, int], rng: random.Random) -> dict[str, Any]:
    """Return a row of the data: a problem told as one of the stories, and each teacher's trajectory, which ends in
    GSM8K's ``#### answer``."""
    start, more, less = numbers
    told = rng.choice(STORIES).format(
        name=rng.choice(NAMES), things=rng.choice(THINGS), start=start, more=more, less=less
    )
    answer = start + more - less
    return {
        "prompt": told,
        "answer": str(answer),
        "task": "gsm8k",
        "teachers": [
            {"source": name, "text": f" {teacher(*numbers)} #### {answer}"} for name, teacher in TEACHERS.items()
        ],
    }


def class_of(text: str, answer: str) -> str | None:
    """Return the sums and differences of a right solution, sorted, so that two solutions that take the same ones in
    another order are equal; None if the solution is not right."""
    if verify_gsm8k(text, answer).score != 1:
        return None
    found = re.findall(r"(\d+)([+-])(\d+)", text)
    return " ".join(
        sorted(sign.join(sorted((left, right)) if sign == "+" else (left, right)) for left, sign, right in found)
    )


def main() -> None:
    """Write the files to train on and to evaluate on. No two problems have the same numbers."""
    (folder,) = map(Path, sys.argv[1:])
    rng = random.Random(0)
    numbers = list(dict.fromkeys(problem(rng) for _ in range(2 * (TRAIN + HELD_OUT))))[: TRAIN + HELD_OUT]
    rows = [row(each, rng) for each in numbers]
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(rows[HELD_OUT:], folder / "train.jsonl")
    write_jsonl(rows[:HELD_OUT], folder / "held_out.jsonl")


if __name__ == "__main__":
    main()
