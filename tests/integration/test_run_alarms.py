"""How a run raises its alarms: once, again after they cleared, the same after a resume, and by their levels."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.algorithm.alarms import ALARMS
from oger_recipe.base.files import append_json, read_jsonl
from oger_recipe.pipeline.controller.alarms import Alarms
from oger_recipe.report.run_state import RunLog
from oger_recipe.run_folder.attempt import cut_back
from oger_recipe.settings.alarms import AlarmSettings

WINDOW = 3
# Over three steps it is above a quarter at steps 3 to 6, and from step 11 on.
TRUNCATED = [0.0, 0.0, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.9, 0.0]


class Run:
    """A run's folder and its alarms; `resume` starts over with what the folder has up to a step."""

    def __init__(self, folder: Path, **levels: str) -> None:
        self.folder, self.levels = folder, levels
        (folder / "eval").mkdir()
        self.resume(0)

    def resume(self, step: int) -> None:
        cut_back(self.folder, step)
        levels = {f"oger.alarms.{name}": self.levels.get(name, "warn") for name in ALARMS}
        settings = AlarmSettings.of(levels | {"oger.alarms.window": WINDOW})
        self.alarms = Alarms(self.folder, settings, {"reward/rule/length_correlation"})

    def step(self, number: int, **metrics: float) -> dict[str, float]:
        named = {name.replace("__", "/"): value for name, value in metrics.items()}
        named |= self.alarms.stepped(number, named)
        append_json(self.folder / "metrics.jsonl", {"step": number} | named)
        return named

    def evaluate(self, step: int, accuracy: float) -> None:
        average = {"problems": 9, "avg_at_8": accuracy, "avg_at_8_interval": [0.4, 0.6]}
        (self.folder / "eval" / f"step_{step:05d}.json").write_text(json.dumps({"average": average}))
        self.alarms.evaluated(step, average)

    @property
    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        return read_jsonl(path) if path.exists() else []

    def said(self) -> list[tuple[str, str, int]]:
        return [(each["event"], each["name"], each["step"]) for each in self.events]


def test_an_alarm_is_recorded_when_it_is_raised_when_it_clears_and_when_it_returns(tmp_path: Path) -> None:
    run = Run(tmp_path)
    counts = [run.step(number, rollout__truncated=share)["alarms/raised"] for number, share in enumerate(TRUNCATED, 1)]
    assert run.said() == [
        ("alarm", "truncation", 3), ("alarm_cleared", "truncation", 9), ("alarm", "truncation", 11),
    ]  # fmt: skip
    assert counts == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    assert run.alarms.stop is None  # a warning stops nothing
    first, cleared, _ = run.events
    assert first["metric"] == "rollout/truncated" and first["level"] == "warn" and first["limit"] == 0.25
    assert first["value"] == pytest.approx(0.3)
    assert first["text"].startswith(
        "WARNING: step 3: 30% of the rollouts are cut at the longest allowed length (rollout/truncated: 0.3, limit: "
        "0.25). Raise rollout.max_new_tokens"
    )
    assert first["text"].endswith("(oger.alarms.truncation)")
    assert cleared["text"] == (
        "step 9: alarm truncation has cleared: rollout/truncated has been within its limit for 3 steps"
    )


def test_alarms_are_of_the_runs_steps_where_its_folder_has_records_of_the_later_ones_alone(tmp_path: Path) -> None:
    """The run was resumed, from its ckpt.path, in another folder, and once more there."""
    run = Run(tmp_path)
    counts = []
    for number, share in enumerate(TRUNCATED, 101):
        counts += [run.step(number, rollout__truncated=share, oger__on_reward=number)["alarms/raised"]]
        if number in (102, 106):
            run.evaluate(number, accuracy=0.5 if number == 102 else 0.4)
        if number == 108:
            run.resume(108)
    assert counts == [0, 0, 1, 1, 1, 1, 2, 2, 1, 1, 2, 2, 2]
    assert [each for each in run.said() if each[1] == "truncation"] == [
        ("alarm", "truncation", 103), ("alarm_cleared", "truncation", 109), ("alarm", "truncation", 111),
    ]  # fmt: skip


