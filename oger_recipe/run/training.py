"""One training run from parsed flags: check, build or read the data, write the run folder, train, summarise."""

import argparse
import contextlib
import io
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oger_recipe.base import remote_code
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import to_json
from oger_recipe.base.imports import installed
from oger_recipe.base.machine import machine
from oger_recipe.base.secrets import handed_on
from oger_recipe.checks.disk import sizes as sizes_on_disk
from oger_recipe.checks.job import Job
from oger_recipe.checks.machine import gpus_by_role, gpus_found, machine_problems
from oger_recipe.checks.model_files import fault
from oger_recipe.checks.notes import notes
from oger_recipe.checks.plan import Size, describe
from oger_recipe.checks.preflight import stop_on_problems
from oger_recipe.checks.settings import models_of_run, recipe_problems, refuse, reward_models
from oger_recipe.grading.pool import GradingSettings
from oger_recipe.lab.built_in_models import PRMS
from oger_recipe.run import resume
from oger_recipe.run.ends import ends_with_checkpoint, explained, stoppable, typed
from oger_recipe.run.inputs import leaves_task_unused, with_task, write_data
from oger_recipe.run.rows import needs_hub, sizes
from oger_recipe.run.sft import supervise
from oger_recipe.run.supervision import Supervised
from oger_recipe.run_folder import own_files, room
from oger_recipe.run_folder.attempt import (
    begin_again,
    begin_anew,
    check_continued,
    check_folder,
    check_free,
    check_inputs,
    cut_back,
    locked,
    mark_resumed,
    trained,
)
from oger_recipe.run_folder.records import BEGAN, event
from oger_recipe.settings.derived import with_template
from oger_recipe.settings.flags import flags_of
from oger_recipe.settings.recipe_file import set_in, write_resolved


def train(
    job: Job,
    parser: argparse.ArgumentParser,
    *,
    dry_run: bool = False,
    overwrite: bool = False,
    supervisor: Supervised | None = None,
) -> None:
    """Run one training job; a dry run goes the same way up to the start, without the run's folder, and says what the
    job would do. ``supervisor``: of the command, if it restarts a run that fails.

    Raises:
        RecipeError: the run cannot start, and nothing was started; or it failed.
        SystemExit: it was stopped by a signal.
    """
    started = time.time()
    job = _without_unused_task(job)
    _check_recipe(job, parser)
    remote_code.allow(job.value)
    if overwrite and job.resumes:
        raise RecipeError("--overwrite removes the earlier run, --ckpt.load_enable resumes it: choose one")
    checks: tuple[Callable[[], None], ...] = (
        lambda: refuse(_lacking(job)),
        lambda: _check_here(job),
        lambda: _check_attempt(job, parser, supervisor, overwrite=overwrite),
    )
    if dry_run:
        _plan(job, [str(error) for error in map(_refusal, checks) if error])
        return
    for check in checks:
        check()
    try:
        with _lock(job, supervisor) as lock, stoppable(job.run_dir, job.checkpoints, sys.argv):
            held = (lock, supervisor.line) if supervisor else (lock,)
            try:
                _attempt(job, parser, held, supervisor, overwrite=overwrite, started=started)
            finally:
                own_files.note_models(job.run_dir)
    finally:
        page_at_end(job.run_dir)


@contextlib.contextmanager
def _lock(job: Job, supervisor: Supervised | None) -> Iterator[int]:
    """Hold the run folder's lock, which a supervisor keeps from the first attempt on."""
    if supervisor is not None and supervisor.lock is not None:
        yield supervisor.lock
        return
    with locked(job.run_dir, supervisor.pid if supervisor else None) as lock:
        if supervisor is not None:
            supervisor.keep(lock, job.run_dir, job.checkpoints, job.value["oger.stall_minutes"])
        yield lock


def _without_unused_task(job: Job) -> Job:
    if not leaves_task_unused(job.value):
        return job
    evaluated = "" if job.value["eval.dataset"] else "; nothing is evaluated: eval.dataset is not set"
    task = job.value["oger.task.name"]
    print(
        f"note: the task {task} is not built: data.prompt_dataset and actor.model_name_or_path are given{evaluated}",
        flush=True,
    )
    return job.having({"oger.task.name": None})


