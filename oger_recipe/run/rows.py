"""The rows that the settings of a run name, to train on and to evaluate on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError, shown
from oger_recipe.checks.plan import Size
from oger_recipe.checks.shortage import require_a_step, require_teachers
from oger_recipe.data.rows import Row
from oger_recipe.data.sources import Columns, Seen, read_dataset
from oger_recipe.evaluation.benchmarks import BENCHMARKS, asked_once, load_benchmark, uid_in_a_run
from oger_recipe.grading.rules import TIMES_ASKED
from oger_recipe.grading.verifiers import resolved
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.rewards.kinds.rubric import rubric_problem
from oger_recipe.settings.grading import VerifierSettings
from oger_recipe.settings.rewards import RewardSettings
from oger_recipe.settings.run import EvalSettings

_SHOWN = 10  # uids in a message
DATA, EVAL = "data.prompt_dataset", "eval.dataset"  # the settings that name them


def needs_hub(value: Mapping[str, Any]) -> bool:
    """Say whether the policy or rows are not on this machine."""
    return not (Path(value["actor.model_name_or_path"]).exists() and _are_here(value[DATA]) and _are_here(value[EVAL]))


def _are_here(setting: str | None) -> bool:
    """Say whether all sources of a dataset setting are files or folders."""
    sources = [source.strip().rpartition("=")[2] for source in (setting or "").split(",")]
    return not setting or all(Path(source).expanduser().exists() for source in sources)


def sizes(value: Mapping[str, Any]) -> tuple[Size | None, Size | None]:
    """Count the rows to train on and to evaluate on before they are prepared; None where they are not here, or none.

    Raises RecipeError where rows cannot be read, or are too few.
    """
    training = evaluation = None
    if value[DATA] and _are_here(value[DATA]):
        rows = training_rows(value)[: value["data.max_samples"]]
        require_teachers(value, rows)
        require_a_step(value, len(rows))
        training = Size.of_rows(rows)
    if value[EVAL] and _are_here(value[EVAL]):
        evaluation = Size.of_rows(evaluation_rows(value))
    return training, evaluation


def training_rows(value: Mapping[str, Any], counts: Counter[str] | None = None) -> Sequence[Row]:
    """Read the rows to train on, and count those left out. Raises RecipeError where they cannot be read."""
    if not value[DATA]:
        return []
    rewards = RewardSettings.of(value)
    columns = replace(_columns(value), teachers=value["oger.teacher_key"])
    columns = replace(columns, keep=columns.keep or rewards.reads_rows)
    rows = read_dataset(value[DATA], columns, split=value["data.prompt_split"], counts=counts)
    _require_columns(rows, rewards, value[DATA])
    _require_solutions(rows, value)
    return rows


def _require_solutions(rows: Sequence[Row], value: Mapping[str, Any]) -> None:
    """Raise RecipeError where a source of the reward counts classes of solutions and a row's verifier names none."""
    counting = [spec.name for spec in sources_of(RewardSettings.of(value).sources) if spec.keys.counts_solutions]
    own = VerifierSettings.of(value).own
    for task in dict.fromkeys(row["task"] for row in rows) if counting else ():
        spec = resolved(own.get(task, task))
        if spec is not None and spec.names_solutions is False:
            raise RecipeError(
                f"{value[DATA]}: the reward source {counting[0]!r} counts classes of solutions, and the verifier of "
                f"task {task!r} names none: leave the source out, use kind unlikeliness, or by: answer where problems "
                "have several right answers"
            )


def _require_columns(rows: Sequence[Row], rewards: RewardSettings, data: str) -> None:
    """Raise RecipeError where a source of the reward reads a column that the data, or one of its rows, does not have,
    or that holds no text or no rubric where one is needed."""
    there = dict.fromkeys(name for row in rows for name in row)
    wrong = []
    given = [name for name in there if name not in ("prompt", "teachers")]
    for spec in sources_of(rewards.sources):
        for column in spec.keys.arguments():
            if column not in given:
                raise RecipeError(
                    f"{data}: no column {column!r}, which the reward source {spec.name!r} ({spec.kind}) needs "
                    f"as an argument; the columns are {', '.join(map(repr, given))}"
                )
        for key, column, holds in spec.keys.columns():
            asked = f"{column!r}, the {key} of the reward source {spec.name!r}"
            if column not in there:
                raise RecipeError(f"{data}: no column {asked}; the columns are {', '.join(map(repr, there))}")
            empty = [row["uid"] for row in rows if row.get(column) is None]
            others = [row["uid"] for row in rows if holds == "text" and not isinstance(row.get(column), str | None)]
            wrong += [f"{len(empty)} of {len(rows)} rows have no {asked}: {_listed(empty)}"] if empty else []
            wrong += [f"{len(others)} rows have no text in {asked}: {_listed(others)}"] if others else []
            rubrics = ((row["uid"], row[column]) for row in rows if holds == "rubric" and row.get(column) is not None)
            bad = [f"{uid}: {problem}" for uid, rubric in rubrics if (problem := rubric_problem(rubric))]
            wrong += [f"{len(bad)} rows have a bad rubric in {asked}: {_listed(bad)}"] if bad else []
    if wrong:
        raise RecipeError(f"{data}: {'; '.join(wrong)}")


