"""The data of a run by its settings: rows are read, prepared and written into the run's folder."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from oger_recipe.base import remote_code
from oger_recipe.base.cutting import require_steps
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import to_json
from oger_recipe.base.imports import without_garbage_collection
from oger_recipe.checks.shortage import (
    losses,
    require_a_step,
    require_supervised,
    require_teachers,
    require_usable_teachers,
)
from oger_recipe.data.rows import Row
from oger_recipe.data.sources import TEACHERS
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice
from oger_recipe.data.train_files_cache import write_train_files_once
from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.patches import apply_import_patches
from oger_recipe.run.rows import DATA, EVAL, evaluation_rows, training_rows
from oger_recipe.settings.grading import VerifierSettings, grading_rules
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.settings.run import EvalSettings
from oger_recipe.settings.task import TaskSettings
from oger_recipe.settings.teachers import TeacherSettings

_MODEL = "actor.model_name_or_path"


def leaves_task_unused(value: Mapping[str, Any]) -> bool:
    """Say whether the user's own dataset and model leave nothing of the built-in task to train with."""
    return value["oger.task.name"] is not None and bool(value[DATA] and value[_MODEL])


def judge_folder(model: str) -> str:
    """Return the folder of a judge that the built-in task brings; any other name as it is."""
    from oger_recipe.lab.built_in_models import folder_of

    return folder_of(model, TaskSettings.cache)


def with_judges(value: Mapping[str, Any], *, train: bool = True) -> dict[str, Any]:
    """Return the settings with folders in place of the built-in task's judges in oger.reward.sources. Without
    ``train`` those that are still to be trained, which takes minutes, keep their names."""
    from oger_recipe.lab.built_in_models import with_folders

    sources, cache = value["oger.reward.sources"], value["oger.task.cache"]
    return {**value, "oger.reward.sources": tuple(with_folders(each, cache, train=train) for each in sources)}


def with_task(value: Mapping[str, Any], *, build_policy: bool = True) -> dict[str, Any]:
    """Return the settings with what the user lacks of the built-in task, where it is asked for: training rows,
    evaluation rows, policy. Without ``build_policy`` the policy is named, not built, which takes minutes."""
    if value["oger.task.name"] is None:
        return dict(value)
    from oger_recipe.lab.build import build_countdown, policy_folder

    own = {key: bool(value[key]) for key in (DATA, EVAL, _MODEL)}
    settings, build_policy = TaskSettings.of(value), build_policy and not own[_MODEL]
    built = build_countdown(settings, data=not (own[DATA] and own[EVAL]), policy=build_policy)
    files = {DATA: built.train_rows, EVAL: built.eval_rows, _MODEL: built.policy or policy_folder(settings)}
    given: dict[str, Any] = {key: str(file) for key, file in files.items() if not own[key]}
    if value["data.apply_chat_template"] is None and not value["oger.prompt_template"]:
        given["data.apply_chat_template"] = True
    return {**value, **given, **_task_columns(value, own)}


def _task_columns(value: Mapping[str, Any], own: Mapping[str, bool]) -> dict[str, Any]:
    """Return the settings that apply the user's column names to the user's files alone."""
    columns = {}
    for key, column in (("input_key", "prompt"), ("label_key", "answer")):
        trained = value[f"data.{key}"]
        evaluated = value[f"oger.eval.{key}"] or trained
        if (trained, evaluated) != (column, column):
            columns[f"data.{key}"] = trained if own[DATA] else column
            columns[f"oger.eval.{key}"] = evaluated if own[EVAL] else column
    if not own[DATA]:
        columns["oger.teacher_key"] = TEACHERS
    return columns


Counts = tuple[Counter[str], Counter[str] | None]  # of the data to train on, and to evaluate on


def write_data(value: Mapping[str, Any], run_dir: Path) -> tuple[dict[str, Any], GradingSettings, Counts]:
    """Write prompts and teacher store into the run folder.

    Returns the settings that point OpenRLHF at them, how rollouts are graded, and how much there is.
    """
    left_out: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    training, evaluation = training_rows(value, left_out[0]), evaluation_rows(value, left_out[1])
    grading = grading_settings(value, chain(training, evaluation))
    for name in ("data", "samples", "eval", "logs"):
        (run_dir / name).mkdir(parents=True, exist_ok=True)
    require_teachers(value, training)
    with GradingPool(grading) as pool:
        cache = {"cache": Path(value["oger.data_cache"]).expanduser(), "cache_gb": value["oger.data_cache_gb"]}
        shared = preparation(value) | cache | {"pool": pool}
        prepared = _write_training(value, training, run_dir / "data", left_out[0], shared)
        if evaluation:
            prepared |= _write_evaluation(value, evaluation, run_dir / "data", left_out[1], shared)
    return prepared, grading, (left_out[0], left_out[1] if evaluation else None)


