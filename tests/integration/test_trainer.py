"""What the controller adds to OpenRLHF's trainer and no run is needed to see."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import datasets.config
import pytest
import ray
import torch
from doubles import Strategy

from oger_recipe.base.errors import RecipeError, RunStopped, SourceFailed
from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.controller.trainer import OgerPPOTrainer
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.records import STOP_ASKED
from oger_recipe.teachers.store import write_teacher_store


class Group:
    """Policy actors that write one file a checkpoint, and can fail at it; their training says the KLs it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fails = folder, False
        self.kls: list[float] = []
        self.coefficients: list[float] = []
        self.states: dict[str, float] = {}
        self.saved: list[str] = []

    def async_run_method_batch(self, **_) -> list:
        return []

    def async_run_method(self, method_name: str, **arguments) -> list:
        if method_name == "fit":
            self.coefficients.append(arguments["kl_ctl"])
            return [{"kl": self.kls.pop(0)}]
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


def test_the_previous_checkpoint_goes_after_the_new_one_is_whole(trainer: OgerPPOTrainer) -> None:
    trainer.progress.solve_rates = [0.5]
    trainer._save(1)
    trainer.actor_model_group.fails = True
    with pytest.raises(OSError):
        trainer._save(2)
    first, second = checkpoints.found(trainer.checkpoints)
    assert (first.step, first.fault) == (1, None) and second.fault == "it was not written completely"
    trainer.actor_model_group.fails = False
    trainer._save(2)
    assert [(one.step, one.fault) for one in checkpoints.found(trainer.checkpoints)] == [(2, None)]


def test_a_step_that_solved_nothing_does_not_cost_the_last_good_checkpoint(
    trainer: OgerPPOTrainer,
) -> None:
    for step, solve_rate in enumerate((0.5, 0.0, 0.0, 0.0), start=1):
        trainer.progress.solve_rates = [solve_rate]
        trainer._save(step)
    assert [one.step for one in checkpoints.found(trainer.checkpoints)] == [1, 4]


def _steps(trainer: OgerPPOTrainer, kls: list[float], begun: int = 0) -> list[dict[str, float]]:
    """The metrics of steps whose policy says these KLs; one row stands for their experiences."""
    row = SimpleNamespace(sequences=torch.zeros(1, 2, dtype=torch.long), info={"reward": torch.zeros(1)})
    trainer.experience_maker.make_experience_batch = lambda samples: [row]
    trainer.experience_maker.current = SimpleNamespace(metrics={})
    trainer.actor_model_group.kls = list(kls)
    return [trainer.train_step([], step)[0] for step in range(begun, begun + len(kls))]


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
def test_a_resumed_run_goes_on_with_the_coefficient_of_its_checkpoint(
    make_trainer, flags: tuple[str, ...], goes_on_with: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_trainer(*ADAPTIVE)
    metrics = {"rollout/response_tokens": 1, "timing/step_total": 1, "rollout/solve_rate": 0.5, "oger/on_reward": 0.5}
    first.save_steps = 1
    _steps(first, [0.3, 0.09])
    first.save_logs_and_checkpoints(2, metrics, {"global_step": 2})
    states = first.actor_model_group.states

    second = make_trainer(*flags)
    monkeypatch.setattr(OgerPPOTrainer, "init_checkpoint_states", lambda _: states)
    monkeypatch.setattr(OgerPPOTrainer.__base__, "fit", lambda trainer, step: None)
    second.samples_generator = SimpleNamespace()
    second.settings = dataclasses.replace(second.settings, val_before_train=False, val_after_train=False)
    second.fit()
    assert second.kl_ctl.value == pytest.approx(goes_on_with)


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


def test_what_a_source_has_learnt_is_part_of_the_checkpoint(
    make_trainer: Callable[..., OgerPPOTrainer], policy_folder: Path
) -> None:
    """It is in the manifest, goes with the checkpoint, and is gone on from at the right step."""
    prime = {
        "name": "prime", "kind": "process", "scorer": "implicit", "model": str(policy_folder), "learning_rate": 0.01,
    }  # fmt: skip
    trainer = make_trainer(f"--oger.reward.sources={json.dumps([{'name': 'rule', 'kind': 'verifier'}, prime])}")
    trainer.progress.solve_rates = [0.5]
    (source,) = trainer.experience_maker.reward_sources._learning().values()
    _, model = source._learner._place.writer()

    def weights(value: float) -> None:
        with torch.no_grad():
            model.lm_head.weight[0, 0] = value

    def resumed(step: int) -> float:
        trainer.experience_maker.resume(step, 5)
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
        trainer.experience_maker.resume(2, 5)


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
        (trainer.run_dir / STOP_ASKED).touch()

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