def _check_recipe(job: Job, parser: argparse.ArgumentParser) -> None:
    """Raise RecipeError for settings that no machine can run, with what this one lacks; else print notes."""
    problems = recipe_problems(job.value)
    if problems and job.recipe:
        problems = recipe_problems(job.value, set_in(job.recipe, parser, job.value))
    refuse([*problems, *_lacking(job)] if problems else [])
    for note in notes(job.value, parser.get_default):
        print(f"note: {note}", flush=True)


def _lacking(job: Job) -> list[str]:
    return machine_problems(job.value, cpu=job.cpu, gpus_here=gpus_found(job.value))


def _check_here(job: Job) -> None:
    """Raise RecipeError for what keeps the run from working on this machine, as it is now."""
    stop_on_problems(job)
    models = [named for named in models_of_run(job.value) if named.model not in PRMS]  # these are still to be trained
    for refusal in remote_code.untrusted(job.value, models, hub=True):
        raise RecipeError(refusal)


def _check_attempt(
    job: Job, parser: argparse.ArgumentParser, supervisor: Supervised | None, *, overwrite: bool
) -> None:
    """Raise RecipeError where the run may not begin in its folder, or not resume there with these settings."""
    if supervisor is None or supervisor.lock is None:
        check_free(job.run_dir)
    if not job.resumes:
        begins_again = supervisor is not None and supervisor.begins_again
        check_folder(job.run_dir, job.checkpoints, overwrite=overwrite or begins_again)
        check_inputs(job.run_dir, job.value)
        return
    checkpoint, passed_over = resume.choose(job.checkpoints)
    check_continued(job.run_dir)
    job = job.having(with_template(with_task(job.value, build_policy=False)))
    of_settings = resume.check_settings(job.value, parser, job.run_dir / "recipe.yaml")
    of_records = resume.check_records(job.value, job.run_dir, checkpoint)
    for note in [*of_settings, *of_records, *passed_over]:
        print(f"note: {note}", flush=True)
    resume.check_learnt(job.value, job.checkpoints, checkpoint)


def _refusal(check: Callable[[], None]) -> RecipeError | None:
    try:
        check()
    except RecipeError as error:
        return error
    return None


def _plan(job: Job, refusals: list[str]) -> None:
    """Say what the run would do. Raises RecipeError, at last, where it would not start here.

    The data is prepared as for the run, which finds it in oger.data_cache. Raises RecipeError for data that no machine
    could train on, too.
    """
    has_own_model = bool(job.value["actor.model_name_or_path"])
    try:
        job = job.having(with_template(with_task(job.value, build_policy=False)))
        unseen = _unseen(job.value, refusals, has_own_model=has_own_model)
        training, evaluation = sizes(job.value) if unseen else _prepared(job.value)
    except RecipeError as error:
        raise RecipeError("\n".join([*refusals, str(error)])) from None
    print(describe(job.value, training, evaluation, cpu=job.cpu))
    judges = [named for named in reward_models(job.value) if named.model in PRMS]
    untrained = [f"{named.key}: {named.model}: the run trains it first" for named in judges]
    if not_looked_at := [*untrained, *unseen]:
        print("\n  ".join(["\nnot checked:", *not_looked_at]))
    if refusals:
        raise RecipeError("\n".join([*refusals, "  The plan is above; the run would not start here."]))
    print(f"\non {machine()}:\n  the run can start", flush=True)


def _unseen(value: Mapping[str, Any], refusals: list[str], *, has_own_model: bool) -> list[str]:
    """Say what keeps the data from being prepared before the run."""
    model = Path(value["actor.model_name_or_path"])
    if not (has_own_model or model.exists()):
        return ["lengths of prompts, and teachers: the run builds the task's policy and tokenizer first"]
    if refusals and (needs_hub(value) or fault(model)):
        return ["lengths of prompts, and teachers: model or data cannot be loaded"]
    return []


