"""Three teachers of Countdown that explain a solution in visibly different styles.

Every arithmetic statement of theirs is computed from a tree, so it is true. Nothing is glued to letters or padded with
spaces, which keeps the texts short for a policy that reads characters.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from oger_recipe.lab.countdown_problem import (
    OPERATORS,
    Expression,
    Problem,
    Step,
    random_expression,
    render,
    steps,
    value_of,
)


def _goals(expression: Expression) -> list[Step]:
    """List the operations of `steps`, outermost first."""
    if isinstance(expression, int):
        return []
    operator, left, right = expression
    return [(value_of(left), operator, value_of(right), value_of(expression)), *_goals(left), *_goals(right)]


def dead_end(problem: Problem, rng: random.Random) -> Expression:
    """Draw a tree over all the numbers with another value than the problem's own tree."""
    solved = value_of(problem.expression)
    # The sum is always within this limit, and any numbers reach at least one value besides their sum, so this ends.
    limit = max(10 * problem.target, sum(problem.numbers))
    while True:
        drawn = random_expression(problem.numbers, OPERATORS, rng, limit)
        if drawn is not None and drawn[1] != solved:
            return drawn[0]


def _sums(expression: Expression) -> list[str]:
    return [f"{left}{operator}{right}={result}" for left, operator, right, result in steps(expression)]


def _response(thought: str, expression: Expression) -> str:
    return f"<think>{thought}</think>\n<answer>{render(expression)}</answer>"


def forward(problem: Problem, _rng: random.Random) -> str:
    """Build the target up from the numbers: "start with 3+5=8, then 8*12=96, done."."""
    return _response(f"start with {', then '.join(_sums(problem.expression))}, done.", problem.expression)


def search(problem: Problem, rng: random.Random) -> str:
    """Try one dead end, or for two numbers up to two different ones, which are short; then the solution."""
    tries = 1 if len(problem.numbers) > 2 else 2
    missed = dict.fromkeys(", ".join(_sums(dead_end(problem, rng))) for _ in range(tries))
    failures = "".join(f"try {sums}, no. " for sums in missed)
    return _response(f"{failures}try {', '.join(_sums(problem.expression))}, yes.", problem.expression)


def backward(problem: Problem, _rng: random.Random) -> str:
    """Take the target apart: "need 96=8*12, need 8=3+5, found."."""
    goals = [f"need {result}={left}{operator}{right}" for left, operator, right, result in _goals(problem.expression)]
    return _response(f"{', '.join(goals)}, found.", problem.expression)


Teacher: TypeAlias = Callable[[Problem, random.Random], str]
TEACHERS: dict[str, Teacher] = {"forward": forward, "search": search, "backward": backward}


def slip(problem: Problem, teacher: Teacher, rng: random.Random) -> str:
    """Write a wrong response in the teacher's style: with another value, or a number miscopied into the answer."""
    if rng.random() < 0.5:
        return teacher(replace(problem, expression=dead_end(problem, rng)), rng)
    return _miscopy(teacher(problem, rng), rng)


def _miscopy(text: str, rng: random.Random) -> str:
    """Move one number of the answer by one, which always breaks the rule on the numbers."""
    thought, answer = text.split("<answer>")
    token = rng.choice(list(re.finditer(r"\d+", answer)))
    number = int(token.group())
    changed = number + (1 if number == 1 else rng.choice((-1, 1)))
    return f"{thought}<answer>{answer[: token.start()]}{changed}{answer[token.end() :]}"
