"""What the controller's watch over the sources says of a run's own rows, and when it warns."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oger_recipe.base.files import append_json, read_jsonl
from oger_recipe.pipeline.controller.reward_watch import DriftWatch
from oger_recipe.rewards.sources import Scores
from oger_recipe.settings.rewards import RewardSettings
from oger_recipe.teachers.store import Teacher

GROUPS = 60  # of four rows
TEXTS = ["a", "bb", "ccc", "dddd"]


@pytest.fixture()
def step(controller, rollout, monkeypatch) -> Callable[..., dict[str, float]]:
    """Makes steps of GROUPS equal groups with one source beside the rule; returns the metrics of the last.

    values: what the source pays for each of TEXTS, by step; each group gets more than the one before, by ``apart``;
    rewards: the rule's for them."""
    makers: list[Any] = []

    def steps(
        *values: dict[str, float], rewards=(1.0, 1.0, 0.0, 0.0), formats=(1, 1, 1, 1), flags=(), gate="always",
        teachers=None, apart=100.0, weight=1.0, listed=None,
    ) -> dict[str, float]:  # fmt: skip
        module = types.ModuleType("pays")
        monkeypatch.setitem(sys.modules, "pays", module)
        module.score = lambda group: [said[text] + apart * int(group.uid[1:]) for text in group.responses]
        sources = [{"name": "rule", "kind": "verifier"}, {"name": "mine"}]
        sources[1] |= listed or {"kind": "pays:score", "gate": gate, "weight": weight}
        maker = controller("--oger.reward.sources", json.dumps(sources), *flags, teachers=teachers)
        for number, said in enumerate(values, start=1):  # noqa: B007  # score reads it
            maker.step = number
            maker.make_experience_batch(
                [
                    rollout(text, reward, uid=f"u{group}", components={"format": float(ok)})
                    for group in range(GROUPS)
                    for text, reward, ok in zip(TEXTS, rewards, formats, strict=True)
                ]
            )
        makers.append(maker)
        return maker.current.metrics

    steps.notes = lambda: [  # type: ignore[attr-defined]
        each["text"] for each in read_jsonl(makers[-1].run_dir / "events.jsonl") if each["event"] == "note"
    ]
    return steps


def paid(*values: float) -> dict[str, float]:
    return dict(zip(TEXTS, values, strict=True)) | {"teach": 100.0}


def test_a_source_that_pays_for_length_is_seen_and_warned_of_once(step):
    """Lengths 1 to 4 (and an end token each); the rule pays for the two short ones: r = -2 / sqrt(5)."""
    metrics = step(paid(1, 2, 3, 4), paid(1, 2, 3, 4))
    assert metrics["reward/mine/length_correlation"] == pytest.approx(1.0)
    assert metrics["reward/rule/length_correlation"] == pytest.approx(-2 / 5**0.5)
    assert metrics["reward/mine/rule_disagreement"] == 1.0 and "reward/rule/rule_disagreement" not in metrics
    length, rule = step.notes()
    assert "step 1: reward source mine pays for longer answers: reward/mine/length_correlation is 1.00" in length
    assert "over the last 1 steps (limit" in length
    assert "(limit: 0.5). Read in samples/" in length
    assert "reward source mine orders 100% of the pairs within groups against the rule" in rule


def test_a_penalty_is_worth_the_less_the_more_it_says_and_kind_length_is_not_told_that_it_pays_for_length(step):
    metrics = step(paid(1, 2, 3, 4), weight=-1.0)
    assert metrics["reward/mine/length_correlation"] == pytest.approx(-1.0)
    assert metrics["reward/mine/rule_disagreement"] == 0.0
    (note,) = step.notes()
    assert "reward source mine pays for shorter answers" in note
    metrics = step(paid(0, 0, 0, 0), listed={"kind": "length", "budget": 0, "limit": 8})
    assert metrics["reward/mine/length_correlation"] == pytest.approx(-1.0) and step.notes() == [note]


LENGTH, FORM, RULE = ("length_correlation", "0.5"), ("format_correlation", "0.9"), ("rule_disagreement", "0.6")


