"""The data of a run by its settings: rows are read, prepared and written into the run's folder."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oger_recipe import remote_code
from oger_recipe.data.rows import Row
from oger_recipe.data.sources import TEACHERS, Columns, Seen, read_dataset
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice
from oger_recipe.data.train_files_cache import write_train_files_once
from oger_recipe.errors import RecipeError
from oger_recipe.evaluation.benchmarks import BENCHMARKS, asked_once, load_benchmark, uid_in_a_run
from oger_recipe.imports import without_garbage_collection
from oger_recipe.patches import apply_import_patches
from oger_recipe.rewards.grading.pool import GradingPool, GradingSettings
from oger_recipe.rewards.rules import TIMES_ASKED
from oger_recipe.run.plan import READ_WHOLE, Size, counted, local_files
from oger_recipe.run.shortage import losses, require_teachers, require_usable_teachers
from oger_recipe.settings.grading import VerifierSettings, grading_rules
from oger_recipe.settings.run import EvalSettings
from oger_recipe.settings.task import TaskSettings

_DATA, _EVAL, _MODEL = "data.prompt_dataset", "eval.dataset", "actor.model_name_or_path"


def leaves_task_unused(value: Mapping[str, Any]) -> bool:
    """Whether the user's own dataset and model leave nothing of the built-in task to train with."""
    return value["oger.task.name"] is not None and bool(value[_DATA] and value[_MODEL])


