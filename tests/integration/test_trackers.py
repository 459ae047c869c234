"""What trackers are given: the same names everywhere, and one run however often it is resumed.

TensorBoard is always here. trackio, MLflow and W&B write to this disk, where their packages are installed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl
from oger_recipe.pipeline.controller.trackers import KINDS, Trackers
from oger_recipe.settings.run import TRACKERS

# (step, metrics): the checkpoint is of step 2, and the attempt broke off after step 3.
FIRST = [(1, 0.25), (2, 0.5), (3, 0.75)]
RESUMED = [(3, 0.125), (4, 1.0)]
SOLVED, AVG = "rollout/solve_rate", "eval_average_avg_at_8"


@pytest.fixture(autouse=True)
def on_this_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


@pytest.fixture()
def attempt(tmp_path: Path, nested: Callable[..., Any]) -> Callable[..., None]:
    """Begins an attempt, logs these steps and an evaluation behind the last one, and ends."""

    def made(steps: list[tuple[int, float]], resumed_at: int, *flags: str) -> None:
        (tmp_path / "run").mkdir(exist_ok=True)
        args = nested(f"--oger.run_dir={tmp_path / 'run'}", "--logger.wandb.project=mine", *flags)
        args.logger.wandb.run_name = f"named at {resumed_at}"  # OpenRLHF names a run by the minute
        trackers = Trackers.of_run(args, tmp_path / "run", resumed_at)
        for step, solved in steps:
            metrics = {
                SOLVED: solved,
                "oger/held_out_fall": math.nan,
                "reward/judge": 0.0,
                "reward/judge/said {so}": 1.0,
            }
            trackers.log_train(step, metrics | {"generated_samples": ["a text", 0.5]})
        trackers.log_eval(steps[-1][0], {AVG: solved})
        trackers.close()
        assert notes(tmp_path / "run") == []

    return made


def notes(run_dir: Path) -> list[str]:
    return [event["text"] for event in read_jsonl(run_dir / "events.jsonl")]


def test_tensorboard_hides_what_came_after_the_checkpoint(attempt, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    there = f"--logger.tensorboard_dir={tmp_path / 'tensorboard'}"
    attempt(FIRST, 0, there)
    attempt(RESUMED, 2, there)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    shown = EventAccumulator(str(folder)).Reload()
    assert [(each.step, each.value) for each in shown.Scalars(f"train/{SOLVED}")] == [*FIRST[:2], *RESUMED]
    assert [(each.step, each.value) for each in shown.Scalars(f"eval/{AVG}")] == [(4, 1.0)]


# What each of them shows: all values of a metric, the steps of both attempts in their order, and where it resumed.
LOGGED, MARK = [*FIRST, *RESUMED], [(2, 2.0)]


def test_mlflow_continues_its_run_and_marks_where_it_resumed(attempt, tmp_path: Path) -> None:
    for module, package in TRACKERS["mlflow"].items():
        pytest.importorskip(module, reason=f"pip install {package}")
    from mlflow.tracking import MlflowClient

    attempt(FIRST, 0, "--oger.trackers", "mlflow")
    attempt(RESUMED, 2, "--oger.trackers", "mlflow")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["logger.wandb.project"]) == (
        "named at 0", "FINISHED", "mine",
    )  # fmt: skip

    def shown(name: str) -> list[tuple[int, float]]:
        return sorted((each.step, each.value) for each in client.get_metric_history(run.info.run_id, name))

    assert shown(f"train/{SOLVED}") == sorted(LOGGED) and shown("train/resumed_at") == MARK
    assert shown(f"eval/{AVG}") == [(3, 0.75), (4, 1.0)]
    assert (
        shown("train/reward/judge/said _so_") and shown("train/reward/judge") and not shown("train/oger/held_out_fall")
    )


def test_trackio_continues_its_run_and_marks_where_it_resumed(attempt, tmp_path: Path) -> None:
    trackio = pytest.importorskip("trackio", reason="pip install trackio")  # which reads TRACKIO_DIR as it is imported
    from trackio.sqlite_storage import SQLiteStorage

    attempt(FIRST, 0, "--oger.trackers", "trackio")
    attempt(RESUMED, 2, "--oger.trackers", "trackio")
    assert (tmp_path / "trackio" / "mine.db").exists()
    (run,) = [each for each in trackio.Api().runs("mine") if each.name.startswith("named at 0-")]
    logged = SQLiteStorage.get_logs("mine", run.name)

    def shown(name: str) -> list[tuple[int, float]]:
        return [(each["step"], each[name]) for each in logged if name in each]

    assert shown(f"train/{SOLVED}") == LOGGED and shown("train/resumed_at") == MARK
    assert shown(f"eval/{AVG}") == [(3, 0.75), (4, 1.0)] and not shown("train/oger/held_out_fall")


def test_wandb_continues_its_run_offline(attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    attempt(FIRST, 0, "--logger.wandb.key=env")
    attempt(RESUMED, 2, "--logger.wandb.key=env")
    kept = json.loads((tmp_path / "run" / "trackers.json").read_text())
    folders = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert [each.name.rpartition("-")[2] for each in folders] == [kept["id"]] * len(folders)
    assert wandb.run is None


class Recorder:
    """A tracker that keeps what it is given, until it breaks."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.breaks = self.closed = False

    def log_train(self, global_step: int, logs_dict: Any) -> None:
        if self.breaks:
            raise ConnectionError(f"no route to host, with key {os.environ['WANDB_API_KEY']}")
        self.steps.append(global_step)

    log_eval = log_train

    def close(self) -> None:
        self.closed = True


