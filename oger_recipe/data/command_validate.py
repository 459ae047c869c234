"""`oger data validate`: everything that is wrong with a file of rows, at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from oger_recipe.base.errors import RecipeError
from oger_recipe.data.rows import Row, problem_key, teacher_columns
from oger_recipe.data.sources import Columns, Seen, each_row
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.rules import GradingRules
from oger_recipe.grading.verdict import Graded
from oger_recipe.grading.verifiers import VERIFIERS


@dataclass
class Report:
    """rows: read, empty lines not counted; bad: what is wrong with a row, by its number, with file and number in
    front; repeated: rows that a run leaves out, because they have no uid and an earlier row has the same prompt and
    answer; problems: different questions; teachers: of usable rows, by source; tasks: of usable rows; may_be_teachers:
    where no usable row has teachers, the columns that look like them; unchecked: tasks of the user's whose verifiers
    fail on an empty response, and how."""

    rows: int = 0
    bad: dict[int, str] = field(default_factory=dict)
    repeated: int = 0
    problems: int = 0
    without_teachers: int = 0
    teachers: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    may_be_teachers: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)


def validate(
    source: str,
    columns: Columns,
    rules: GradingRules,
    grading: GradingSettings,
    split: str = "train",
    problem_of: Callable[[Row], str | None] = lambda row: None,
) -> Report:
    """Read all rows of one dataset as a run would, and have the verifiers read every reference answer.

    problem_of: says what else is wrong with a row.

    Raises:
        RecipeError: the dataset cannot be read at all, or has no rows.
    """
    report = Report()
    good: dict[int, Row] = {}
    for number, row in each_row(source, columns, split, Seen()):
        report.rows += 1
        if isinstance(row, RecipeError):
            report.bad[number] = str(row)
        elif row is None:
            report.repeated += 1
        elif problem := problem_of(row):
            report.bad[number] = f"{source}:{number}: {problem}"
        else:
            good[number] = row
    if not report.rows:
        raise RecipeError(f"{source}: the dataset has no rows")
    for number, error in _unread_answers(good, rules, grading).items():
        task = good[number]["task"]
        if error.unreadable or task in VERIFIERS:
            report.bad[number] = f"{source}:{number}: {error.error}"
            del good[number]
        else:  # a verifier of the user's that fails on an empty response has said nothing of the answer
            report.unchecked.setdefault(task, str(error.error))
    report.bad = dict(sorted(report.bad.items()))
    report.problems = len({problem_key(row["prompt"]) for row in good.values()})
    for row in good.values():
        teachers = row.get("teachers") or []
        report.without_teachers += not teachers
        report.teachers.update(teacher["source"] for teacher in teachers)
        report.tasks[row["task"]] += 1
    if not report.teachers:
        report.may_be_teachers = teacher_columns(good.values(), columns.prompt, columns.answer)
    return report


def _unread_answers(rows: dict[int, Row], rules: GradingRules, grading: GradingSettings) -> dict[int, Graded]:
    """Grade an empty response to each row, and return those that failed: that is enough to read the reference."""
    with GradingPool(grading.for_tasks(rules.tasks(rows.values()))) as pool:
        answers = [rules.answer(row, "") for row in rows.values()]
        graded = pool.grade_many(answers, progress=len(answers) > 2000)
    return {number: each for number, each in zip(rows, graded, strict=True) if each.error is not None}