def _prepared(value: Mapping[str, Any]) -> tuple[Size, Size | None]:
    with tempfile.TemporaryDirectory() as folder:
        *_, (training, evaluation) = write_data(value, Path(folder))
    return Size.of_counts(training), Size.of_counts(evaluation) if evaluation else None


def _attempt(
    job: Job,
    parser: argparse.ArgumentParser,
    held: Sequence[int],
    supervisor: Supervised | None,
    *,
    overwrite: bool,
    started: float,
) -> None:
    """Make one attempt at the run whose folder is held: begin it, or resume where the last one broke off."""
    job = job.having(with_template(with_task(job.value)))
    built = time.time()
    if job.resumes:
        checkpoint, _ = resume.choose(job.checkpoints)
        mark_resumed(job.run_dir)
        resume.load(job.checkpoints, checkpoint)
        cut_back(job.run_dir, checkpoint.step)
    elif supervisor is not None and supervisor.begins_again:
        begin_again(job.run_dir, job.checkpoints)
    else:
        if overwrite:  # only a run with data to train on removes the earlier one
            with contextlib.redirect_stdout(io.StringIO()):  # write_data says it again below
                _prepared(job.value)
        begin_anew(job.run_dir, job.checkpoints, overwrite=overwrite)
    resumed_at = checkpoint.step if job.resumes else 0
    event(job.run_dir, BEGAN, since=started, resumed_at=resumed_at)
    if supervisor is not None:
        supervisor.began(resumed_at)
    prepared_data, grading, _ = write_data(job.value, job.run_dir)
    _write_identity(job)
    job = job.having(prepared_data)
    prepared = time.time()
    if job.value["oger.sft.epochs"]:
        job = job.having({"actor.model_name_or_path": str(supervise(job))})
    supervised = time.time()
    seconds = {"task": built - started, "data": prepared - built, "supervised": supervised - prepared}
    _launch(job, flags_of(job.value, parser), grading, seconds, started, held)


def _launch(
    job: Job,
    flags: list[str],
    grading: GradingSettings,
    seconds: dict[str, float],
    started: float,
    held: Sequence[int],
) -> None:
    """Launch the run; ``seconds``: of the stages before."""
    from oger_recipe.pipeline.driver.launch import launch
    from oger_recipe.report.console import Console
    from oger_recipe.report.summary import Report

    value, run_dir = job.value, job.run_dir
    gpus = value["oger.logical_gpus"] or sum(gpus_by_role(value).values())
    environment = {"OGER_GRADING": grading.to_json(), room.ENVIRONMENT: to_json(sizes_on_disk(value))}
    environment |= handed_on(value, run_dir) | remote_code.environment(value)
    verbose = value["oger.verbose"]
    report = Report(run_dir, seconds, started)
    ends = ends_with_checkpoint(run_dir, saves=not value["ckpt.disable_ds"])
    with explained(run_dir, job.checkpoints, sys.argv), ends, Console(report):
        launch(
            flags,
            run_dir,
            cpu=job.cpu,
            logical_gpus=gpus,
            verbose=verbose,
            environment=environment,
            held=held,
            stall_minutes=value["oger.stall_minutes"],
        )


def page_at_end(run_dir: Path) -> None:
    """Write the page of a run that has ended, however it did; its folder is free by now, and says so on the page."""
    if not trained(run_dir):
        return
    from oger_recipe.report.page.write import write_page

    page = run_dir / own_files.PAGE
    try:
        write_page([run_dir], page)
        print(f"page of the run: {page}", flush=True)
    except Exception as error:  # a trained model is not lost to a page, nor a failure's reason hidden
        print(f"note: {page} could not be written: {type(error).__name__}: {error}", flush=True)


def _write_identity(job: Job) -> None:
    """Write what it takes to run the same again: resolved recipe, command line, environment, versions."""
    write_resolved(job.value, job.run_dir / "recipe.yaml")
    note = "# The command as typed. recipe.yaml beside it holds every setting that it set.\n"
    (job.run_dir / own_files.COMMAND).write_text(note + typed(sys.argv))
    versions = sorted({f"{name}=={version}" for name, version in installed()}, key=str.lower)
    (job.run_dir / "environment.json").write_text(
        to_json(
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