def row_problem(row: Row, rewards: RewardSettings) -> str | None:
    """Say which column a source of the reward reads that the row does not have, or that holds something else."""
    for spec in sources_of(rewards.sources):
        for key, column, holds in spec.keys.columns():
            asked, value = f"{column!r}, the {key} of the reward source {spec.name!r}", row.get(column)
            if value is None:
                return f"no column {asked}"
            if holds == "text" and not isinstance(value, str):
                return f"{asked} must hold a text, found {shown(value)}"
            if holds == "rubric" and (problem := rubric_problem(value)):
                return f"{asked}: {problem}"
    return None


def _listed(uids: list[str]) -> str:
    return ", ".join(uids[:_SHOWN]) + f" and {len(uids) - _SHOWN} more" * (len(uids) > _SHOWN)


def evaluation_rows(value: Mapping[str, Any], counts: Counter[str] | None = None) -> list[Row]:
    """Read the rows to evaluate on, and count those left out. Raises RecipeError where they cannot be read."""
    if not value[EVAL]:
        return []
    counts, settings = Counter() if counts is None else counts, EvalSettings.of(value)
    columns = evaluation_columns(value)
    rows: list[Row] = []
    for source in map(str.strip, value[EVAL].split(",")):
        if source.partition("=")[0] in BENCHMARKS:
            rows += _benchmark_rows(source, settings.max_samples, value["oger.prompt_template"])
        else:
            rows += _evaluation_rows(source, columns, value["eval.split"], settings.max_samples, counts)
    return rows


def _columns(value: Mapping[str, Any]) -> Columns:
    verifiers = VerifierSettings.of(value)
    return Columns(
        value["data.input_key"],
        value["data.label_key"],
        task=verifiers.task_name,
        own_tasks=tuple(verifiers.own),
        keep=bool(verifiers.own),
    )


def evaluation_columns(value: Mapping[str, Any]) -> Columns:
    """Return the columns of what is evaluated on: the training data's unless others are named."""
    settings, columns = EvalSettings.of(value), replace(_columns(value), by_content=True)
    if settings.input_key:
        columns = replace(columns, prompt=settings.input_key, flags=("oger.eval.input_key", columns.flags[1]))
    if settings.label_key:
        columns = replace(columns, answer=settings.label_key, flags=(columns.flags[0], "oger.eval.label_key"))
    return columns


def _evaluation_rows(source: str, columns: Columns, split: str, limit: int | None, counts: Counter[str]) -> list[Row]:
    """Read the rows of one dataset, each problem once; what a benchmark repeats on purpose is no duplicate."""
    seen = Seen()
    benchmarks: dict[str, list[Row]] = {}
    for row in read_dataset(source, columns, split=split, limit=limit, counts=counts, seen=seen):
        benchmarks.setdefault(row.get("datasource") or "default", []).append(row)
    rows = [row for name, each in benchmarks.items() for row in asked_once(name, each, seen.derived)]
    counts["duplicates"] -= sum(row.get(TIMES_ASKED, 1) - 1 for row in rows)
    counts += Counter()  # drops zeros
    return rows


def _benchmark_rows(setting: str, limit: int | None, template: str | None) -> list[Row]:
    """Read the rows of ``NAME`` or ``NAME=FILE``, as `oger eval` asks them."""
    name, _, file = setting.partition("=")
    problems = load_benchmark(name, Path(file) if file else None, max_problems=limit)
    rows: list[Row] = []
    for problem in problems:
        rows.append(problem.row(template) | {"uid": uid_in_a_run(name, problem.uid), "datasource": name})
    return rows
