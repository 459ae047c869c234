"""The alarms of a run: evaluated after every step and every evaluation, and recorded when they are raised or clear."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oger_recipe.algorithm.alarms import ALARMS, OFF, REWARD, STOP, Finding, History, found, still_solves
from oger_recipe.algorithm.reward_watch import drift
from oger_recipe.base.files import read_jsonl
from oger_recipe.run_folder.records import ALARM, ALARM_CLEARED, event
from oger_recipe.settings.alarms import AlarmSettings

_Key = tuple[str, str]  # alarm, metric: an alarm of sources may be raised by several


class Alarms:
    """What is raised follows from the records of the run alone: a resumed run knows it from its folder.

    An alarm stays raised until it has not been found for a window of steps, so that a value close to its limit is
    reported once. One with level stop asks for the end of the run whenever it is found.
    """

    def __init__(self, run_dir: Path, settings: AlarmSettings, excused: Collection[str]) -> None:
        self._run_dir, self._levels, window = run_dir, settings.levels, settings.window
        accuracy = {
            int(path.stem.removeprefix("step_")): _accuracy(json.loads(path.read_text())["average"])
            for path in (run_dir / "eval").glob("step_*.json")
        }
        self._steps: list[Mapping[str, float | None]] = [*read_jsonl(run_dir / "metrics.jsonl")]
        self._history = History(self._steps, accuracy, window, excused)
        self._found: dict[_Key, int] = {}  # the last step at which a raised alarm was found
        self._stops: list[str] = []
        for count in range(max(len(self._steps) - window, 0) + 1, len(self._steps) + 1):
            history = replace(self._history, steps=self._steps[:count])
            for until in (history.step - 1, history.step):  # before the step's evaluation, and after it
                known = {at: value for at, value in accuracy.items() if at <= until}
                self._look_at(replace(history, accuracy=known))

    def stepped(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record a step; return the metrics of held-out accuracy's fall and the reward's rise, and of the alarms."""
        self._steps.append({"step": step, **metrics})
        parted = drift(self._history.by_step(REWARD), self._history.accuracy, self._history.window)
        fall, rise = (math.nan, math.nan) if parted is None else (parted.fall, parted.rise)
        self._raise(step)
        for name, metric in self._clear(step):
            text = f"step {step}: alarm {name} has cleared: {metric} has been within its limit for "
            text += f"{self._history.window} steps"
            event(self._run_dir, ALARM_CLEARED, name=name, metric=metric, step=step, text=text)
        return {
            "oger/held_out_fall": fall,
            "oger/reward_rise": rise,
            "alarms/raised": float(len(self._found)),
        }

    def evaluated(self, step: int, average: Mapping[str, Any]) -> None:
        """Record an evaluation, the average over its benchmarks."""
        self._history = replace(self._history, accuracy={**self._history.accuracy, step: _accuracy(average)})
        self._raise(step)

    @property
    def stop(self) -> str | None:
        """Say which alarms with level stop were found after the newest step, if any."""
        return " ".join(self._stops) or None

    @property
    def still_solves(self) -> bool:
        """Say whether the policy has not collapsed by the newest step, whatever the level of the alarm is."""
        return still_solves(self._history)

    def _raise(self, step: int) -> None:
        """Record the alarms that were not raised before."""
        self._stops = []
        before = set(self._found)
        for name, finding in self._look_at(self._history):
            numbers = f"{finding.metric}: {finding.value:.4g}, limit: {finding.limit:.4g}"
            text = f"{finding.text} ({numbers}). {ALARMS[name].advice} (oger.alarms.{name})"
            level = self._levels[name]
            if level == STOP:
                self._stops.append(text)
            if (name, finding.metric) not in before:
                facts = {"metric": finding.metric, "value": finding.value, "limit": finding.limit, "level": level}
                event(self._run_dir, ALARM, name=name, step=step, text=f"WARNING: step {step}: {text}", **facts)

    def _look_at(self, history: History) -> list[tuple[str, Finding]]:
        """Return what is found after the history's last step, and note it as raised."""
        all_found = [
            (name, finding) for name, level in self._levels.items() if level != OFF for finding in found(name, history)
        ]
        self._found |= {(name, finding.metric): history.step for name, finding in all_found}
        return all_found

    def _clear(self, step: int) -> list[_Key]:
        """Forget the alarms that were not found for a window of steps; return them."""
        cleared = [key for key, last in self._found.items() if step - last >= self._history.window]
        for key in cleared:
            del self._found[key]
        return cleared


def _accuracy(average: Mapping[str, Any]) -> float:
    """Return avg@n of an evaluation."""
    return next(float(value) for name, value in average.items() if name.startswith("avg_at_"))
