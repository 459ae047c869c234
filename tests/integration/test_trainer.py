"""What the controller adds to OpenRLHF's trainer and no run is needed to see."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets.config
import pytest
import ray
import torch
from doubles import Strategy
from openrlhf.trainer.ppo_utils import samples_generator

from oger_recipe.base.errors import RecipeError, RunStopped, SourceFailed
from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.pipeline.controller import interrupts
from oger_recipe.pipeline.controller import trainer as trainer_module
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.controller.trainer import OgerPPOTrainer
from oger_recipe.pipeline.driver.stalls import Silence
from oger_recipe.run_folder import checkpoints, room
from oger_recipe.run_folder.records import AFTER_STEP, AT_ONCE, ask_to_stop, event
from oger_recipe.teachers.store import write_teacher_store


class Group:
    """Policy actors that write one file a checkpoint, and can fail at it; their training says the KLs it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fails = folder, False
        self.kls: list[float] = []
        self.coefficients: list[float] = []
        self.counts: dict[str, float] = {}  # of updates
        self.states: dict[str, float] = {}
        self.saved: list[str] = []

    def async_run_method_batch(self, **_) -> list:
        return []

    def async_run_method(self, method_name: str, **arguments) -> list:
        if method_name == "fit":
            self.coefficients.append(arguments["kl_ctl"])
            return [{"kl": self.kls.pop(0)} | self.counts]
        return [] if method_name == "broadcast_to_vllm" else self._save(**arguments)

    def _save(self, tag: str, client_states: dict, **_) -> list:
        self.states = client_states
        self.saved.append(tag)
        (self.folder / "_actor" / tag).mkdir(parents=True)
        if self.fails:
            raise OSError(28, "No space left on device")
        (self.folder / "_actor" / tag / "states.pt").write_bytes(b"states")
        return []


@pytest.fixture()
def make_trainer(
    tmp_path: Path, nested, policy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., OgerPPOTrainer]:
    """OpenRLHF's controller of a run whose prompts are prepared, and whose checkpoints go to a folder of their own."""
    data = tmp_path / "run" / "data"
    data.mkdir(parents=True)
    write_teacher_store({}, data / "teachers.arrow")
    (data / "counts.json").write_text("{}")
    label = json.dumps({"uid": "u", "answer": "1", "task": "gsm8k"})
    write_jsonl([{"prompt": "1+0?", "label": label}] * 4, data / "train.jsonl")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(ray, "get", lambda done: done)  # which would start a cluster, and these actors are here
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    flags = (
        f"--oger.run_dir={tmp_path / 'run'}", f"--data.prompt_dataset={data / 'train.jsonl'}",
        "--data.input_key=prompt", "--data.label_key=label", "--rollout.batch_size=2",
        "--rollout.n_samples_per_prompt=2", "--train.batch_size=4", "--train.micro_batch_size=4", "--eval.steps=2",
        f"--ckpt.path={folder}", "--ckpt.max_num=1",
    )  # fmt: skip

    def make(*more: str) -> OgerPPOTrainer:
        strategy = Strategy(nested(*flags, *more))
        return OgerPPOTrainer(str(policy_folder), strategy, Group(folder), None, None, None, [])

    return make


@pytest.fixture()
def trainer(make_trainer: Callable[..., OgerPPOTrainer]) -> OgerPPOTrainer:
    return make_trainer()


