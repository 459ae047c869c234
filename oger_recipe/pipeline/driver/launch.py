"""Runs openrlhf.cli.train_ppo_ray with the recipe's classes, on a Ray of its own or on the cluster at RAY_ADDRESS."""

import argparse
import contextlib
import importlib
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.errors import RecipeError, RunDied, RunStopped
from oger_recipe.base.fork_request import PYTHON
from oger_recipe.base.machine import cluster_address
from oger_recipe.pipeline.driver import nodes
from oger_recipe.pipeline.driver.deaths import Processes, why
from oger_recipe.pipeline.driver.stalls import StallWatch
from oger_recipe.pipeline.driver.start_ray import cleared_up, run_environment, start_ray
from oger_recipe.pipeline.driver.template import template
from oger_recipe.run_folder import worker_logs


def launch(
    flags: list[str],
    run_dir: Path,
    *,
    cpu: bool,
    logical_gpus: int,
    verbose: bool,
    environment: dict[str, str],
    held: Sequence[int],
    stall_minutes: float | None = None,
) -> None:
    """Train with OpenRLHF's ``flags``; return when the model is saved. Worker logs end up in ``run_dir/logs``.

    ``environment`` is set in every process of the run. ``held``: descriptors, as of the run folder's lock, that
    stay open until nothing of the run is left.
    Raises:
        RunDied: something of the run died, failed or stood still (``stall_minutes``: the setting); the message is a
            sentence for the user.
        RunStopped: it was asked to end after its step.
    """
    environment = environment | run_environment(cpu) | {"OGER_RUN_DIR": str(run_dir)}
    logs, joins = run_dir / "logs", cluster_address() is not None
    cleared = contextlib.nullcontext() if joins else cleared_up(logs, held)
    with (
        _driver_output(logs / "driver.log", verbose),
        cleared as folder,
        Processes(os.getpid()) as processes,
        StallWatch(run_dir, stall_minutes, processes, joins=joins),
        template(folder) if cpu and folder else contextlib.nullcontext() as python,
    ):
        if python is not None:
            environment |= {PYTHON: str(python)}
        session_logs = logs  # until Ray has some
        try:
            # Before Ray, beside the template's own imports. While Ray starts in its thread, its forks and imports here
            # can wait for each other's locks for ever.
            importlib.import_module("oger_recipe.pipeline.driver.install")
            context = start_ray(environment, cpu, logical_gpus, verbose, folder)
            session_logs = Path(context.address_info["session_dir"]) / "logs"
            with processes.needing_ray():
                _run_openrlhf(flags)
        except RunStopped:
            raise
        except Exception as error:
            if isinstance(error, RecipeError) and not isinstance(error, ray.exceptions.RayTaskError):
                raise  # of this process; the controller's is under pages of Ray
            if (job := _job(joins)) and (sentence := nodes.lost(job)):
                raise RunDied(sentence) from error
            raise RunDied(why(error, processes, session_logs, run_dir)) from error
        finally:
            job = _job(joins)
            ray.shutdown()
            if job is not None:
                worker_logs.keep(session_logs, logs, job)


def _job(joins: bool) -> str | None:
    """Return the id of the job in the cluster that the run has joined; None where it has not. Without a connection,
    Ray's own answer would be to start a Ray, or to join once more."""
    return ray.get_runtime_context().get_job_id() if joins and ray.is_initialized() else None


def _run_openrlhf(flags: list[str]) -> None:
    from oger_recipe.pipeline.driver.install import install

    install()
    module = "openrlhf.cli.train_ppo_ray"
    argv, sys.argv = sys.argv, [module, *flags]
    try:
        with _recipe_on_its_parser():
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.argv = argv


@contextlib.contextmanager
def _recipe_on_its_parser() -> Iterator[None]:
    """Add the recipe's section to OpenRLHF's parser, which is built and parses in one block, in between."""
    from oger_recipe.settings.parser import extend_parser

    parser: Any = argparse.ArgumentParser
    upstream = parser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> argparse.Namespace:
        parser.parse_args = upstream
        extend_parser(self, cpu=is_without_cuda())
        return self.parse_args(*args, **kwargs)

    parser.parse_args = parse_args
    try:
        yield
    finally:
        parser.parse_args = upstream


@contextlib.contextmanager
def _driver_output(path: Path, verbose: bool) -> Iterator[None]:
    """Send the pages that OpenRLHF and vLLM print in the driver to a file, unless ``verbose``."""
    if verbose:
        yield
        return
    with path.open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        console = os.dup(2)
        os.dup2(log.fileno(), 2)  # DeepSpeed tries the linker when it is imported, and that writes there itself
        try:
            yield
        finally:
            os.dup2(console, 2)
            os.close(console)
