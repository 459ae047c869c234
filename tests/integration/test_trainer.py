"""What the controller adds to OpenRLHF's trainer and no run is needed to see."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from oger_recipe.files import read_jsonl
from oger_recipe.plugin.controller.trainer import OgerPPOTrainer
from oger_recipe.run_folder import checkpoints


def test_of_the_best_checkpoints_the_newest_alone_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = object.__new__(OgerPPOTrainer)
    trainer.checkpoints, trainer.best_eval_metric_key, trainer.best_eval_metric_value = tmp_path, "solved", -1.0

    def save(self, metrics, step, states) -> None:
        if metrics["solved"] > self.best_eval_metric_value:
            self.best_eval_metric_value = metrics["solved"]
            (tmp_path / "best" / f"global_step{step}_hf").mkdir(parents=True)

    monkeypatch.setattr(OgerPPOTrainer.__base__, "save_best_checkpoint", save)
    (tmp_path / "global_step3_hf").mkdir()
    for step, solved in ((1, 0.1), (2, 0.2), (3, 0.2), (10, 0.5), (11, 0.4)):
        trainer.save_best_checkpoint({"solved": solved}, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "global_step3_hf"]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["global_step10.json", "global_step10_hf"]


def test_a_resumed_run_knows_the_value_of_the_best_checkpoint(tmp_path: Path) -> None:
    """The checkpoint that it goes on from may be older than the best one."""
    trainer = object.__new__(OgerPPOTrainer)
    trainer.checkpoints, trainer.best_eval_metric_value = tmp_path, float("-inf")
    (tmp_path / "best" / "_actor" / "global_step4").mkdir(parents=True)
    checkpoints.seal(tmp_path / "best", 4, metric="solved", value=0.7)
    trainer.restore_best_checkpoint_state(
        {"global_step": 3, "best_eval_metric_key": "solved", "best_eval_metric_value": 0.4}
    )
    assert trainer.best_eval_metric_value == 0.7


def test_the_last_step_is_evaluated_unless_this_attempt_did_so_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed at its last step trains and evaluates nothing before its end."""
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(OgerPPOTrainer, "_evaluate_as", lambda _, when, step: asked.append((when, step)) or {})
    trainer = object.__new__(OgerPPOTrainer)
    trainer.run_dir, trainer.last_step, trainer.client_states = tmp_path, 4, None
    trainer.args = SimpleNamespace(eval=SimpleNamespace(steps=2))
    trainer.save_best_checkpoint = lambda *_: None
    trainer.evaluation = {}
    trainer._evaluate_after()
    assert asked == [("after", 4)] and not (tmp_path / "events.jsonl").exists()
    trainer.evaluation = {"avg_at_8": 0.5}
    trainer._evaluate_after()
    (event,) = read_jsonl(tmp_path / "events.jsonl")
    assert asked == [("after", 4)] and (event["when"], event["step"], event["avg_at_8"]) == ("after", 4, 0.5)


class Group:
    """Policy actors that write one file a checkpoint, and can fail at it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fails = folder, False

    def async_run_method(self, name: str, *, tag: str, **_) -> list:
        (self.folder / "_actor" / tag).mkdir(parents=True)
        if self.fails:
            raise OSError(28, "No space left on device")
        (self.folder / "_actor" / tag / "states.pt").write_bytes(b"states")
        return []


@pytest.fixture()
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OgerPPOTrainer:
    monkeypatch.setattr(ray, "get", lambda done: done)  # which would start a cluster, and these actors are here
    trainer = object.__new__(OgerPPOTrainer)
    trainer.checkpoints, trainer.client_states, trainer.critic_model_group = tmp_path, {}, None
    trainer.best_eval_metric_key = trainer._latest_eval_metric_value = None
    trainer.best_eval_metric_value, trainer.solve_rates = 0.0, [0.5]
    trainer.args = SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path), max_num=1, max_mem=float("inf")))
    trainer.actor_model_group = Group(tmp_path)
    return trainer


def test_the_previous_checkpoint_goes_after_the_new_one_is_whole(trainer: OgerPPOTrainer, tmp_path: Path) -> None:
    trainer._save(1)
    trainer.actor_model_group.fails = True
    with pytest.raises(OSError):
        trainer._save(2)
    first, second = checkpoints.found(tmp_path)
    assert (first.step, first.fault) == (1, None) and second.fault == "its write was not finished"
    trainer.actor_model_group.fails = False
    trainer._save(2)
    assert [(one.step, one.fault) for one in checkpoints.found(tmp_path)] == [(2, None)]


def test_a_step_that_solved_nothing_does_not_cost_the_last_good_checkpoint(
    trainer: OgerPPOTrainer, tmp_path: Path
) -> None:
    for step, solve_rate in enumerate((0.5, 0.0, 0.0, 0.0), start=1):
        trainer.solve_rates = [solve_rate]
        trainer._save(step)
    assert [one.step for one in checkpoints.found(tmp_path)] == [1, 4]
