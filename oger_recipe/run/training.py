"""One training run from parsed flags: check, build or read the data, write the run folder, train, summarise."""

import argparse
import json
import math
import platform
import shlex
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from oger_recipe import remote_code
from oger_recipe.data.sources import TEACHERS
from oger_recipe.errors import RecipeError
from oger_recipe.run import resume
from oger_recipe.run.attempt import COMMAND, begin_anew, cut_back, locked, trained
from oger_recipe.run.ends import explained, stoppable
from oger_recipe.run.inputs import rows_of, too_few, write_data
from oger_recipe.run.plan import READ_WHOLE, Size, counted, describe, local_files, on_this_machine
from oger_recipe.run.preflight import Job, findings, stop_on_problems
from oger_recipe.run.sft import supervise
from oger_recipe.run.shortage import require_teachers
from oger_recipe.secrets import handed_on
from oger_recipe.settings.checks import recipe_problems, refuse
from oger_recipe.settings.machine import gpus_by_role, gpus_found, machine_problems
from oger_recipe.settings.notes import notes
from oger_recipe.settings.recipe_file import in_prompts, set_in, write_resolved
from oger_recipe.settings.rollouts import RolloutSettings


def train(
    args: argparse.Namespace,
    parser: argparse.ArgumentParser,
    tokens: list[str],
    recipe: Path | None,
    *,
    dry_run: bool = False,
    overwrite: bool = False,
) -> None:
    """Runs one training job; a dry run only checks the recipe and says what the job would do.

    Raises:
        RecipeError: the run cannot start, and nothing was started; or it failed.
        SystemExit: it was stopped by a signal.
    """
    import torch

    started = time.time()
    tokens = without_unused_task(args, in_prompts(args, tokens))
    args = parser.parse_args(tokens)
    cpu = not torch.cuda.is_available()
    problems, here = recipe_problems(args), machine_problems(args, cpu=cpu, gpus_here=gpus_found(vars(args)))
    if problems and recipe:
        problems = recipe_problems(args, set_in(recipe, parser, vars(args)))
    refuse(problems if dry_run else [*problems, *here])
    for note in notes(args, parser.get_default):
        print(f"note: {note}", flush=True)
    if overwrite and vars(args)["ckpt.load_enable"]:
        raise RecipeError("--overwrite removes the earlier run, --ckpt.load_enable continues it: choose one")
    job = Job(vars(args), _run_dir(args, recipe, overwrite=overwrite), cpu)
    if dry_run:
        sizes = {which: _size(vars(args), which) for which in ("data", "eval")}
        prompts = min(sizes["data"].rows, vars(args)["data.max_samples"]) if sizes["data"] else math.inf
        if prompts < vars(args)["rollout.batch_size"]:
            raise RecipeError(too_few(prompts, vars(args)))
        print(describe(args, sizes["data"], sizes["eval"]))
        print("\n" + on_this_machine(here, findings(job)))
        return
    stop_on_problems(job)
    for refusal in remote_code.untrusted(vars(args), hub=True):
        raise RecipeError(refusal)
    remote_code.allow(vars(args))
    run_dir = job.run_dir
    tokens = [*tokens, *_run_dir_flags(args, run_dir)]
    checkpoint_folder = Path(vars(parser.parse_args(tokens))["ckpt.path"])
    if vars(args)["ckpt.load_enable"] and not run_dir.exists():
        resume.choose(checkpoint_folder)  # which refuses, before a folder is made
    with locked(run_dir) as lock, stoppable(run_dir, checkpoint_folder, sys.argv):
        _attempt(parser, tokens, run_dir, checkpoint_folder, lock, cpu=cpu, overwrite=overwrite, started=started)


def _attempt(
    parser: argparse.ArgumentParser,
    tokens: list[str],
    run_dir: Path,
    checkpoint_folder: Path,
    lock: int,
    *,
    cpu: bool,
    overwrite: bool,
    started: float,
) -> None:
    """One attempt at the run whose folder is held: begins it, or goes on where the last one broke off."""
    args = parser.parse_args(tokens)
    resumes = vars(args)["ckpt.load_enable"]
    if resumes:
        checkpoint, passed_over = resume.choose(checkpoint_folder)
    else:
        begin_anew(run_dir, checkpoint_folder, overwrite=overwrite)
    args = _with_task(args, parser, tokens)
    built = time.time()
    tokens = [*args.tokens, *_template_flags(args)]
    args = parser.parse_args(tokens)
    if resumes:
        for note in [*resume.check_settings(args, parser, run_dir / "recipe.yaml"), *passed_over]:
            print(f"note: {note}", flush=True)
        cut_back(run_dir, checkpoint.step)
        resume.load(checkpoint_folder, checkpoint)
    flags, grading = write_data(args, run_dir)
    _write_identity(args, run_dir, tokens)
    tokens = [*tokens, *flags]  # the prepared data, in place of its sources
    prepared = time.time()
    if args.__dict__["oger.sft.epochs"]:
        model = supervise(args, run_dir, cpu=cpu)
        tokens += ["--actor.model_name_or_path", str(model)]
    supervised = time.time()

    from oger_recipe.plugin.driver.launch import launch
    from oger_recipe.report.console import Console
    from oger_recipe.report.summary import Report

    seconds = {"task": built - started, "data": prepared - built, "supervised": supervised - prepared}
    with explained(run_dir, checkpoint_folder, sys.argv), Console(Report(run_dir, seconds, started)):
        gpus = args.__dict__["oger.logical_gpus"] or sum(gpus_by_role(vars(args)).values())
        environment = {"OGER_GRADING": grading.to_json()} | handed_on(vars(args), run_dir)
        environment |= remote_code.environment(vars(args))
        verbose = args.__dict__["oger.verbose"]
        launch(tokens, run_dir, cpu=cpu, logical_gpus=gpus, verbose=verbose, environment=environment, lock=lock)


