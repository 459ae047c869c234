"""Starts Ray, or joins the cluster at RAY_ADDRESS, and runs openrlhf.cli.train_ppo_ray with the recipe's classes."""

import argparse
import contextlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from oger_recipe.cpu import CPU_ENVIRONMENT
from oger_recipe.errors import RecipeError, RunDied
from oger_recipe.plugin.driver import worker_logs
from oger_recipe.plugin.driver.deaths import Processes, why

_CLEAR_UP_S = 30  # what the watcher may take


def launch(
    flags: list[str],
    run_dir: Path,
    *,
    cpu: bool,
    logical_gpus: int,
    verbose: bool,
    environment: dict[str, str],
    lock: int,
) -> None:
    """Trains with OpenRLHF's ``flags``; returns when the model is saved. Worker logs end up in ``run_dir/logs``.

    ``environment`` is set in every process of the run. ``lock`` is the descriptor of the run folder's lock, which is
    held until nothing of the run is left.
    Raises:
        RunDied: something of the run died or failed; the message is a sentence for the user.
    """
    environment = environment | _environment(run_dir) | (CPU_ENVIRONMENT if cpu else {})
    os.environ.update(CPU_ENVIRONMENT if cpu else {})
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logs, joins = run_dir / "logs", "RAY_ADDRESS" in os.environ
    cleared = contextlib.nullcontext() if joins else _cleared_up(logs, lock)
    with _driver_output(logs / "driver.log", verbose), cleared as folder, Processes(os.getpid()) as processes:
        on_term = signal.getsignal(signal.SIGTERM)
        context = _start_ray(environment, cpu, logical_gpus, verbose, folder)
        signal.signal(signal.SIGTERM, on_term)  # Ray has put its own
        session_logs = Path(context.address_info["session_dir"]) / "logs"
        try:
            _run_openrlhf(flags)
        except Exception as error:
            if isinstance(error, RecipeError) and not isinstance(error, ray.exceptions.RayTaskError):
                raise  # of this process; the controller's is under pages of Ray
            raise RunDied(why(error, processes, session_logs, run_dir)) from error
        finally:
            job = ray.get_runtime_context().get_job_id()
            ray.shutdown()
            if joins:
                worker_logs.keep(session_logs, logs, job)


def _environment(run_dir: Path) -> dict[str, str]:
    """Of every process of the run; what the user has set stays."""
    defaults = {"TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | {"OGER_RUN_DIR": str(run_dir)}


@contextlib.contextmanager
def _cleared_up(logs: Path, lock: int) -> Iterator[Path]:
    """A folder for whatever the run's processes keep for the while; gone afterwards, and all of them with it.

    Also when this process is killed: see watcher.py.
    """
    parent = Path(os.environ.get("RAY_TMPDIR", "/tmp"))  # not TMPDIR: the paths of sockets have to be short
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="oger-", dir=parent))
    ended, alive = os.pipe()
    command = [sys.executable, "-m", "oger_recipe.plugin.driver.watcher", str(folder), str(logs)]
    # In a session of its own: Ctrl-C in the terminal does not reach it.
    watcher = subprocess.Popen(
        command, stdin=ended, pass_fds=(lock,), start_new_session=True, stdout=subprocess.DEVNULL
    )
    os.close(ended)
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)  # vLLM's sockets, by every worker's environment
    try:
        yield folder
    finally:
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
        os.close(alive)
        with contextlib.suppress(subprocess.TimeoutExpired):
            watcher.wait(_CLEAR_UP_S)


def _start_ray(environment: dict[str, str], cpu: bool, logical_gpus: int, verbose: bool, folder: Path | None):
    shared: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "warning"}
    if folder is None:
        context = ray.init(runtime_env={"env_vars": environment}, **shared)
        _check_cluster(logical_gpus)
        return context
    # What a worker has started ends with it. A killed rollout actor left its engine alive, and where that was waited
    # for (a broadcast of weights) the run hung.
    os.environ.setdefault("RAY_process_group_cleanup_enabled", "true")
    shared["_temp_dir"] = str(folder)
    if not cpu:
        return ray.init(runtime_env={"env_vars": environment}, **shared)
    os.environ.update(environment)  # Ray hands it to the workers that it starts, those in advance too
    # Ray's switch for machines outside any cluster: what it starts then listens on loopback only. The constant was
    # read from the variable when ray was imported; the processes that Ray starts read the variable.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    # Logical resources: Ray only counts them, and OpenRLHF asks for GPUs by number.
    return ray.init(
        num_cpus=logical_gpus + 2,
        num_gpus=logical_gpus,
        include_dashboard=False,
        object_store_memory=512 * 1024**2,
        _node_ip_address="127.0.0.1",
        **shared,
    )


def _check_cluster(gpus: int) -> None:
    """Without enough GPUs the run would wait for ever."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if there < gpus:
        ray.shutdown()
        raise RecipeError(
            f"the Ray cluster at RAY_ADDRESS={os.environ['RAY_ADDRESS']} has {there} GPUs and the run needs {gpus}; "
            "`oger train --dry-run` shows what for"
        )


def _run_openrlhf(flags: list[str]) -> None:
    from oger_recipe.plugin.driver.install import install

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
    """OpenRLHF builds its parser and parses in one block; the recipe's section is added in between."""
    import torch

    from oger_recipe.settings.parser import extend_parser

    parser: Any = argparse.ArgumentParser
    upstream = parser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> argparse.Namespace:
        parser.parse_args = upstream
        extend_parser(self, cpu=not torch.cuda.is_available())
        return self.parse_args(*args, **kwargs)

    parser.parse_args = parse_args
    try:
        yield
    finally:
        parser.parse_args = upstream


@contextlib.contextmanager
def _driver_output(path: Path, verbose: bool) -> Iterator[None]:
    """OpenRLHF and vLLM print pages in the driver; they go to a file unless asked for."""
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
