"""Where metrics go beside the run folder: TensorBoard and W&B, which OpenRLHF has, trackio and MLflow.

All get the same names, ``train/<metric>`` and ``eval/<metric>``. trackers.json in the run folder keeps what a resumed
run needs to continue there. TensorBoard then hides what was logged after the checkpoint; the others keep it, and get
``train/resumed_at`` as a mark: of two values of a later step, the newer one counts.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any, Protocol, Self
from uuid import uuid4

from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger

from oger_recipe.base.errors import RecipeError, cut
from oger_recipe.base.files import to_json
from oger_recipe.base.secrets import said_by
from oger_recipe.run_folder.own_files import MLFLOW, TRACKERS
from oger_recipe.run_folder.records import event

Metrics = Mapping[str, Any]
Kept = dict[str, str]  # id, run_name, and what a tracker adds
_REASON = 300  # characters


class Tracker(Protocol):
    """OpenRLHF's form of a tracker."""

    def log_train(self, global_step: int, logs_dict: Metrics) -> None: ...
    def log_eval(self, global_step: int, logs_dict: Metrics) -> None: ...
    def close(self) -> None: ...


class Trackers:
    """The trackers of a run. One that fails is reported once, and gets nothing from then on."""

    def __init__(self, run_dir: Path, trackers: Mapping[str, Tracker] | None = None) -> None:
        self._run_dir, self._trackers = run_dir, dict(trackers or {})

    @classmethod
    def of_run(cls, args: Namespace, run_dir: Path, resumed_at: int) -> Self:
        """Start the run's trackers; ``resumed_at``: the last step of the checkpoint, 0 for a new run.

        Raises RecipeError where one cannot start for a new run; a resumed run continues without it.
        """
        kept, trackers = _read(run_dir, args.logger.wandb.run_name), cls(run_dir)
        args.logger.wandb.run_name = kept["run_name"]
        for name in _wanted(args):
            try:
                tracker = KINDS[name](args, kept, resumed_at)
                if resumed_at and name != "TensorBoard":  # which hides what came after
                    tracker.log_train(resumed_at, {"resumed_at": resumed_at})
                trackers._trackers[name] = tracker
            except Exception as error:
                if not resumed_at:
                    raise RecipeError(f"{name} cannot be started: {cut(said_by(error), _REASON)}") from error
                trackers._lost(name, error)
        (run_dir / TRACKERS).write_text(to_json(kept, indent=2))
        return trackers

    def log_train(self, step: int, metrics: Metrics) -> None:
        self._all(lambda tracker: tracker.log_train(step, metrics))

    def log_eval(self, step: int, metrics: Metrics) -> None:
        self._all(lambda tracker: tracker.log_eval(step, metrics))

    def close(self) -> None:
        self._all(lambda tracker: tracker.close())

    def _all(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as error:  # whatever a library, a disk or a server does: it is not what is trained
                del self._trackers[name]
                self._lost(name, error)

    def _lost(self, name: str, error: Exception) -> None:
        text = f"note: {name} gets no more metrics ({cut(said_by(error), _REASON)}); metrics.jsonl has them all"
        event(self._run_dir, "note", text=text)


def _wanted(args: Namespace) -> list[str]:
    of_openrlhf = {"TensorBoard": args.logger.tensorboard_dir, "W&B": args.logger.wandb.key}
    return [*(name for name, on in of_openrlhf.items() if on), *dict.fromkeys(args.oger.trackers)]


def _read(run_dir: Path, run_name: str) -> Kept:
    path = run_dir / TRACKERS
    known: Kept = json.loads(path.read_text()) if path.exists() else {"id": uuid4().hex[:8], "run_name": run_name}
    return known


class TensorBoard(TensorboardLogger):  # type: ignore[misc]
    """OpenRLHF's, in one folder for all attempts; what came after the checkpoint is hidden."""

    def __init__(self, args: Namespace, kept: Kept, resumed_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(args.logger.tensorboard_dir) / kept["run_name"]
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=resumed_at + 1 if resumed_at else None)


class WandB(WandbLogger):  # type: ignore[misc]
    """OpenRLHF's, which takes the run's id from the environment; evaluations are drawn over steps."""

    def __init__(self, args: Namespace, kept: Kept, resumed_at: int) -> None:
        os.environ.setdefault("WANDB_RUN_ID", kept["id"])
        os.environ.setdefault("WANDB_RESUME", "allow")
        super().__init__(args)
        self.handle.define_metric("eval/*", step_metric="eval/global_step")  # upstream's names one that is not logged


class _Prefixed:
    """A tracker that takes numbers with a step."""

    def log_train(self, global_step: int, logs_dict: Metrics) -> None:
        self._log(global_step, _numbers("train", logs_dict))

    def log_eval(self, global_step: int, logs_dict: Metrics) -> None:
        self._log(global_step, _numbers("eval", logs_dict))

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        raise NotImplementedError


class Trackio(_Prefixed):
    """A run of trackio, which resumes by name; TRACKIO_DIR, TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say where."""

    def __init__(self, args: Namespace, kept: Kept, resumed_at: int) -> None:
        import trackio

        name = f"{kept['run_name']}-{kept['id']}"
        self._run = trackio.init(args.logger.wandb.project, name=name, resume="allow", config=dict(_flat(args)))

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow(_Prefixed):
    """A run of MLflow at MLFLOW_TRACKING_URI, or in a database in the run folder.

    MLflow's own folders cannot hold both reward/rule and reward/rule/format.
    """

    def __init__(self, args: Namespace, kept: Kept, resumed_at: int) -> None:
        # A server that is gone must not hold up the run: MLflow itself would ask for some minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(args.oger.run_dir).absolute() / MLFLOW}"
        self._client = MlflowClient(tracking_uri=where)
        if "mlflow" not in kept:
            kept["mlflow"] = self._new_run(args.logger.wandb.project, kept["run_name"])
            settings = [Param(flag, str(value)[:_MLFLOW_LONGEST]) for flag, value in _flat(args)]
            for start in range(0, len(settings), _MLFLOW_PARAMS):
                self._client.log_batch(kept["mlflow"], params=settings[start : start + _MLFLOW_PARAMS])
        self._run = kept["mlflow"]
        if resumed_at:
            self._client.update_run(self._run, "RUNNING")

    def _new_run(self, experiment: str, name: str) -> str:
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        run_id: str = self._client.create_run(number, run_name=name).info.run_id
        return run_id

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_NOT_IN_MLFLOW.sub("_", name), value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


_MLFLOW_PARAMS, _MLFLOW_LONGEST = 100, 500  # settings in a request, characters of one: any server's limits
_NOT_IN_MLFLOW = re.compile(r"[^\w\-./ ]")

KINDS: dict[str, Callable[[Namespace, Kept, int], Tracker]] = {
    "TensorBoard": TensorBoard,
    "W&B": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def _numbers(prefix: str, metrics: Metrics) -> dict[str, float]:
    """Name what was measured as OpenRLHF's trackers do; no tracker but these two takes texts or nan."""
    return {
        f"{prefix}/{name}": float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _flat(args: Namespace, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all settings by flag, lists as text; keys were taken out of them before the run began."""
    for name, value in vars(args).items():
        if isinstance(value, Namespace):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, int | float | str | None) else str(value)
