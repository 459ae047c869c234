"""One training run from parsed flags: check, build or read the data, write the run folder, train, summarise."""

import argparse
import contextlib
import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from oger_recipe.checks import check_run, dataset_files, gpus_by_role
from oger_recipe.data.prepare import Budget, PromptFormat, prepare
from oger_recipe.data.rows import Row, read_rows
from oger_recipe.recipe import RecipeError, write_resolved

COMMAND = "command.sh"  # the last file that is written before anything starts
TRACES = (COMMAND, "events.jsonl", "metrics.jsonl")  # a folder with one of these holds a run


def train(args: argparse.Namespace, parser: argparse.ArgumentParser, tokens: list[str], recipe: Path | None) -> None:
    """Runs one training job.

    Raises:
        RecipeError: the run cannot start; nothing was started.
    """
    import torch

    started = time.time()
    cpu = not torch.cuda.is_available()
    check_run(args, cpu=cpu, gpus_here=None if cpu else torch.cuda.device_count() * args.__dict__["actor.num_nodes"])
    run_dir = _run_dir(args, recipe)
    args = _with_task(args, parser, tokens)
    built = time.time()
    tokens = [*args.tokens, *_write_data(args, run_dir), *_run_dir_flags(args, run_dir)]
    args = parser.parse_args(tokens)
    _write_identity(args, run_dir, tokens)
    prepared = time.time()

    from oger_recipe.plugin.launch import launch
    from oger_recipe.report.progress import Progress
    from oger_recipe.report.summary import write_summary

    with Progress(run_dir / "events.jsonl"), _explained(run_dir):
        gpus = args.__dict__["oger.logical_gpus"] or sum(gpus_by_role(args).values())
        launch(tokens, run_dir, cpu=cpu, logical_gpus=gpus, verbose=args.__dict__["oger.verbose"])
    write_summary(run_dir, {"task": built - started, "data": prepared - built}, started)


@contextlib.contextmanager
def _explained(run_dir: Path) -> Iterator[None]:
    """A failure in some worker as one message; the tracebacks of all processes go to the log."""
    try:
        yield
    except Exception as error:
        log = run_dir / "logs" / "error.log"
        log.write_text(traceback.format_exc())
        cause = getattr(error, "cause", None) or error  # what the worker raised, under Ray's wrapping
        raise RecipeError(f"training stopped: {type(cause).__name__}: {cause}\n  traceback: {log}") from None


def _with_task(args: argparse.Namespace, parser: argparse.ArgumentParser, tokens: list[str]) -> argparse.Namespace:
    """``args`` with the built-in task's files filled in where it is asked for; ``args.tokens`` are its flags."""
    if args.__dict__["oger.task.name"] is not None:
        from oger_recipe.tasks.build import build_countdown

        built = build_countdown(args)
        # Underneath what the user set, so that any of the three can be replaced.
        tokens = [
            "--data.prompt_dataset", str(built.train_rows),
            "--eval.dataset", str(built.eval_rows),
            "--actor.model_name_or_path", str(built.policy),
            "--data.apply_chat_template",
            *tokens,
        ]  # fmt: skip
        args = parser.parse_args(tokens)
    args.tokens = tokens
    return args


def _run_dir(args: argparse.Namespace, recipe: Path | None) -> Path:
    """The run's folder; an earlier run's is never written into unless it is resumed."""
    value = vars(args)
    wanted = Path(value["oger.run_dir"] or Path("runs") / (recipe.stem if recipe else "train_ppo_ray")).absolute()
    folder, number = wanted, 1
    if not value["ckpt.load_enable"]:
        while any((folder / name).exists() for name in TRACES):
            if value["oger.run_dir"]:
                raise RecipeError(
                    f"oger.run_dir {wanted} holds an earlier run; choose another folder, or continue it with "
                    "--ckpt.load_enable"
                )
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _write_data(args: argparse.Namespace, run_dir: Path) -> list[str]:
    """Writes prompts and teacher store into the run folder; returns the flags that point OpenRLHF at them."""
    value = vars(args)
    rows = {key: _rows(value[key]) for key in ("data.prompt_dataset", "eval.dataset")}
    tokenizer = _tokenizer(value["actor.model_name_or_path"], needs_template=value["data.apply_chat_template"])
    for name in ("data", "samples", "eval", "logs"):
        (run_dir / name).mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {
        "tokenizer": tokenizer,
        "prompt_format": PromptFormat(value["data.apply_chat_template"], value["data.input_template"]),
        "budget": Budget(value["data.max_len"], value["rollout.max_new_tokens"]),
        "keep_wrong_teachers": value["oger.keep_wrong_teachers"],
    }
    folder = run_dir / "data"
    train = rows["data.prompt_dataset"][: value["data.max_samples"]]
    counts = prepare(train, prompts_path=folder / "train.jsonl", teachers_path=folder / "teachers.arrow", **shared)
    if counts["prompts"] < value["rollout.batch_size"]:
        raise RecipeError(
            f"{counts['prompts']} prompts do not fill one step of rollout.batch_size {value['rollout.batch_size']}"
        )
    (folder / "counts.json").write_text(json.dumps(counts, indent=2, sort_keys=True))
    print("data: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()), flush=True)
    flags = ["--data.prompt_dataset", str(folder / "train.jsonl")]
    if rows["eval.dataset"]:
        prepare(rows["eval.dataset"], prompts_path=folder / "eval.jsonl", teachers_path=None, **shared)
        flags += ["--eval.dataset", str(folder / "eval.jsonl")]
    return flags


def _tokenizer(model: str, *, needs_template: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise RecipeError(f"actor.model_name_or_path: no tokenizer could be loaded from {model}: {error}") from None
    if needs_template and not tokenizer.chat_template:
        raise RecipeError(f"data.apply_chat_template is set, but {model} has no chat template")
    return tokenizer


def _rows(setting: str | None) -> list[Row]:
    return [row for path in dataset_files(setting) for row in read_rows(path)]


def _run_dir_flags(args: argparse.Namespace, run_dir: Path) -> list[str]:
    """Outputs go into the run folder, except where the user sent them elsewhere."""
    flags = ["--oger.run_dir", str(run_dir)]
    defaults = {
        "ckpt.path": ("./ckpt/checkpoints_ppo_ray", run_dir / "checkpoints"),
        "ckpt.output_dir": ("./ckpt", run_dir / "model"),
        "logger.tensorboard_dir": (None, run_dir / "tensorboard"),
    }
    for key, (upstream, ours) in defaults.items():
        if vars(args)[key] == upstream:
            flags += [f"--{key}", str(ours)]
    return flags


def _write_identity(args: argparse.Namespace, run_dir: Path, tokens: list[str]) -> None:
    """What is needed to run the same again: resolved recipe, command line, environment, versions."""
    settings = {key: value for key, value in vars(args).items() if value is not None and value != float("inf")}
    write_resolved(settings, run_dir / "recipe.yaml")
    command = ["python", "-m", "oger_recipe.cli.train_ppo_ray", *tokens]
    (run_dir / COMMAND).write_text(shlex.join(command) + "\n")
    versions = sorted({f"{dist.name}=={dist.version}" for dist in metadata.distributions()}, key=str.lower)
    (run_dir / "environment.json").write_text(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "platform": platform.platform(),
                "git_commit": _git_commit(),
                "packages": versions,
            },
            indent=2,
        )
    )


def _git_commit() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip() or None