def test_a_tracker_that_fails_is_reported_once_and_the_others_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    broken, whole = Recorder(), Recorder()
    trackers = Trackers(tmp_path, {"mlflow": broken, "trackio": whole})
    for step in (1, 2, 3):
        broken.breaks = step > 1
        trackers.log_train(step, {})
        trackers.log_eval(step, {})
    trackers.close()
    assert (broken.steps, whole.steps) == ([1, 1], [1, 1, 2, 2, 3, 3]) and whole.closed
    assert notes(tmp_path) == [
        "note: mlflow gets no more metrics (ConnectionError: no route to host, with key $WANDB_API_KEY); "
        "metrics.jsonl has them all"
    ]


def test_a_tracker_that_cannot_start_stops_a_new_run_and_no_resumed_one(nested, tmp_path: Path, monkeypatch) -> None:
    def gone(*_: Any) -> None:
        raise OSError("no such server")

    monkeypatch.setitem(KINDS, "mlflow", gone)
    args = nested(f"--oger.run_dir={tmp_path}", "--oger.trackers", "mlflow", "--logger.wandb.run_name=n")
    with pytest.raises(RecipeError, match="mlflow cannot be started: OSError: no such server"):
        Trackers.of_run(args, tmp_path, 0)
    Trackers.of_run(args, tmp_path, 5).log_train(6, {})
    (note,) = notes(tmp_path)
    assert note.startswith("note: mlflow gets no more metrics (OSError: no such server)")


def test_every_tracker_that_may_be_chosen_is_one() -> None:
    assert set(TRACKERS) == KINDS.keys() - {"TensorBoard", "W&B"}


# Trackers and what they need beside requirements.lock, as they were tested. No environment of ours has them.
PACKAGES = (
    "trackio==0.43.0", "mlflow-skinny==3.17.2", "wandb==0.31.0", "alembic==1.20.1", "brotli==1.2.1",
    "databricks-sdk==0.162.0", "gitdb==4.0.12", "gitpython==3.2.1", "gradio-client==2.7.2",
    "importlib-metadata==10.2.0", "lazy-importer==0.1.0", "mako==1.4.3", "orjson==3.13.0", "platformdirs==4.14.7",
    "python-multipart==0.0.34", "smmap==5.0.3", "sqlalchemy==2.1.9", "sqlparse==0.6.1", "xxhash==4.1.0", "zipp==4.1.2",
)  # fmt: skip


@pytest.mark.full
def test_the_trackers_own_packages_pass_the_tests_above(tmp_path: Path) -> None:
    """Only this process reads their folder: with them in the environment other libraries would log to them, too."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(tmp_path / "packages"),
        *PACKAGES,
    ]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"the trackers' packages cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    tests = [sys.executable, "-m", "pytest", __file__, "-k", "mlflow or trackio or wandb", "-p", "no:cacheprovider"]
    found = os.environ | {"PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run([*tests, "-rA"], env=found, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.count("PASSED ") == 3, done.stdout + done.stderr