def with_task(value: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what the user does not have himself of the built-in task, where it is asked for: its training
    rows, its evaluation rows, its policy."""
    if value["oger.task.name"] is None:
        return dict(value)
    from oger_recipe.tasks.build import build_countdown

    own = {key: bool(value[key]) for key in (_DATA, _EVAL, _MODEL)}
    built = build_countdown(TaskSettings.of(value), data=not (own[_DATA] and own[_EVAL]), policy=not own[_MODEL])
    files = {_DATA: built.train_rows, _EVAL: built.eval_rows, _MODEL: built.policy}
    given: dict[str, Any] = {key: str(file) for key, file in files.items() if not own[key]}
    if value["data.apply_chat_template"] is None and not value["oger.prompt_template"]:
        given["data.apply_chat_template"] = True
    return {**value, **given, **_task_columns(value, own)}


def _task_columns(value: Mapping[str, Any], own: Mapping[str, bool]) -> dict[str, Any]:
    """The names of the user's columns are those of the user's files alone."""
    columns = {}
    for key, column in (("input_key", "prompt"), ("label_key", "answer")):
        trained = value[f"data.{key}"]
        evaluated = value[f"oger.eval.{key}"] or trained
        if (trained, evaluated) != (column, column):
            columns[f"data.{key}"] = trained if own[_DATA] else column
            columns[f"oger.eval.{key}"] = evaluated if own[_EVAL] else column
    if not own[_DATA]:
        columns["oger.teacher_key"] = TEACHERS
    return columns


def write_data(value: Mapping[str, Any], run_dir: Path) -> tuple[dict[str, Any], GradingSettings]:
    """Writes prompts and teacher store into the run folder.

    Returns the settings that point OpenRLHF at them, and how rollouts are graded.
    """
    counts: dict[str, Counter[str]] = {"data": Counter(), "eval": Counter()}
    rows = {which: rows_of(value, which, counts[which]) for which in counts}
    grading = grading_settings(value, [*rows["data"], *rows["eval"]])
    for name in ("data", "samples", "eval", "logs"):
        (run_dir / name).mkdir(parents=True, exist_ok=True)
    require_teachers(value, rows["data"])
    with GradingPool(grading) as pool:
        shared = preparation(value) | {"pool": pool, "cache": Path(value["oger.data_cache"]).expanduser()}
        prepared = _write_training(value, rows["data"], run_dir / "data", counts["data"], shared)
        if rows["eval"]:
            prepared |= _write_evaluation(value, rows["eval"], run_dir / "data", counts["eval"], shared)
    return prepared, grading


def _write_training(
    value: Mapping[str, Any], rows: list[Row], folder: Path, counts: Counter[str], shared: dict[str, Any]
) -> dict[str, Any]:
    path, budget = folder / "train.jsonl", _budget(value, value["rollout.max_new_tokens"])
    places = {"prompts_path": path, "teachers_path": folder / "teachers.arrow"}
    counts.update(write_train_files_once(rows[: value["data.max_samples"]], budget=budget, **places, **shared))
    (folder / "counts.json").write_text(json.dumps(counts, indent=2, sort_keys=True))
    _print_counts("data", counts, losses(value, counts, budget))
    require_usable_teachers(value, counts)
    if counts["prompts"] < value["rollout.batch_size"]:
        raise RecipeError(too_few(counts["prompts"], value))
    columns = {"data.input_key": "prompt", "data.label_key": "label"}
    return {_DATA: str(path), "data.prompt_split": "train", **columns}


def _write_evaluation(
    value: Mapping[str, Any], rows: list[Row], folder: Path, counts: Counter[str], shared: dict[str, Any]
) -> dict[str, Any]:
    # OpenRLHF would cut the beginning off prompts that leave less room than an evaluated response may take.
    sampling = EvalSettings.of(value).sampling(value["rollout.top_p"], value["rollout.max_new_tokens"])
    path, budget = folder / "eval.jsonl", _budget(value, sampling["max_new_tokens"])
    shared = shared | {"rules": grading_rules(value, evaluation=True)}
    counts.update(write_train_files_once(rows, budget=budget, prompts_path=path, teachers_path=None, **shared))
    _print_counts("evaluation data", counts, losses(value, counts, budget))
    return {_EVAL: str(path), "eval.split": "train"}


def too_few(prompts: int, value: Mapping[str, Any]) -> str:
    return f"{prompts} prompts do not fill one step of rollout.batch_size {value['rollout.batch_size']}"


def _budget(value: Mapping[str, Any], max_new_tokens: int | None) -> Budget:
    return Budget(value["data.max_len"], max_new_tokens, value["oger.max_prompt_length"])


def _print_counts(name: str, counts: Counter[str], warnings: Iterable[str]) -> None:
    print(f"{name}: " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items()), flush=True)
    for warning in warnings:
        print(f"warning: {name}: {warning}", flush=True)


def preparation(value: Mapping[str, Any]) -> dict[str, Any]:
    """What prompts, teachers and evaluation problems have in common."""
    template = value["oger.prompt_template"]
    chat = value["data.apply_chat_template"] or template == "chat"
    text_template = TEMPLATES[template] if template not in (None, "chat") else None
    return {
        "tokenizer": _tokenizer(value["actor.model_name_or_path"], needs_template=chat),
        "prompt_format": PromptFormat(chat, value["data.input_template"], text_template),
        "rules": grading_rules(value),
        "choice": TeacherChoice(
            value["oger.keep_wrong_teachers"],
            value["oger.max_prefix_len"],
            value["oger.long_teachers"],
            value["oger.teacher_sources"],
        ),
    }


def grading_settings(value: Mapping[str, Any], rows: Sequence[Row]) -> GradingSettings:
    """How answers are graded in a run with these settings, whose rows name the tasks."""
    own, tasks = VerifierSettings.of(value).own, {str(row["task"]) for row in rows}
    settings = GradingSettings(
        workers=value["oger.grading_workers"],
        time_limit_s=value["oger.grading_time_limit"],
        memory_limit_mb=value["oger.grading_memory_limit"],
        path=value["oger.verifier_path"],
    )
    return settings.for_tasks(own.get(task, task) for task in tasks)


def _tokenizer(model: str, *, needs_template: bool) -> Any:
    try:
        with without_garbage_collection():
            apply_import_patches()
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=remote_code.may_run())  # imports more
    except (OSError, ValueError) as error:
        raise RecipeError(f"actor.model_name_or_path: no tokenizer could be loaded from {model}: {error}") from None
    if needs_template and not tokenizer.chat_template:
        others = ", ".join(name for name in TEMPLATES if name != "chat")
        raise RecipeError(
            f"prompts go into the chat template (oger.prompt_template chat, or data.apply_chat_template), but {model} "
            f"has none: set oger.prompt_template to another one ({others})"
        )
    return tokenizer


def size(value: Mapping[str, Any], which: str) -> Size | None:
    """Of the data to train on (``data``) or to evaluate on (``eval``) where that is no work: what is in files here is
    read and checked, large files are counted, and what is to be built is known."""
    setting = value[_DATA if which == "data" else _EVAL]
    if setting is None and value["oger.task.name"]:
        return Size(value[f"oger.task.{'train' if which == 'data' else 'eval'}_problems"])
    files = local_files(setting)
    if files and sum(file.stat().st_size for file in files) <= READ_WHOLE:
        rows = rows_of(value, which)
        if which == "data":
            require_teachers(value, rows)
        return Size.of_rows(rows)
    return counted(files) if files else None


def rows_of(value: Mapping[str, Any], which: str, counts: Counter[str] | None = None) -> list[Row]:
    """The rows to train on (``data``) or to evaluate on (``eval``) by a run's settings; the left out are counted."""
    counts = Counter() if counts is None else counts
    setting = value[_DATA if which == "data" else _EVAL]
    if not setting:
        return []
    keys = {"prompt": value["data.input_key"], "answer": value["data.label_key"]}
    split, limit = value["data.prompt_split"], None
    if which == "eval":
        keys["prompt"] = value["oger.eval.input_key"] or keys["prompt"]
        keys["answer"] = value["oger.eval.label_key"] or keys["answer"]
        split, limit = value["eval.split"], value["oger.eval.max_samples"]
    input_flag, label_flag = (
        f"oger.eval.{key}" if which == "eval" and value[f"oger.eval.{key}"] else f"data.{key}"
        for key in ("input_key", "label_key")
    )
    own_tasks = tuple(VerifierSettings.of(value).own)
    columns = Columns(**keys, task=value["oger.task_name"], own_tasks=own_tasks, flags=(input_flag, label_flag))
    if which == "data":
        columns = replace(columns, teachers=value["oger.teacher_key"])
        return read_dataset(setting, columns, split=split, counts=counts)
    columns = replace(columns, by_content=True)
    rows: list[Row] = []
    for source in map(str.strip, setting.split(",")):
        named = source.partition("=")[0] in BENCHMARKS
        if named:
            rows += _benchmark_rows(source, limit, value["oger.prompt_template"])
        else:
            rows += _evaluation_rows(source, columns, split, limit, counts)
    return rows


def _evaluation_rows(source: str, columns: Columns, split: str, limit: int | None, counts: Counter[str]) -> list[Row]:
    """The rows of one dataset, each problem once; what a benchmark repeats on purpose is no duplicate."""
    seen = Seen()
    benchmarks: dict[str, list[Row]] = {}
    for row in read_dataset(source, columns, split=split, limit=limit, counts=counts, seen=seen):
        benchmarks.setdefault(row.get("datasource") or "default", []).append(row)
    rows = [row for name, each in benchmarks.items() for row in asked_once(name, each, seen.derived)]
    counts["duplicates"] -= sum(row.get(TIMES_ASKED, 1) - 1 for row in rows)
    counts += Counter()  # without zeros
    return rows


def _benchmark_rows(setting: str, limit: int | None, template: str | None) -> list[Row]:
    """The rows of ``NAME`` or ``NAME=FILE``, as `oger eval` asks them."""
    name, _, file = setting.partition("=")
    problems = load_benchmark(name, Path(file) if file else None, max_problems=limit)
    rows: list[Row] = []
    for problem in problems:
        rows.append(problem.row(template) | {"uid": uid_in_a_run(name, problem.uid), "datasource": name})
    return rows
