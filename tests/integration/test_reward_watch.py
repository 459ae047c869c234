"""What the controller's watch over the sources measures of a run's own rows, and which alarms that raises."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oger_recipe.algorithm.alarms import History, found
from oger_recipe.rewards.sources import Scores
from oger_recipe.teachers.store import Teacher

GROUPS = 60  # of four rows
TEXTS = ["a", "bb", "ccc", "dddd"]


@pytest.fixture()
def step(controller, rollout, monkeypatch) -> Callable[..., dict[str, float]]:
    """Makes steps of GROUPS equal groups with one source beside the rule; returns the metrics of the last.

    values: what the source pays for each of TEXTS, by step; each group gets more than the one before, by ``apart``;
    rewards: the rule's for them."""
    makers: list[Any] = []  # of the steps so far, for what else is asked of them

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

    steps.alarms = lambda: alarms_of(makers[-1])  # type: ignore[attr-defined]
    steps.makers = makers  # type: ignore[attr-defined]
    return steps


def alarms_of(maker: Any) -> list[str]:
    """What the last step's metrics of sources raise, as the run sees them."""
    run = History([maker.current.metrics], excused=maker.reward_sources.watch.excused)
    names = ("length_correlation", "format_correlation", "rule_disagreement")
    return [f"{each.text}: {each.metric}" for name in names for each in found(name, run)]


def paid(*values: float) -> dict[str, float]:
    return dict(zip(TEXTS, values, strict=True)) | {"teach": 100.0}


def test_a_source_that_pays_for_length_is_seen_and_raises_an_alarm(step):
    """Lengths 1 to 4 (and an end token each); the rule pays for the two short ones: r = -2 / sqrt(5)."""
    metrics = step(paid(1, 2, 3, 4), paid(1, 2, 3, 4))
    assert metrics["reward/mine/length_correlation"] == pytest.approx(1.0)
    assert metrics["reward/rule/length_correlation"] == pytest.approx(-2 / 5**0.5)
    assert metrics["reward/mine/rule_disagreement"] == 1.0 and "reward/rule/rule_disagreement" not in metrics
    length, rule = step.alarms()
    assert length == "reward source mine pays for longer answers: reward/mine/length_correlation"
    assert rule.startswith("reward source mine orders 100% of the pairs within groups against the rule")


def test_a_penalty_is_worth_the_less_the_more_it_says_and_kind_length_is_not_told_that_it_pays_for_length(step):
    metrics = step(paid(1, 2, 3, 4), weight=-1.0)
    assert metrics["reward/mine/length_correlation"] == pytest.approx(-1.0)
    assert metrics["reward/mine/rule_disagreement"] == 0.0
    (text,) = step.alarms()
    assert "reward source mine pays for shorter answers" in text
    metrics = step(paid(0, 0, 0, 0), listed={"kind": "length", "budget": 0, "limit": 8})
    assert metrics["reward/mine/length_correlation"] == pytest.approx(-1.0) and step.alarms() == []


@pytest.mark.parametrize(
    ("formats", "said"),
    [
        ((0, 0, 1, 1), ["length_correlation", "format_correlation", "rule_disagreement"]),
        ((0, 1, 1, 1), ["length_correlation", "rule_disagreement"]),  # a correlation of 0.58 with the form
    ],
)
def test_each_alarm_of_a_source_has_a_limit_of_its_own(step, formats, said):
    """The source pays for length and for form, and the rule orders them the other way round."""
    step(paid(1, 1, 4, 4), formats=formats)
    assert [re.findall(r"reward/mine/(\w+)", text) for text in step.alarms()] == [[each] for each in said]


def test_the_watch_looks_back_over_some_steps(step):
    up, down = paid(1, 2, 3, 4), paid(4, 3, 2, 1)
    flags = ["--oger.alarms.window=2"]
    assert step(up, down, flags=flags)["reward/mine/length_correlation"] == pytest.approx(0.0)
    assert step(up, down, down, flags=flags)["reward/mine/length_correlation"] == pytest.approx(-1.0)
    assert step(up, down, down)["reward/mine/length_correlation"] == pytest.approx(-1 / 3)


def test_a_resumed_run_looks_back_over_the_steps_before_its_checkpoint(step):
    up, down = paid(1, 2, 3, 4), paid(4, 3, 2, 1)
    step(up, up)
    step(down)
    before, resumed = step.makers
    resumed.resume(3, 9, json.loads(json.dumps(before.state())))
    resumed.make_experience_batch(resumed.current.rollouts.samples)
    # One step down, the two before the checkpoint, and another one down.
    assert resumed.current.metrics["reward/mine/length_correlation"] == pytest.approx(0.0)


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
    (text,) = step.alarms()
    assert "pays for answers in form, whatever they say: reward/mine/format_correlation" in text
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
    assert "pays for shorter answers" in step.alarms()[0]


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
        assert f"mine pays for {kind} answers" in alarms_of(maker)[0]


def test_few_rows_are_not_judged(step, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "GROUPS", 24)  # 96 rows, 96 pairs
    metrics = step(paid(1, 2, 3, 4))
    assert metrics["reward/mine/length_correlation"] != metrics["reward/mine/length_correlation"]
    assert step(paid(1, 2, 3, 4), paid(1, 2, 3, 4))["reward/mine/length_correlation"] == pytest.approx(1.0)
