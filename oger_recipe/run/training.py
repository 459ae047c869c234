"""One training run from parsed flags: check, build or read the data, write the run folder, train, summarise."""

import argparse
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from oger_recipe import remote_code
from oger_recipe.errors import RecipeError
from oger_recipe.files import to_json
from oger_recipe.rewards.grading.pool import GradingSettings
from oger_recipe.run import own_files, resume
from oger_recipe.run.attempt import begin_anew, check_continued, check_folder, check_inputs, cut_back, go_on, locked
from oger_recipe.run.ends import explained, stoppable, typed
from oger_recipe.run.inputs import leaves_task_unused, too_few, with_task, write_data
from oger_recipe.run.job import Job
from oger_recipe.run.plan import describe, on_this_machine
from oger_recipe.run.preflight import findings, stop_on_problems
from oger_recipe.run.rows import sizes
from oger_recipe.run.sft import supervise
from oger_recipe.secrets import handed_on
from oger_recipe.settings.checks import models_of_run, recipe_problems, refuse
from oger_recipe.settings.derived import with_template
from oger_recipe.settings.flags import flags_of
from oger_recipe.settings.machine import gpus_by_role, gpus_found, machine_problems
from oger_recipe.settings.notes import notes
from oger_recipe.settings.recipe_file import set_in, write_resolved


def train(job: Job, parser: argparse.ArgumentParser, *, dry_run: bool = False, overwrite: bool = False) -> None:
    """Runs one training job; a dry run only checks the recipe and says what the job would do.

    Raises:
        RecipeError: the run cannot start, and nothing was started; or it failed.
        SystemExit: it was stopped by a signal.
    """
    started = time.time()
    job = _without_unused_task(job)
    here = _checked(job, parser, dry_run=dry_run)
    remote_code.allow(job.value)
    if overwrite and job.resumes:
        raise RecipeError("--overwrite removes the earlier run, --ckpt.load_enable continues it: choose one")
    if dry_run:
        _plan(job, here)
        return
    stop_on_problems(job)
    for refusal in remote_code.untrusted(job.value, models_of_run(job.value), hub=True):
        raise RecipeError(refusal)
    _check_place(job, overwrite=overwrite)
    with locked(job.run_dir) as lock, stoppable(job.run_dir, job.checkpoints, sys.argv):
        try:
            _attempt(job, parser, lock, overwrite=overwrite, started=started)
        finally:
            own_files.note_models(job.run_dir)


def _check_place(job: Job, *, overwrite: bool) -> None:
    """Refuses the folders before anything is made there."""
    if job.resumes:
        resume.choose(job.checkpoints)
        check_continued(job.run_dir)
    else:
        check_folder(job.run_dir, job.checkpoints, overwrite=overwrite)
        check_inputs(job.run_dir, job.value)


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


def _checked(job: Job, parser: argparse.ArgumentParser, *, dry_run: bool) -> list[str]:
    """What this machine cannot do of the run, which a dry run tells and a run is refused for."""
    problems = recipe_problems(job.value)
    here = machine_problems(job.value, cpu=job.cpu, gpus_here=gpus_found(job.value))
    if problems and job.recipe:
        problems = recipe_problems(job.value, set_in(job.recipe, parser, job.value))
    refuse(problems if dry_run else [*problems, *here])
    for note in notes(job.value, parser.get_default):
        print(f"note: {note}", flush=True)
    return here


def _plan(job: Job, here: list[str]) -> None:
    training, evaluation = sizes(job.value)
    prompts = min(training.rows, job.value["data.max_samples"]) if training else None
    if prompts is not None and prompts < job.value["rollout.batch_size"]:
        raise RecipeError(too_few(prompts, job.value))
    print(describe(job.value, training, evaluation))
    print("\n" + on_this_machine(here, findings(job)))


def _attempt(job: Job, parser: argparse.ArgumentParser, lock: int, *, overwrite: bool, started: float) -> None:
    """One attempt at the run whose folder is held: begins it, or goes on where the last one broke off."""
    chosen = resume.choose(job.checkpoints) if job.resumes else None
    if chosen is None:
        begin_anew(job.run_dir, job.checkpoints, overwrite=overwrite)
    else:
        go_on(job.run_dir)
    job = job.having(with_template(with_task(job.value)))
    built = time.time()
    if chosen is not None:
        checkpoint, passed_over = chosen
        for note in [*resume.check_settings(job.value, parser, job.run_dir / "recipe.yaml"), *passed_over]:
            print(f"note: {note}", flush=True)
        resume.check_learnt(job.value, job.checkpoints, checkpoint)
        cut_back(job.run_dir, checkpoint.step)
        resume.load(job.checkpoints, checkpoint)
    prepared_data, grading = write_data(job.value, job.run_dir)
    _write_identity(job)
    job = job.having(prepared_data)
    prepared = time.time()
    if job.value["oger.sft.epochs"]:
        job = job.having({"actor.model_name_or_path": str(supervise(job))})
    supervised = time.time()
    seconds = {"task": built - started, "data": prepared - built, "supervised": supervised - prepared}
    _launch(job, flags_of(job.value, parser), grading, seconds, started, lock)


def _launch(
    job: Job, flags: list[str], grading: GradingSettings, seconds: dict[str, float], started: float, lock: int
) -> None:
    """``seconds``: what was taken before."""
    from oger_recipe.plugin.driver.launch import launch
    from oger_recipe.report.console import Console
    from oger_recipe.report.summary import Report

    value, run_dir = job.value, job.run_dir
    gpus = value["oger.logical_gpus"] or sum(gpus_by_role(value).values())
    environment = {"OGER_GRADING": grading.to_json()} | handed_on(value, run_dir) | remote_code.environment(value)
    verbose = value["oger.verbose"]
    with explained(run_dir, job.checkpoints, sys.argv), Console(Report(run_dir, seconds, started)):
        launch(flags, run_dir, cpu=job.cpu, logical_gpus=gpus, verbose=verbose, environment=environment, lock=lock)


def _write_identity(job: Job) -> None:
    """What is needed to run the same again: resolved recipe, command line, environment, versions."""
    write_resolved(job.value, job.run_dir / "recipe.yaml")
    note = "# What was typed. recipe.yaml beside it holds every setting that this came to.\n"
    (job.run_dir / own_files.COMMAND).write_text(note + typed(sys.argv))
    versions = sorted({f"{dist.name}=={dist.version}" for dist in metadata.distributions()}, key=str.lower)
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