_DATA, _EVAL, _MODEL = "data.prompt_dataset", "eval.dataset", "actor.model_name_or_path"


def without_unused_task(args: argparse.Namespace, tokens: list[str]) -> list[str]:
    """The flags without the built-in task where the user's own dataset and model leave nothing of it to train with."""
    value = vars(args)
    if value["oger.task.name"] is None or not (value[_DATA] and value[_MODEL]):
        return tokens
    evaluated = "" if value[_EVAL] else f"; nothing is evaluated: {_EVAL} is not set"
    print(
        f"note: the task {value['oger.task.name']} is not built: {_DATA} and {_MODEL} are given{evaluated}", flush=True
    )
    flag = "--oger.task.name"
    before = ["", *tokens[:-1]]
    return [
        token
        for token, last in zip(tokens, before, strict=True)
        if flag not in (token, last) and not token.startswith(f"{flag}=")
    ]


def _with_task(args: argparse.Namespace, parser: argparse.ArgumentParser, tokens: list[str]) -> argparse.Namespace:
    """``args`` with what the user does not have himself of the built-in task, where it is asked for: its training
    rows, its evaluation rows, its policy. ``args.tokens`` are its flags."""
    if vars(args)["oger.task.name"] is not None:
        from oger_recipe.tasks.build import build_countdown

        own = {key: bool(vars(args)[key]) for key in (_DATA, _EVAL, _MODEL)}
        built = build_countdown(args, data=not (own[_DATA] and own[_EVAL]), policy=not own[_MODEL])
        files = {_DATA: built.train_rows, _EVAL: built.eval_rows, _MODEL: built.policy}
        given = [part for key, file in files.items() if not own[key] for part in (f"--{key}", str(file))]
        chat = [] if vars(args)["oger.prompt_template"] else ["--data.apply_chat_template"]
        tokens = [*given, *chat, *tokens, *_task_columns(vars(args), own)]
        args = parser.parse_args(tokens)
    args.tokens = tokens
    return args


def _task_columns(value: dict[str, Any], own: dict[str, bool]) -> list[str]:
    """Flags that keep the names of the user's columns to files of the user's own."""
    flags = []
    for key, column in (("input_key", "prompt"), ("label_key", "answer")):
        trained = value[f"data.{key}"]
        evaluated = value[f"oger.eval.{key}"] or trained
        if (trained, evaluated) != (column, column):
            flags.append(f"--data.{key}={trained if own[_DATA] else column}")
            flags.append(f"--oger.eval.{key}={evaluated if own[_EVAL] else column}")
    if value["oger.teacher_key"] != TEACHERS and not own[_DATA]:
        flags.append(f"--oger.teacher_key={TEACHERS}")
    return flags


def _size(value: dict[str, Any], which: str) -> Size | None:
    """Of the data to train on (``data``) or to evaluate on (``eval``) where that is no work: what is in files here is
    read and checked, large files are counted, and what is to be built is known."""
    setting = value["data.prompt_dataset" if which == "data" else "eval.dataset"]
    if setting is None and value["oger.task.name"]:
        return Size(value[f"oger.task.{'train' if which == 'data' else 'eval'}_problems"])
    files = local_files(setting)
    if files and sum(file.stat().st_size for file in files) <= READ_WHOLE:
        rows = rows_of(value, which)
        if which == "data":
            require_teachers(value, rows)
        return Size.of_rows(rows)
    return counted(files) if files else None


def _run_dir(args: argparse.Namespace, recipe: Path | None, *, overwrite: bool) -> Path:
    """The run's folder. One that nobody named is numbered on past those that hold a run."""
    value = vars(args)
    wanted = Path(value["oger.run_dir"] or Path("runs") / (recipe.stem if recipe else "train_ppo_ray")).absolute()
    folder, number = wanted, 1
    while not (value["oger.run_dir"] or value["ckpt.load_enable"] or overwrite) and trained(folder):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _template_flags(args: argparse.Namespace) -> list[str]:
    """What a named template means downstream: the chat template, or stop rules where the user has none."""
    value = vars(args)
    flags = ["--data.apply_chat_template"] if value["oger.prompt_template"] == "chat" else []
    stop = RolloutSettings.of(value).stop_texts
    return flags + ([f"--oger.stop={json.dumps(stop)}"] if stop and not value["oger.stop"] else [])


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