@pytest.mark.parametrize("at", range(1, len(TRUNCATED)))
def test_a_resumed_run_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, at: int) -> None:
    """It repeats two steps, and its accuracy falls at step 6 and is back at step 10."""
    accuracy = {1: 0.5, 6: 0.4, 10: 0.5}

    def train(run: Run, first: int, last: int) -> None:
        for number in range(first, last + 1):
            run.step(number, rollout__truncated=TRUNCATED[number - 1], oger__on_reward=float(number))
            if number in accuracy:
                run.evaluate(number, accuracy[number])

    (tmp_path / "whole").mkdir()
    (tmp_path / "resumed").mkdir()
    whole, resumed = Run(tmp_path / "whole"), Run(tmp_path / "resumed")
    train(whole, 1, len(TRUNCATED))
    assert ("alarm", "reward_without_accuracy", 6) in whole.said()
    train(resumed, 1, min(at + 2, len(TRUNCATED)))
    resumed.resume(at)
    train(resumed, at + 1, len(TRUNCATED))
    assert resumed.said() == whole.said()
    strip = [{name: value for name, value in each.items() if name != "time"} for each in resumed.events]
    assert strip == [{name: value for name, value in each.items() if name != "time"} for each in whole.events]
    assert (resumed.folder / "metrics.jsonl").read_text() == (whole.folder / "metrics.jsonl").read_text()


def test_evaluations_are_compared_with_the_rewards_of_their_steps(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.evaluate(0, 0.5)
    assert math.isnan(run.step(1, oger__on_reward=0.25)["oger/held_out_fall"])
    run.step(2, oger__on_reward=0.75)
    run.evaluate(2, 0.46)  # not far enough
    found = run.step(3, oger__on_reward=1.0)
    assert found["oger/held_out_fall"] == pytest.approx(0.04) and found["oger/reward_rise"] == 0.25
    run.evaluate(3, 0.44)
    run.step(4, oger__on_reward=1.0)
    (event,) = run.events
    assert (event["name"], event["step"], event["value"]) == ("reward_without_accuracy", 3, pytest.approx(0.06))
    assert (
        "since step 0 the trained reward has risen by 0.417 and held-out accuracy has fallen by 0.060" in event["text"]
    )


def test_a_level_says_whether_an_alarm_ends_the_run_or_is_not_looked_at(tmp_path: Path) -> None:
    run = Run(tmp_path, truncation="stop", never_solved="off")
    for number in range(1, 4):
        assert run.alarms.stop is None
        run.step(number, rollout__truncated=1.0, rollout__solve_rate=0.0)
    assert run.alarms.stop is not None and run.alarms.stop.startswith("100% of the rollouts are cut")
    assert [(each["name"], each["level"]) for each in run.events] == [("truncation", "stop")]
    run.resume(2)
    assert run.alarms.stop is None
    run.step(3, rollout__truncated=1.0)
    assert run.alarms.stop  # as long as it is found
    run.step(4, rollout__truncated=0.0)
    run.step(5, rollout__truncated=0.0)
    assert run.alarms.stop
    run.step(6, rollout__truncated=0.0)
    assert run.alarms.stop is None


def test_sources_raise_an_alarm_each_and_rules_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ends = {f"reward__{name}__length_correlation": 0.9 for name in ("rule", "one", "other")}
    assert run.step(1, **ends)["alarms/raised"] == 2
    assert [each["metric"] for each in run.events] == [
        "reward/one/length_correlation", "reward/other/length_correlation",
    ]  # fmt: skip


def test_a_run_of_an_earlier_version_can_resume(tmp_path: Path) -> None:
    append_json(tmp_path / "metrics.jsonl", {"step": 1, "rollout/reward": 0.5})
    found = Run(tmp_path).step(2, oger__on_reward=0.5)
    assert found.keys() == {"oger/on_reward", "oger/held_out_fall", "oger/reward_rise", "alarms/raised"}


def test_the_state_of_a_run_names_the_alarms_that_are_raised(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for number, share in enumerate(TRUNCATED, 1):
        run.step(number, rollout__truncated=share, rollout__solve_rate=0.0)
    log = RunLog(tmp_path)
    log.update()
    assert [(each.name, each.step, each.cleared) for each in log.alarms] == [
        ("truncation", 3, 9), ("never_solved", 3, None), ("truncation", 11, None),
    ]  # fmt: skip
    assert [(note.step, note.text) for note in log.notes] == [(each["step"], each["text"]) for each in run.events]
    assert log.milestone is None  # a run is not at its alarm