def test_of_the_best_checkpoints_the_newest_alone_is_kept(
    trainer: OgerPPOTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trainer.best_eval_metric_key = trainer.checkpoints, "solved"

    def save(self, metrics, step, states) -> None:
        if metrics["solved"] > self.best_eval_metric_value:
            self.best_eval_metric_value = metrics["solved"]
            (folder / "best" / f"global_step{step}_hf").mkdir(parents=True)

    monkeypatch.setattr(OgerPPOTrainer.__base__, "save_best_checkpoint", save)
    (folder / "global_step3_hf").mkdir()
    for step, solved in ((1, 0.1), (2, 0.2), (3, 0.2), (10, 0.5), (11, 0.4)):
        trainer.save_best_checkpoint({"solved": solved}, step)
    assert sorted(path.name for path in folder.iterdir()) == ["best", "global_step3_hf"]
    assert sorted(path.name for path in (folder / "best").iterdir()) == ["global_step10.json", "global_step10_hf"]


def test_a_resumed_run_knows_the_value_of_the_best_checkpoint(trainer: OgerPPOTrainer) -> None:
    """The checkpoint that it goes on from may be older than the best one."""
    best = trainer.checkpoints / "best"
    (best / "_actor" / "global_step4").mkdir(parents=True)
    checkpoints.seal(best, 4, metric="solved", value=0.7)
    trainer.restore_best_checkpoint_state(
        {"global_step": 3, "best_eval_metric_key": "solved", "best_eval_metric_value": 0.4}
    )
    assert trainer.best_eval_metric_value == 0.7


def test_the_last_step_is_evaluated_unless_this_attempt_did_so_already(
    trainer: OgerPPOTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed at its last step trains and evaluates nothing before its end."""
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(OgerPPOTrainer, "_evaluate_as", lambda _, when, step: asked.append((when, step)) or {})
    monkeypatch.setattr(OgerPPOTrainer, "save_best_checkpoint", lambda *_: None)
    trainer.progress.step = 4
    trainer._evaluate_after()
    assert asked == [("after", 4)] and not (trainer.run_dir / "events.jsonl").exists()
    trainer.progress.evaluation = {"avg_at_8": 0.5}
    trainer._evaluate_after()
    (event,) = read_jsonl(trainer.run_dir / "events.jsonl")
    assert asked == [("after", 4)] and (event["when"], event["step"], event["avg_at_8"]) == ("after", 4, 0.5)


@pytest.mark.parametrize(
    ("step", "evaluated", "made", "best"),
    [
        (3, [2], [], []),
        (4, [2], [("during", 4)], ["best_global_step4"]),
        (4, [2, 4], [], ["best_global_step4"]),  # between the evaluation and the best checkpoint
        (4, [2, 4, "best"], [], []),
    ],
)
def test_a_resumed_run_makes_up_for_the_evaluation_and_the_best_checkpoint_that_the_attempt_before_did_not_reach(
    trainer: OgerPPOTrainer,
    step: int,
    evaluated: list[int | str],
    made: list[tuple[str, int]],
    best: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint of a step is written before its evaluation, of which eval.steps 2 asks after even steps."""
    asked: list[tuple[str, int]] = []
    trainer.eval_dataloader, trainer.best_eval_metric_key = ["problems"], "eval_average_avg_at_2"
    for number in evaluated:
        if number == "best":
            (trainer.checkpoints / "best" / "_actor" / "global_step4").mkdir(parents=True)
            checkpoints.seal(trainer.checkpoints / "best", 4, metric="eval_average_avg_at_2", value=0.5)
        else:
            average = {"problems": 4, "n": 2, "avg_at_2": number / 8}
            result = {"benchmarks": {}, "average": average}
            (trainer.run_dir / "eval").mkdir(exist_ok=True)
            (trainer.run_dir / "eval" / f"step_{number:05d}.json").write_text(json.dumps(result))
            event(trainer.run_dir, "evaluated", when="during", step=number)

    def evaluate(_: OgerPPOTrainer, when: str, step: int) -> dict[str, float]:
        asked.append((when, step))
        return {"eval_average_avg_at_2": 0.5}

    states = {"global_step": step, "best_eval_metric_key": "eval_average_avg_at_2", "best_eval_metric_value": 0.25}
    monkeypatch.setattr(OgerPPOTrainer, "init_checkpoint_states", lambda _: states)
    monkeypatch.setattr(OgerPPOTrainer, "_evaluate_as", evaluate)
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    trainer.settings = dataclasses.replace(trainer.settings, val_after_train=False)
    trainer.fit()
    assert (asked, trainer.actor_model_group.saved) == (made, best)


def test_a_best_checkpoint_of_an_attempt_that_trained_nothing_says_its_step(
    trainer: OgerPPOTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt resumed after the last step, which was not evaluated. DeepSpeed gives a loaded checkpoint's states a
    key of its own, with which it saves none."""
    loaded = {"global_step": 3, "data_loader_state_dict": {}, "checkpoint_parallel_dimensions": {}}
    monkeypatch.setattr(OgerPPOTrainer.__base__, "init_checkpoint_states", lambda _: loaded)
    monkeypatch.setattr(OgerPPOTrainer, "_evaluate_as", lambda *_: {"solved": 0.5})
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    trainer.best_eval_metric_key = "solved"
    trainer.fit()
    assert trainer.actor_model_group.saved == ["best_global_step3"]
    assert trainer.actor_model_group.states["global_step"] == 3
    assert "checkpoint_parallel_dimensions" not in trainer.actor_model_group.states


@pytest.mark.parametrize("known", [None, {"_actor/global_step3/states.pt": "0" * 64}])
def test_a_checkpoint_that_was_left_without_hashes_gets_them_once_it_is_loaded(
    trainer: OgerPPOTrainer, monkeypatch: pytest.MonkeyPatch, known: dict[str, str] | None
) -> None:
    """Such as one of SIGTERM. Hashes that are there say how it was written, and stay."""
    for step in (2, 3):
        (trainer.checkpoints / "_actor" / f"global_step{step}").mkdir(parents=True)
        (trainer.checkpoints / "_actor" / f"global_step{step}" / "states.pt").write_bytes(b"states")
        checkpoints.seal(trainer.checkpoints, step)
    if known:
        checkpoints.add(trainer.checkpoints, 3, hashes=known)
    loaded = {"global_step": 3, "data_loader_state_dict": {}}
    monkeypatch.setattr(OgerPPOTrainer.__base__, "init_checkpoint_states", lambda _: loaded)
    monkeypatch.setattr(OgerPPOTrainer, "_evaluate_as", lambda *_: {})
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    trainer.fit()
    made = {"_actor/global_step3/states.pt": hashlib.sha256(b"states").hexdigest()}
    assert [one.hashes for one in checkpoints.found(trainer.checkpoints)] == [{}, known or made]


def test_the_previous_checkpoint_goes_after_the_new_one_is_whole(trainer: OgerPPOTrainer) -> None:
    trainer.progress.solved = True
    trainer._save(1)
    trainer.actor_model_group.fails = True
    with pytest.raises(OSError):
        trainer._save(2)
    first, second = checkpoints.found(trainer.checkpoints)
    assert (first.step, first.fault) == (1, None) and second.fault == "it was not written completely"
    trainer.actor_model_group.fails = False
    trainer._save(2)
    assert [(one.step, one.fault) for one in checkpoints.found(trainer.checkpoints)] == [(2, None)]
    trainer.hashing.finish()
    assert [tuple(one.hashes) for one in checkpoints.found(trainer.checkpoints)] == [
        ("_actor/global_step2/states.pt",)
    ]


def test_a_run_that_is_asked_to_end_at_once_does_not_wait_for_the_hashes_of_older_checkpoints(
    trainer: OgerPPOTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it remove what is still read: a file of holes, which takes long to hash."""
    monkeypatch.setattr(trainer_module, "_HASHING_S", 0.05)
    trainer._save(1)
    trainer.hashing.finish()
    with (trainer.checkpoints / "_actor" / "global_step1" / "states.pt").open("r+b") as file:
        file.truncate(2**36)
        trainer.hashing.start(trainer.checkpoints, 1)
        ask_to_stop(trainer.run_dir, AT_ONCE)
        trainer._save(2)
        kept = [one.step for one in checkpoints.found(trainer.checkpoints)]
        file.truncate(0)
    trainer.hashing.finish()
    assert kept == [1, 2]  # ckpt.max_num is 1
    assert [tuple(one.hashes) for one in checkpoints.found(trainer.checkpoints)][1] == (
        "_actor/global_step2/states.pt",
    )


def _larger_than_the_disk(folder: Path) -> int:
    return shutil.disk_usage(folder).free + 2**40


def test_a_checkpoint_that_does_not_fit_is_not_begun(trainer: OgerPPOTrainer) -> None:
    """The one before says how much it takes: its file has holes here, and is larger than what is left of the disk."""
    trainer.progress.solve_rates = [0.5]
    trainer.best_eval_metric_key = "solved"
    trainer._save(1)
    trainer.hashing.finish()
    with (trainer.checkpoints / "_actor" / "global_step1" / "states.pt").open("r+b") as file:
        file.truncate(_larger_than_the_disk(trainer.checkpoints))
    checkpoints.seal(trainer.checkpoints, 1)
    with pytest.raises(RecipeError, match="no room for the checkpoint of step 2: it takes .* GiB, and the disk of "):
        trainer._save(2)
    assert trainer.actor_model_group.saved == ["global_step1"]
    assert [(one.step, one.fault) for one in checkpoints.found(trainer.checkpoints)] == [(1, None)]
    (trainer.checkpoints / "best").mkdir()
    for path in list(trainer.checkpoints.iterdir()):
        if path.name != "best":
            path.rename(trainer.checkpoints / "best" / path.name)
    trainer._save(3)  # the best one may be of a run with other settings
    trainer.best_eval_metric_value = 0.5
    trainer.save_best_checkpoint({"solved": 0.4}, 3)
    with pytest.raises(RecipeError, match="no room for the checkpoint of step 4"):
        trainer.save_best_checkpoint({"solved": 0.6}, 4)
    assert [one.step for one in checkpoints.found(trainer.checkpoints / "best")] == [1]


@pytest.mark.parametrize("what", ["checkpoint", "model"])
def test_the_first_checkpoint_and_the_final_model_have_to_fit_by_the_policys_shape(
    make_trainer: Callable[..., OgerPPOTrainer], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(room.ENVIRONMENT, json.dumps({what: _larger_than_the_disk(tmp_path)}))
    trainer = make_trainer(f"--ckpt.output_dir={tmp_path / 'not' / 'there'}")
    trainer.settings = dataclasses.replace(trainer.settings, val_before_train=False, val_after_train=False)

    def fit(self: OgerPPOTrainer, step: int) -> None:
        self.progress.step, self.progress.solve_rates = 1, [0.5]

    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", fit)
    with pytest.raises(
        RecipeError, match=f"no room for the {'checkpoint of step 1' if what == 'checkpoint' else 'final'}"
    ):
        trainer.fit()
    assert [one.step for one in checkpoints.found(trainer.checkpoints)] == ([] if what == "checkpoint" else [1])
    assert "finished" not in (trainer.run_dir / "events.jsonl").read_text()


def test_a_step_that_solved_nothing_does_not_cost_the_last_good_checkpoint(
    trainer: OgerPPOTrainer,
) -> None:
    for step, solve_rate in enumerate((0.5, 0.0, 0.0, 0.0), start=1):
        trainer.progress.solved = solve_rate > 0
        trainer._save(step)
    assert [one.step for one in checkpoints.found(trainer.checkpoints)] == [1, 4]


def _step_metrics(**more: float) -> dict[str, float]:
    return {"rollout/response_tokens": 8.0, "timing/step_total": 1.0, "rollout/solve_rate": 0.5, **more}


def test_a_collapse_does_not_cost_the_last_checkpoint_before_it(make_trainer) -> None:
    """From 30 % to 1 %, of which every step solves something; nobody asks for the alarm."""
    trainer = make_trainer("--ckpt.save_steps=1", "--oger.alarms.solve_rate_lost=off")
    for step, solve_rate in enumerate([0.3] * 6 + [0.01] * 7, start=1):
        trainer.save_logs_and_checkpoints(step, _step_metrics(**{"rollout/solve_rate": solve_rate}))
        kept = [one.step for one in checkpoints.found(trainer.checkpoints)]
        assert kept == ([6, step] if step > 6 else [step]), step  # ckpt.max_num is 1
    trainer.save_logs_and_checkpoints(14, _step_metrics(**{"rollout/solve_rate": 0.4}))  # five steps at 0.088
    assert [one.step for one in checkpoints.found(trainer.checkpoints)] == [14]


@pytest.mark.parametrize("level", ["stop", "warn"])
def test_an_alarm_that_stops_the_run_saves_its_step_and_costs_no_older_checkpoint(make_trainer, level: str) -> None:
    trainer = make_trainer(f"--oger.alarms.embedding_truncated={level}", "--ckpt.save_steps=1")
    trainer.save_logs_and_checkpoints(1, _step_metrics(**{"oger/embedding_share_read": 1.0}))
    metrics = _step_metrics(**{"oger/embedding_share_read": 0.5})
    if level == "warn":
        trainer.save_logs_and_checkpoints(2, metrics)
    else:
        with pytest.raises(RecipeError, match="an alarm stopped the run after step 2: the encoder reads 50%"):
            trainer.save_logs_and_checkpoints(2, metrics)
    kept = [one.step for one in checkpoints.found(trainer.checkpoints)]
    assert kept == ([1, 2] if level == "stop" else [2])  # ckpt.max_num is 1
    first, second = read_jsonl(trainer.run_dir / "metrics.jsonl")
    assert (first["alarms/raised"], second["alarms/raised"]) == (0.0, 1.0)
    assert [(each["event"], each["step"]) for each in read_jsonl(trainer.run_dir / "events.jsonl")] == [
        ("step", 1), ("phase", 1), ("alarm", 2), ("step", 2), *[("stopped_by_alarm", 2)] * (level == "stop"),
    ]  # fmt: skip


SKIPPED = {"updates": 2.0, "skipped_updates": 1.0, "skipped_in_a_row": 1.0}
SAVED, NOT_SAVED = "The newest checkpoint is of this step, and no older one was removed", "No checkpoint was saved"


@pytest.mark.parametrize(
    ("broken", "flags", "said", "kept"),
    [
        ({}, ["--ckpt.save_steps=1"], f"after step 2: 2 updates of the policy .*limit: 2.* {SAVED}", [1, 2]),
        ({}, ["--ckpt.save_steps=-1"], f"after step 2: 2 updates of the policy .*limit: 2.* {SAVED}", [2]),
        ({}, ["--ckpt.disable_ds"], f"after step 2: 2 updates of the policy .*limit: 2.* {NOT_SAVED}", []),
        ({"nonfinite_parameters": 1.0}, ["--ckpt.save_steps=1"], "step 2 went wrong and is not saved", [1]),
        ({"critic_nonfinite_parameters": 1.0}, ["--ckpt.save_steps=1"], "not saved: the critic has parameters", [1]),
    ],
)
def test_a_series_of_skipped_updates_ends_the_run_at_the_limit_that_is_set(
    make_trainer, broken: dict[str, float], flags: list[str], said: str, kept: list[int]
) -> None:
    trainer = make_trainer("--oger.max_skipped_updates=2", *flags)
    trainer.save_logs_and_checkpoints(1, _step_metrics(**SKIPPED))
    with pytest.raises(RecipeError, match=said):
        trainer.save_logs_and_checkpoints(2, _step_metrics(**SKIPPED | {"skipped_in_a_row": 2.0} | broken))
    assert [one.step for one in checkpoints.found(trainer.checkpoints)] == kept
    steps = [each["step"] for each in read_jsonl(trainer.run_dir / "events.jsonl") if each["event"] == "step"]
    assert steps == ([1] if broken else [1, 2])


def test_an_alarm_that_stops_a_run_without_checkpoints_promises_none(make_trainer) -> None:
    trainer = make_trainer("--oger.alarms.embedding_truncated=stop", "--ckpt.disable_ds")
    with pytest.raises(RecipeError, match=f"an alarm stopped the run after step 1: .* {NOT_SAVED}"):
        trainer.save_logs_and_checkpoints(1, _step_metrics(**{"oger/embedding_share_read": 0.5}))
    assert checkpoints.found(trainer.checkpoints) == []


@pytest.mark.parametrize(
    "save",
    [lambda trainer: trainer._save(1), lambda trainer: trainer.save_best_checkpoint({"solved": 0.5}, 1)],
    ids=["newest", "best"],
)
def test_the_first_checkpoint_may_be_silent_for_long_though_an_evaluation_took_a_second(
    make_trainer, monkeypatch, save: Callable[[OgerPPOTrainer], None]
) -> None:
    """The largest ones take many minutes on the disks of clusters, the answers of an evaluation none."""
    trainer, limits = make_trainer(), []
    trainer.samples_generator = SimpleNamespace(generate_eval_samples=lambda **_: [])
    trainer.eval_dataloader, trainer.best_eval_metric_key = None, "solved"
    done = SimpleNamespace(records=[], result={"average": {"avg_at_2": 0.5}}, metrics={}, logs={})
    monkeypatch.setattr(trainer_module, "evaluate_samples", lambda *_: done)
    monkeypatch.setattr(trainer_module, "headlines", lambda _: {})
    monkeypatch.setattr(trainer_module.run_folder, "write_evaluation", lambda *_: None)
    write = trainer.actor_model_group._save

    def watched(*args: Any, **arguments: Any) -> list:
        silence = Silence(None)
        for record in read_jsonl(trainer.run_dir / "events.jsonl"):
            silence.seconds = 1.0
            silence.heard(record)
        limits.append(silence.limit)
        return write(*args, **{"client_states": {}} | arguments)

    trainer.actor_model_group._save = watched
    trainer.evaluate(0, when="before")
    event(trainer.run_dir, "training")
    trainer.evaluate(1)
    save(trainer)
    assert limits == [3600]


@pytest.mark.parametrize("when", ["during", "after"])
def test_an_evaluation_may_stop_a_run_that_is_not_over(make_trainer, monkeypatch, when: str) -> None:
    trainer = make_trainer("--oger.alarms.reward_without_accuracy=stop")
    trainer.samples_generator = SimpleNamespace(generate_eval_samples=lambda **_: [])
    trainer.eval_dataloader = None
    for step in (1, 2):
        trainer.save_logs_and_checkpoints(step, _step_metrics(**{"oger/on_reward": float(step)}))
    for step, accuracy in ((1, 0.5), (2, 0.3)):
        average = {"problems": 4, "n": 2, "avg_at_2": accuracy}
        done = SimpleNamespace(records=[], result={"average": average, "benchmarks": {}}, metrics={}, logs={})
        monkeypatch.setattr(trainer_module, "evaluate_samples", lambda *_, done=done: done)
        monkeypatch.setattr(trainer_module, "headlines", lambda _: {})
        monkeypatch.setattr(trainer_module.run_folder, "write_evaluation", lambda *_: None)
        if step == 2 and when == "during":
            with pytest.raises(RecipeError, match="step 2: since step 1 the trained reward has risen"):
                trainer.evaluate(step, when=when)
        else:
            trainer.evaluate(step, when=when)
    assert trainer.progress.saved == (2 if when == "during" else 0)


def _steps(trainer: OgerPPOTrainer, kls: list[float], begun: int = 0) -> list[dict[str, float]]:
    """The metrics of steps whose policy says these KLs; one row stands for their experiences."""
    row = SimpleNamespace(sequences=torch.zeros(1, 2, dtype=torch.long), info={"reward": torch.zeros(1)})
    trainer.experience_maker.make_experience_batch = lambda samples: [row]
    trainer.experience_maker.current = SimpleNamespace(metrics={})
    trainer.actor_model_group.kls = list(kls)
    return [trainer.train_step([], step)[0] for step in range(begun, begun + len(kls))]


def test_a_step_with_a_skipped_update_is_kept_and_said_and_moves_no_kl_coefficient(
    make_trainer, controller, models, rollout
) -> None:
    trainer = make_trainer(*ADAPTIVE)
    maker = controller("--oger.bonus_weight=0")
    models.difference["b"] = math.nan
    maker.make_experience_batch([rollout(text) for text in "abcd"])
    trainer.experience_maker.current = maker.current
    trainer.actor_model_group.counts = {"updates": 2.0, "skipped_updates": 1.0}
    trainer.actor_model_group.kls = [math.nan]
    assert "kl" not in trainer.ppo_train(0)  # OpenRLHF hands it to the controller of the coefficient
    kept = read_jsonl(trainer.run_dir / "skipped" / "step_00001.jsonl")
    assert [(line["text"], line["not_finite"]) for line in kept] == [
        ("a", []), ("b", ["log_probs"]), ("c", []), ("d", []),
    ]  # fmt: skip
    notes = [each for each in read_jsonl(trainer.run_dir / "events.jsonl") if each["event"] == "note"]
    (note,) = (each for each in notes if each["text"].startswith("WARNING"))
    assert note["step"] == 1 and note["text"].startswith(
        "WARNING: 1 of 2 updates of the policy were skipped: the log-probabilities of 1 rows are not finite"
    )
    assert note["text"].endswith("skipped/step_00001.jsonl")


ADAPTIVE = ("--algo.kl.init_coef=0.1", "--algo.kl.target=0.1", "--algo.kl.horizon=100")
# 4 rollouts a step: at the most 0.2 * 4 / 100 up or down, and -0.1 * 4 / 100 for a KL of 0.09.
AFTER = [0.1, 0.1 * 1.008, 0.1 * 1.008 * 0.996, 0.1 * 1.008 * 0.996 * 0.992]


def test_a_coefficient_of_the_kl_that_adapts_goes_by_its_distance_from_the_target(make_trainer) -> None:
    trainer = make_trainer(*ADAPTIVE)
    metrics = _steps(trainer, [0.3, 0.09, 0.01, 0.1])
    assert [step["kl_coefficient"] for step in metrics] == pytest.approx(AFTER)
    assert trainer.actor_model_group.coefficients == pytest.approx(AFTER)  # of the KL in the loss
    assert trainer.experience_maker.kl_ctl.value == pytest.approx(AFTER[-1])  # of the KL in the reward


def test_a_coefficient_that_does_not_adapt_stays(make_trainer) -> None:
    trainer = make_trainer("--algo.kl.init_coef=0.1")
    metrics = _steps(trainer, [0.3, 0.3])
    assert trainer.actor_model_group.coefficients == [0.1, 0.1] and "kl_coefficient" not in metrics[0]


@pytest.mark.parametrize(
    ("flags", "goes_on_with"), [(ADAPTIVE, AFTER[2]), (ADAPTIVE[:1], 0.1)], ids=["adapts", "fixed"]
)
def test_a_resumed_run_goes_on_with_the_coefficient_and_the_limit_of_its_checkpoint(
    make_trainer, flags: tuple[str, ...], goes_on_with: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_trainer(*ADAPTIVE)
    metrics = {"rollout/response_tokens": 1, "timing/step_total": 1, "rollout/solve_rate": 0.5, "oger/on_reward": 0.5}
    first.save_steps = 1
    _steps(first, [0.3, 0.09])
    first.experience_maker.engine_guard.limit = 0.25
    first.save_logs_and_checkpoints(2, metrics, {"global_step": 2})
    states = first.actor_model_group.states

    second = make_trainer(*flags)
    monkeypatch.setattr(OgerPPOTrainer, "init_checkpoint_states", lambda _: states)
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    second.samples_generator = SimpleNamespace()
    second.settings = dataclasses.replace(second.settings, val_before_train=False, val_after_train=False)
    second.fit()
    assert second.kl_ctl.value == pytest.approx(goes_on_with)
    assert second.experience_maker.engine_guard.limit == 0.25


@pytest.mark.parametrize(("weight", "sources"), [(0.5, ["rule", "explore"]), (0, ["rule"])])
def test_a_run_that_is_ready_says_which_sources_pay(
    make_trainer, weight: float, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(f"--oger.bonus_weight={weight}")
    monkeypatch.setattr(OgerPPOTrainer, "init_checkpoint_states", lambda _: {"global_step": 2})
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    trainer.samples_generator = SimpleNamespace()
    trainer.settings = dataclasses.replace(trainer.settings, val_before_train=False, val_after_train=False)
    trainer.fit()
    (ready, *_) = read_jsonl(trainer.run_dir / "events.jsonl")
    assert (ready["event"], ready["sources"]) == ("ready", sources)
    assert vars(trainer.samples_generator).items() >= {"step": 2, "planned_steps": ready["steps"]}.items()
    assert ready["steps"] == trainer.experience_maker.planned_steps == 2


def test_what_a_source_has_learnt_is_part_of_the_checkpoint(
    make_trainer: Callable[..., OgerPPOTrainer], policy_folder: Path
) -> None:
    """It is in the manifest, goes with the checkpoint, and is gone on from at the right step."""
    prime = {
        "name": "prime", "kind": "process", "scorer": "implicit", "model": str(policy_folder), "learning_rate": 0.01,
    }  # fmt: skip
    trainer = make_trainer(f"--oger.reward.sources={json.dumps([{'name': 'rule', 'kind': 'verifier'}, prime])}")
    trainer.progress.solved = True
    (source,) = trainer.experience_maker.reward_sources._learning().values()
    _, model = source._learner._place.writer()

    def weights(value: float) -> None:
        with torch.no_grad():
            model.lm_head.weight[0, 0] = value

    def resumed(step: int) -> float:
        trainer.experience_maker.resume(step, 5, {})
        return model.lm_head.weight[0, 0].item()

    trainer.args.ckpt.max_num = 2
    for step in (1, 2):
        weights(float(step))
        trainer._save(step)
    assert [resumed(step) for step in (1, 2, 1)] == [1.0, 2.0, 1.0]
    (trainer.checkpoints / "_sources" / "global_step2" / "prime" / "optimizer.pt").unlink()
    faults = [one.fault for one in checkpoints.found(trainer.checkpoints)]
    assert faults == [None, "_sources/global_step2/prime/optimizer.pt is missing"]
    checkpoints.remove(trainer.checkpoints, 2)
    assert [path.name for path in (trainer.checkpoints / "_sources").iterdir()] == ["global_step1"]
    with pytest.raises(RecipeError, match="the implicit PRM cannot resume from .*_sources/global_step2/prime"):
        trainer.experience_maker.resume(2, 5, {})


PRIME = {"name": "prime", "kind": "process", "scorer": "implicit", "learning_rate": 0.01}


@pytest.mark.parametrize("learns", [False, True])
def test_a_dead_source_ends_the_run_before_it_is_trained_and_the_steps_so_far_are_kept(
    make_trainer: Callable[..., OgerPPOTrainer], policy_folder: Path, learns: bool
) -> None:
    """A source that learns has learnt from the step that is not trained: its last checkpoint is gone on from."""
    listed = [{"name": "rule", "kind": "verifier"}, *([PRIME | {"model": str(policy_folder)}] if learns else [])]
    trainer = make_trainer(f"--oger.reward.sources={json.dumps(listed)}")
    trainer.save_steps = 30
    metrics = {"rollout/response_tokens": 1, "timing/step_total": 1, "rollout/solve_rate": 0.5, "oger/on_reward": 0.5}
    _steps(trainer, [0.1])
    trainer.save_logs_and_checkpoints(1, metrics, {"global_step": 1})
    assert not checkpoints.found(trainer.checkpoints)

    def dead(samples: list) -> list:
        raise SourceFailed("judge failed on 8 of 8 rows of step 2")

    trainer.experience_maker.make_experience_batch = dead
    with pytest.raises(SourceFailed, match="8 of 8 rows of step 2"):
        trainer.train_step([], 1)
    assert len(trainer.actor_model_group.coefficients) == 1  # updates of the policy
    assert [(one.step, one.fault) for one in checkpoints.found(trainer.checkpoints)] == ([] if learns else [(1, None)])


@pytest.mark.parametrize("asked_in", ["the first step", "the evaluation before"])
def test_a_run_that_is_asked_to_stop_ends_after_its_step_with_a_checkpoint(
    make_trainer: Callable[..., OgerPPOTrainer], asked_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the evaluation that is due at the step, which may take longer than what is left of a job's time."""
    trainer, batches, saved = make_trainer("--ckpt.save_steps=30", "--eval.steps=1"), [], []

    def ask() -> None:
        ask_to_stop(trainer.run_dir, AFTER_STEP)

    def sampled(*_, **__) -> tuple:
        batches.append("a batch")
        ask()
        return ["a rollout"] * 4, None, 2, False

    def evaluate(_, when: str, step: int) -> dict[str, float]:
        if asked_in == "the evaluation before":
            ask()
        return {}

    def during(trainer: OgerPPOTrainer, step: int, **_) -> dict[str, float]:
        saved.append([one.step for one in checkpoints.found(trainer.checkpoints)])
        return {}

    monkeypatch.setattr(OgerSamplesGenerator.__base__, "generate_samples", sampled)
    monkeypatch.setattr(OgerPPOTrainer, "_evaluate_as", evaluate)
    monkeypatch.setattr(OgerPPOTrainer, "evaluate", during)
    _steps(trainer, [])
    trainer.actor_model_group.kls = [0.1] * 3
    trainer.experience_maker.current.metrics = {
        "rollout/response_tokens": 1, "rollout/solve_rate": 0.5, "oger/on_reward": 0.5,
    }  # fmt: skip
    trainer.eval_dataloader = ["a problem"]
    with pytest.raises(RunStopped):
        trainer.fit()
    steps = [event["step"] for event in read_jsonl(trainer.run_dir / "events.jsonl") if event["event"] == "step"]
    kept = [(one.step, one.fault) for one in checkpoints.found(trainer.checkpoints)]
    if asked_in == "the first step":
        assert (batches, steps, saved, kept) == (["a batch"], [1], [[1]], [(1, None)])
        assert trainer.actor_model_group.saved == ["global_step1"]  # once
    else:
        assert (batches, steps, saved, kept) == ([], [], [], [])


@pytest.mark.parametrize(
    ("asked_in", "learns", "trained"),
    [
        ("rollouts", False, 1),
        ("rollouts", True, 1),
        ("experience", False, 1),
        ("experience", True, 2),  # the source may have learnt from step 2 already
        ("training", False, 2),
        ("saving", False, 2),
        ("saving the last", False, 1),
        ("answers", False, 2),
    ],
)
def test_a_run_that_is_asked_to_end_at_once_ends_with_a_checkpoint_of_its_last_trained_step(
    make_trainer: Callable[..., OgerPPOTrainer],
    policy_folder: Path,
    asked_in: str,
    learns: bool,
    trained: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it does at its second step goes on and on, as far as it is not interrupted."""
    monkeypatch.setattr(interrupts, "_POLL_S", 0.01)
    listed = [{"name": "rule", "kind": "verifier"}, *([PRIME | {"model": str(policy_folder)}] if learns else [])]
    more = ("--ckpt.save_steps=2" if asked_in == "saving" else "--ckpt.save_steps=30", "--oger.total_training_steps=3")
    trainer = make_trainer(f"--oger.reward.sources={json.dumps(listed)}", "--no-oger.val_before_train", *more)
    begun: list[str] = []
    at_its = {"rollouts": 2, "experience": 2, "training": 2, "saving": 1, "answers": 1}  # the second step's
    asked_in, ends_early = asked_in.split()[0], asked_in == "saving the last"
    _steps(trainer, [])
    (row,) = trainer.experience_maker.make_experience_batch([])

    def at(phase: str, result: Any) -> Any:
        begun.append(phase)
        if phase == asked_in and begun.count(phase) == at_its[phase]:
            ask_to_stop(trainer.run_dir, AT_ONCE)
            time.sleep(0.5)
            begun.append("went on")
        return result

    def sampled(generator: OgerSamplesGenerator, **kwargs: Any) -> tuple:
        generator._tell_count(kwargs)
        if ends_early and len(begun) > 1:
            return [], None, 0, True  # the data ends
        return at("rollouts", (["a rollout"] * 4, None, 2, False))

    def answered(generator: OgerSamplesGenerator, **kwargs: Any) -> None:
        generator._tell_count({})
        at("answers", None)
        time.sleep(1)

    def fit(self, method_name: str, **arguments: Any) -> list:
        if method_name in ("fit", "save_checkpoint"):
            at("training" if method_name == "fit" else "saving", None)
        return Group.async_run_method(self, method_name, **arguments)

    trainer.actor_model_group.kls = [0.1] * 3
    trainer.actor_model_group.async_run_method = fit.__get__(trainer.actor_model_group)
    monkeypatch.setattr(OgerSamplesGenerator.__base__, "generate_samples", sampled)
    monkeypatch.setattr(OgerSamplesGenerator.__base__, "generate_eval_samples", answered)
    trainer.experience_maker.make_experience_batch = lambda _: at("experience", [row])
    trainer.experience_maker.current.metrics = {
        "rollout/response_tokens": 1, "rollout/solve_rate": 0.5, "oger/on_reward": 0.5,
    }  # fmt: skip
    trainer.eval_dataloader = ["a problem"]
    with pytest.raises(RunStopped):
        trainer.fit()
    steps = [event["step"] for event in read_jsonl(trainer.run_dir / "events.jsonl") if event["event"] == "step"]
    assert steps == [1, 2][:trained]
    assert [(one.step, one.fault) for one in checkpoints.found(trainer.checkpoints)] == [(trained, None)]
    assert trainer.actor_model_group.states["global_step"] == trained
    assert ("went on" in begun) == (asked_in in ("training", "saving") or learns and asked_in == "experience")
    assert signal.getsignal(interrupts._SIGNAL) == signal.SIG_DFL  # an attempt after it in this process is its own


@pytest.mark.parametrize("resumed_after", [1, 2, 3, 4])
def test_a_resumed_run_draws_the_prompts_of_the_run_that_nothing_stopped_in_every_episode(
    make_trainer: Callable[..., OgerPPOTrainer], tmp_path: Path, resumed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two episodes of three prompts: a batch of two, and one of the last, with which the data is known to end."""
    label = json.dumps({"uid": "u", "answer": "1", "task": "gsm8k"})
    write_jsonl([{"prompt": text, "label": label} for text in "abc"], tmp_path / "run" / "data" / "train.jsonl")
    flags = ("--train.num_episodes=2", "--train.batch_size=2", "--train.micro_batch_size=2", "--ckpt.save_steps=1")

    def steps(states: dict[str, Any] | None) -> tuple[list[list[str]], dict[int, dict[str, Any]]]:
        trainer, drawn, saved = make_trainer(*flags, "--no-oger.val_before_train"), [], {}

        def sampled(_: Any, dataloader_iter: Any, num_prompts: int, *rest: Any, **__: Any) -> tuple:
            prompts, _, _, exhausted = samples_generator._collect_prompt_batch(dataloader_iter, num_prompts)
            drawn.extend([prompts] if prompts else [])
            return ["a rollout"] * 2 * len(prompts), len(prompts), exhausted

        monkeypatch.setattr(OgerSamplesGenerator, "_generate_vllm", sampled)
        write = trainer.actor_model_group._save

        def save(tag: str, client_states: dict[str, Any], **rest: Any) -> list:
            saved[client_states["global_step"]] = copy.deepcopy(client_states)
            return write(tag, client_states, **rest)

        trainer.actor_model_group._save = save
        if states is not None:
            upstream = OgerPPOTrainer.__base__
            monkeypatch.setattr(upstream, "init_checkpoint_states", lambda _: copy.deepcopy(states))
        _steps(trainer, [])
        trainer.actor_model_group.kls = [0.1] * 9
        trainer.experience_maker.current.metrics = {
            "rollout/response_tokens": 1, "rollout/solve_rate": 0.5, "oger/on_reward": 0.5,
        }  # fmt: skip
        trainer.fit()
        return drawn, saved

    whole, saved = steps(None)
    assert [len(prompts) for prompts in whole] == [2, 1, 2, 1] and {*whole[0], *whole[1]} == {*whole[2], *whole[3]}
    assert steps(saved[resumed_after])[0] == whole[resumed_after:]


def test_what_vllm_chose_is_noted_beside_the_versions(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(OgerPPOTrainer, "init_checkpoint_states", lambda _: {"global_step": 2})
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    trainer.samples_generator = SimpleNamespace()
    trainer.settings = dataclasses.replace(trainer.settings, val_before_train=False, val_after_train=False)
    facts = ({"model_runner": "V2", "nccl": "2.27.5"}, {"model_runner": "of another engine"})
    trainer.vllm_engines = [
        SimpleNamespace(engine_facts=SimpleNamespace(remote=lambda said=said: said)) for said in facts
    ]
    noted = trainer.run_dir / "environment.json"
    noted.write_text('{"python": "3.11", "engine": "of an earlier attempt"}')
    trainer.fit()
    assert json.loads(noted.read_text()) == {"python": "3.11", "engine": facts[0]}
