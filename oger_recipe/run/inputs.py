"""The data of a run by its settings: rows are read, prepared and written into the run's folder."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oger_recipe import remote_code
from oger_recipe.data.rows import Row
from oger_recipe.data.sources import Columns, Seen, read_dataset
from oger_recipe.data.templates import TEMPLATES
from oger_recipe.data.train_files import Budget, PromptFormat, TeacherChoice
from oger_recipe.data.train_files_cache import write_train_files_once
from oger_recipe.errors import RecipeError
from oger_recipe.evaluation.benchmarks import BENCHMARKS, asked_once, load_benchmark, uid_in_a_run
from oger_recipe.imports import without_garbage_collection
from oger_recipe.patches import apply_import_patches
from oger_recipe.rewards.grading.pool import GradingPool, GradingSettings
from oger_recipe.rewards.rules import TIMES_ASKED
from oger_recipe.run.shortage import losses, require_teachers, require_usable_teachers
from oger_recipe.settings.grading import VerifierSettings, grading_rules


def write_data(args: argparse.Namespace, run_dir: Path) -> tuple[list[str], GradingSettings]:
    """Writes prompts and teacher store into the run folder.

    Returns the flags that point OpenRLHF at them, and how rollouts are graded.
    """
    value = vars(args)
    counts: dict[str, Counter[str]] = {"train": Counter(), "eval": Counter()}
    rows = {"train": rows_of(value, "data", counts["train"]), "eval": rows_of(value, "eval", counts["eval"])}
    grading = grading_settings(value, [*rows["train"], *rows["eval"]])
    for name in ("data", "samples", "eval", "logs"):
        (run_dir / name).mkdir(parents=True, exist_ok=True)
    folder = run_dir / "data"
    flags = ["--data.prompt_dataset", str(folder / "train.jsonl")]
    flags += ["--data.input_key", "prompt", "--data.label_key", "label", "--data.prompt_split", "train"]
    require_teachers(value, rows["train"])
    with GradingPool(grading) as pool:
        shared = preparation(args) | {"pool": pool, "cache": Path(value["oger.data_cache"]).expanduser()}
        train = rows["train"][: value["data.max_samples"]]
        budget = _budget(args, value["rollout.max_new_tokens"])
        places = {"prompts_path": folder / "train.jsonl", "teachers_path": folder / "teachers.arrow"}
        counts["train"].update(write_train_files_once(train, budget=budget, **places, **shared))
        (folder / "counts.json").write_text(json.dumps(counts["train"], indent=2, sort_keys=True))
        _print_counts("data", counts["train"], losses(value, counts["train"], budget))
        require_usable_teachers(value, counts["train"])
        prompts = counts["train"]["prompts"]
        if prompts < value["rollout.batch_size"]:
            raise RecipeError(too_few(prompts, value))
        if rows["eval"]:
            # OpenRLHF would cut the beginning off prompts that leave less room than an evaluated response may take.
            budget = _budget(args, value["oger.eval.max_new_tokens"] or value["rollout.max_new_tokens"])
            shared["rules"] = grading_rules(value, evaluation=True)
            places = {"prompts_path": folder / "eval.jsonl", "teachers_path": None}
            counts["eval"].update(write_train_files_once(rows["eval"], budget=budget, **places, **shared))
            _print_counts("evaluation data", counts["eval"], losses(value, counts["eval"], budget))
            flags += ["--eval.dataset", str(folder / "eval.jsonl"), "--eval.split", "train"]
    return flags, grading


def too_few(prompts: int, value: dict[str, Any]) -> str:
    return f"{prompts} prompts do not fill one step of rollout.batch_size {value['rollout.batch_size']}"


def _budget(args: argparse.Namespace, max_new_tokens: int | None) -> Budget:
    return Budget(vars(args)["data.max_len"], max_new_tokens, vars(args)["oger.max_prompt_length"])


def _print_counts(name: str, counts: Counter[str], warnings: Iterable[str]) -> None:
    print(f"{name}: " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items()), flush=True)
    for warning in warnings:
        print(f"warning: {name}: {warning}", flush=True)


def preparation(args: argparse.Namespace) -> dict[str, Any]:
    """What prompts, teachers and evaluation problems have in common."""
    value = vars(args)
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


def grading_settings(value: dict[str, Any], rows: Sequence[Row]) -> GradingSettings:
    """How answers are graded in a run with these settings, whose rows name the tasks."""
    own = VerifierSettings.of(value).own
    settings = GradingSettings(
        workers=value["oger.grading_workers"],
        time_limit_s=value["oger.grading_time_limit"],
        memory_limit_mb=value["oger.grading_memory_limit"],
        path=value["oger.verifier_path"],
    )
    return settings.for_tasks(own.get(row["task"], row["task"]) for row in rows)


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


def rows_of(value: dict[str, Any], which: str, counts: Counter[str] | None = None) -> list[Row]:
    """The rows to train on (``data``) or to evaluate on (``eval``) by a run's settings; the left out are counted."""
    counts = Counter() if counts is None else counts
    setting = value["data.prompt_dataset" if which == "data" else "eval.dataset"]
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