def _write_training(
    value: Mapping[str, Any], rows: Sequence[Row], folder: Path, counts: Counter[str], shared: dict[str, Any]
) -> dict[str, Any]:
    path, budget = folder / "train.jsonl", budget_of(value, value["rollout.max_new_tokens"])
    places: dict[str, Any] = {"prompts_path": path, "teachers_path": folder / "teachers.arrow"}
    counts.update(write_train_files_once(rows[: value["data.max_samples"]], budget=budget, **places, **shared))
    (folder / "counts.json").write_text(to_json(counts, indent=2, sort_keys=True))
    _print_counts("data", counts, losses(value, counts, budget))
    require_usable_teachers(value, counts)
    require_supervised(value, counts["teachers"])
    require_a_step(value, counts["prompts"])
    columns = {"data.input_key": "prompt", "data.label_key": "label"}
    return {DATA: str(path), "data.prompt_split": "train", **columns}


def _write_evaluation(
    value: Mapping[str, Any], rows: list[Row], folder: Path, counts: Counter[str], shared: dict[str, Any]
) -> dict[str, Any]:
    # OpenRLHF would cut the beginning off prompts that leave less room than an evaluated response may take.
    sampling = EvalSettings.of(value).sampling(value["rollout.top_p"], value["rollout.max_new_tokens"])
    path, budget = folder / "eval.jsonl", budget_of(value, sampling["max_new_tokens"])
    shared = shared | {"rules": grading_rules(value, evaluation=True)}
    counts.update(write_train_files_once(rows, budget=budget, prompts_path=path, teachers_path=None, **shared))
    _print_counts("evaluation data", counts, losses(value, counts, budget))
    return {EVAL: str(path), "eval.split": "train"}


def budget_of(value: Mapping[str, Any], max_new_tokens: int | None) -> Budget:
    return Budget(value["data.max_len"], max_new_tokens, value["oger.max_prompt_length"])


def _print_counts(name: str, counts: Counter[str], warnings: Iterable[str]) -> None:
    print(f"{name}: " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items()), flush=True)
    for warning in warnings:
        print(f"warning: {name}: {warning}", flush=True)


def writes_chats(value: Mapping[str, Any]) -> bool:
    """Say whether prompts go into the policy's chat template."""
    return bool(value["data.apply_chat_template"] or value["oger.prompt_template"] == "chat")


def preparation(value: Mapping[str, Any], *, has_tokenizer: bool = True) -> dict[str, Any]:
    """Return what preparing prompts, teachers and problems shares; the policy's tokenizer with ``has_tokenizer``."""
    teachers, template = TeacherSettings.of(value), value["oger.prompt_template"]
    oger, chat = OgerSettings.of(value), writes_chats(value)
    text_template = TEMPLATES[template] if template not in (None, "chat") else None
    tokenizer = _tokenizer(value["actor.model_name_or_path"], needs_template=chat) if has_tokenizer else None
    if has_tokenizer and (oger.cuts_steps(value["algo.advantage.estimator"]) or oger.steps.sampling is not None):
        require_steps(tokenizer, oger.steps.rule)
    return {
        "tokenizer": tokenizer,
        "prompt_format": PromptFormat(
            chat,
            value["data.input_template"],
            text_template,
            teachers.shown_template,
            oger.shown_share,
            oger.grades.shows_teachers,
        ),
        "rules": grading_rules(value),
        "overlong_prompts": value["oger.overlong_prompts"],
        "choice": TeacherChoice(
            teachers.keep_wrong_teachers,
            teachers.max_prefix_len,
            teachers.long_teachers,
            teachers.teacher_sources,
            only_shown=oger.grades.shows_teachers and not (oger.teachers_enter or oger.sft.epochs),
        ),
    }


def grading_settings(value: Mapping[str, Any], rows: Iterable[Row]) -> GradingSettings:
    """Return how a run with these settings grades answers; ``rows`` name the tasks."""
    verifiers, tasks = VerifierSettings.of(value), {str(row["task"]) for row in rows}
    settings = GradingSettings(
        workers=verifiers.grading_workers,
        time_limit_s=verifiers.grading_time_limit,
        memory_limit_mb=verifiers.grading_memory_limit,
        allowed=verifiers.allowed,
        path=verifiers.verifier_path,
    )
    return settings.for_tasks(verifiers.own.get(task, task) for task in tasks)


def _tokenizer(model: str, *, needs_template: bool) -> Any:
    try:
        with without_garbage_collection():
            apply_import_patches()
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=remote_code.may_run())  # imports, too
    except (OSError, ValueError) as error:
        raise RecipeError(f"actor.model_name_or_path: cannot load a tokenizer from {model}: {error}") from None
    if needs_template and not tokenizer.chat_template:
        others = ", ".join(name for name in TEMPLATES if name != "chat")
        raise RecipeError(
            f"prompts use the chat template (oger.prompt_template chat, or data.apply_chat_template), but {model} "
            f"has none: set oger.prompt_template to {others}, and leave out data.apply_chat_template"
        )
    return tokenizer