@pytest.mark.parametrize(
    ("formats", "flags", "said"),
    [
        ((0, 0, 1, 1), [], [LENGTH, FORM, RULE]),
        ((0, 1, 1, 1), [], [LENGTH, RULE]),  # a correlation of 0.58 with the form
        ((0, 0, 1, 1), ["--no-oger.reward.watch"], []),
    ],
)
def test_each_warning_has_a_limit_of_its_own_and_the_watch_can_be_silent(step, formats, flags, said):
    """The source pays for length and for form, and the rule orders them the other way round."""
    step(paid(1, 1, 4, 4), formats=formats, flags=flags)
    assert [re.findall(r"reward/mine/(\w+) is .* \(limit: ([\d.]+)\)", note) for note in step.notes()] == [
        [each] for each in said
    ]


def test_the_watch_looks_back_over_some_steps(step):
    up, down = paid(1, 2, 3, 4), paid(4, 3, 2, 1)
    flags = ["--oger.reward.watch_steps=2"]
    assert step(up, down, flags=flags)["reward/mine/length_correlation"] == pytest.approx(0.0)
    assert step(up, down, down, flags=flags)["reward/mine/length_correlation"] == pytest.approx(-1.0)
    assert step(up, down, down)["reward/mine/length_correlation"] == pytest.approx(-1 / 3)


def test_without_groups_the_rows_of_a_step_are_compared(step):
    metrics = step(paid(1, 2, 3, 4), flags=["--rollout.n_samples_per_prompt=1"], apart=0.0)
    assert metrics["reward/mine/length_correlation"] == pytest.approx(1.0)
    assert metrics["reward/mine/rule_disagreement"] != metrics["reward/mine/rule_disagreement"]  # there are no pairs


def test_the_rows_of_the_smallest_group_are_compared_with_one_another(step):
    metrics = step(paid(2, 1, 4, 3), flags=["--rollout.n_samples_per_prompt=2"])
    assert metrics["reward/mine/length_correlation"] == pytest.approx(-1.0)


def test_the_rules_order_is_that_of_its_reward_between_right_and_wrong_too(step):
    assert step(paid(1, 2, 3, 4), rewards=(0.4, 0.3, 0.2, 0.1))["reward/mine/rule_disagreement"] == 1.0


def test_an_answer_in_form_is_the_verifiers_component(step):
    metrics = step(paid(1, 0, 0, 1), formats=(1, 0, 0, 1))
    assert metrics["reward/mine/format_correlation"] == pytest.approx(1.0)
    assert metrics["reward/mine/length_correlation"] == pytest.approx(0.0)
    assert metrics["reward/rule/format_correlation"] == pytest.approx(0.0)
    (note,) = step.notes()
    assert "pays for answers in form, whatever they say: reward/mine/format_correlation is 1.00" in note
    assert metrics["reward/mine/rule_disagreement"] == 0.5  # rows 0, 3 against rows 1, 2: half of what both order


def test_rows_behind_the_gate_and_teachers_do_not_count(step, models, letters):
    """Right are the two short ones, which the source pays alike but for their length."""
    metrics = step(paid(1, 2, -50, 50), gate="rule_equals_1")
    assert metrics["reward/mine/length_correlation"] == pytest.approx(1.0)
    assert metrics["reward/mine/rule_disagreement"] != metrics["reward/mine/rule_disagreement"]  # no pair is left
    models.similarity = dict(zip(TEXTS, (0.2, 0.4, 0.6, 0.8), strict=True))  # the teacher takes the last one's place
    teacher = Teacher("t", "teach", [*letters.encode("teach"), letters.eos_token_id], 1.0, 1.0)
    metrics = step(paid(3, 2, 1, 0), teachers={f"u{group}": [teacher] for group in range(GROUPS)})
    assert metrics["oger/replaced"] == GROUPS
    assert metrics["reward/mine/length_correlation"] == pytest.approx(-1.0)
    assert "pays for shorter answers" in step.notes()[-1]


def test_steps_of_reasoning_are_compared_by_what_they_are_paid_together(controller, rollout, monkeypatch):
    """Every letter is a step, paid 0.5: 0.5 to 2 for the texts. The source's number of a response falls."""

    class Pays:
        def score(self, groups, wanted):
            lengths = torch.tensor([[float(len(text)) for text in group.responses] for group in groups])
            steps = torch.where(torch.arange(4) < lengths.unsqueeze(2), 0.5, torch.nan)
            return Scores(-lengths, steps=steps)

    module = types.ModuleType("pays")
    module.Pays = Pays
    monkeypatch.setitem(sys.modules, "pays", module)
    sources = json.dumps([{"name": "mine", "kind": "pays:Pays"}])
    for estimator, r, kind in (("process_rloo", 1.0, "longer"), ("rloo", -1.0, "shorter")):
        flags = ("--oger.reward.sources", sources, '--oger.steps.delimiters=["a", "b", "c", "d"]')
        maker = controller(*flags, f"--algo.advantage.estimator={estimator}")
        maker.step = 1
        maker.make_experience_batch([rollout(text, 0.0, uid=f"u{group}") for group in range(GROUPS) for text in TEXTS])
        assert maker.current.metrics["reward/mine/length_correlation"] == pytest.approx(r)
        notes = [each for each in read_jsonl(maker.run_dir / "events.jsonl") if each["event"] == "note"]
        assert f"mine pays for {kind} answers" in notes[-1]["text"]


def test_few_rows_are_not_judged(step, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "GROUPS", 24)  # 96 rows, 96 pairs
    metrics = step(paid(1, 2, 3, 4))
    assert metrics["reward/mine/length_correlation"] != metrics["reward/mine/length_correlation"]
    assert step(paid(1, 2, 3, 4), paid(1, 2, 3, 4))["reward/mine/length_correlation"] == pytest.approx(1.0)


# ---- held-out accuracy


def settings(**given: Any) -> RewardSettings:
    return RewardSettings(watch_steps=2, **given)


def test_a_reward_that_rises_while_accuracy_falls_is_warned_of_once_also_by_a_run_that_goes_on(tmp_path: Path):
    watch = DriftWatch(settings(), tmp_path)
    watch.evaluated(0, {"problems": 9, "avg_at_8": 0.5, "avg_at_8_interval": [0.4, 0.6]})
    for step, reward in ((1, 0.25), (2, 0.5)):
        found = watch.stepped(step, reward)
        append_json(tmp_path / "metrics.jsonl", {"step": step, "oger/on_reward": reward})
    assert all(value != value for value in found.values())
    watch.evaluated(2, {"avg_at_8": 0.46})  # not far enough
    assert watch.stepped(3, 0.75) == {"oger/held_out_fall": pytest.approx(0.04), "oger/reward_rise": 0.125}
    assert not (tmp_path / "events.jsonl").exists()
    for step, accuracy in ((0, 0.5), (2, 0.46)):
        path = tmp_path / "eval" / f"step_{step:05d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"average": {"avg_at_8": accuracy}, "benchmarks": {}}))
    resumed = DriftWatch(settings(), tmp_path)
    resumed.stepped(3, 0.75)
    resumed.evaluated(3, {"avg_at_8": 0.44})
    resumed.evaluated(3, {"avg_at_8": 0.44})
    (note,) = read_jsonl(tmp_path / "events.jsonl")
    assert note["step"] == 3
    assert (
        "step 3: since step 0 the trained reward has risen by 0.375 and held-out accuracy has fallen by 0.060"
        in (note["text"])
    )


@pytest.mark.parametrize(
    ("accuracy", "rewards", "watches"),
    [((0.5, 0.4), (0.5, 0.25), True), ((0.5, 0.6), (0.25, 0.5), True), ((0.5, 0.0), (0.25, 0.5), False)],
)
def test_no_drift_is_a_reward_that_falls_too_an_accuracy_that_rises_or_one_nobody_asks_for(
    tmp_path: Path, accuracy, rewards, watches
):
    watch = DriftWatch(settings(watch=watches), tmp_path)
    for step, (held_out, reward) in enumerate(zip(accuracy, rewards, strict=True)):
        watch.stepped(step + 1, reward)
        watch.evaluated(step + 1, {"avg_at_4": held_out})
    assert not (tmp_path / "events.jsonl").exists()


def test_a_run_begun_before_there_was_a_watch_can_go_on(tmp_path: Path):
    append_json(tmp_path / "metrics.jsonl", {"step": 1, "rollout/reward": 0.5})
    assert DriftWatch(settings(), tmp_path).stepped(2, 0.5).keys() == {"oger/held_out_fall", "oger/reward_rise"}
