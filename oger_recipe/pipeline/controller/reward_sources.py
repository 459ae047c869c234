"""The reward of every row of a training step, from the sources that the recipe lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from oger_recipe.algorithm.credit import STEP_ESTIMATORS
from oger_recipe.algorithm.exploration import scheduled_weight
from oger_recipe.algorithm.normalize import Running
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import append_json, read_jsonl
from oger_recipe.pipeline.controller.guards import SourceGuard
from oger_recipe.pipeline.controller.hybrid_batch import reward_groups
from oger_recipe.pipeline.controller.nonfinite import ENTROPIES
from oger_recipe.pipeline.controller.reward_watch import SourceWatch
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.rewards.compose import Rewards, rewards_of, with_fixed_rewards
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.rewards.sources import Learning
from oger_recipe.rewards.spec import Surroundings
from oger_recipe.settings.own_functions import register


class RewardSources:
    """Asks the sources of reward about each training step."""

    def __init__(self, surroundings: Surroundings, run_dir: Path, estimator: str) -> None:
        settings = surroundings.settings
        self._settings, self._run_dir, self._on_error = settings, run_dir, settings.reward.on_error
        for problem in register(estimator, settings):
            raise RecipeError(problem)
        self._specs, self._by_steps = sources_of(settings.reward.sources, estimator), estimator in STEP_ESTIMATORS
        self._sources = [spec.source(surroundings) for spec in self._specs]
        self._guard = SourceGuard(run_dir, settings.reward, self._specs)
        self.watch = SourceWatch(settings.alarms.window, self._specs)
        self._running: dict[str, Running] = {}

    def state(self) -> dict[str, Any]:
        """Return what is known of earlier steps and is in no file, for a checkpoint."""
        return {"watch": self.watch.state(), "failed": self._guard.state()}

    def resume(self, step: int, learnt: Path, state: Mapping[str, Any]) -> None:
        """Resume after ``step`` steps of the run; ``learnt``: where `save` has kept what sources had learnt then.

        ``state``: the checkpoint's, empty without one. Raises RecipeError where what sources had learnt is missing.
        """
        self.watch.resume(state.get("watch", ()))
        self._guard.resume(state.get("failed", {}))
        self._running = read_running(self._run_dir, step)
        for name, source in self._learning().items() if step else ():
            source.load(learnt / name)

    def save(self, folder: Path) -> None:
        """Save what sources have learnt so far, each in a folder of its name."""
        for name, source in self._learning().items():
            source.save(folder / name)

    @property
    def names(self) -> list[str]:
        """Names of the sources that can pay something."""
        return [spec.name for spec in self._specs if not spec.keys.is_bonus or self._settings.has_bonus]

    @property
    def learns(self) -> bool:
        """Whether a source learns from the steps that it scores."""
        return bool(self._learning())

    def _learning(self) -> dict[str, Learning]:
        """Return the sources that learn, by name."""
        named = zip(self._specs, self._sources, strict=True)
        return {spec.name: source for spec, source in named if isinstance(source, Learning)}

    def bonus_weight(self, step: int, planned_steps: int) -> float:
        """Return the weight of the exploration bonus at a step (from 1) of a run."""
        bonus = self._settings.bonus
        return scheduled_weight(
            step,
            start=bonus.bonus_weight,
            end=bonus.bonus_weight_end,
            steps=bonus.bonus_schedule_steps or planned_steps,
            schedule=bonus.bonus_schedule,
        )

    def of(self, step: TrainingStep) -> Rewards:
        """Ask the sources about a step whose entropies are known. Raises SourceFailed where one fails on too many."""
        fixed, batch = self._settings.advantage.non_stop_fixed_reward, step.batch
        may_earn = ~batch.is_teacher & ~batch.skipped & ~step.rollouts.repetitive & ~step.nonfinite[ENTROPIES]
        if fixed is not None:
            may_earn &= ~batch.truncated  # their reward is fixed, without anything on top
        groups = reward_groups(step.rollouts, batch, step.entropy, step.log_prob, may_earn)
        specs = [replace(spec, weight=step.bonus_weight) if spec.keys.is_bonus else spec for spec in self._specs]
        rewards = rewards_of(
            groups, self._sources, specs, on_error=self._on_error, running=self._running, by_steps=self._by_steps
        )
        self._guard.look_at(rewards, groups, step.number)
        self._running = rewards.running
        keep_running(self._run_dir, step.number, self._running)
        return with_fixed_rewards(rewards, groups, fixed)

    def bonus(self, rewards: Rewards) -> torch.Tensor:
        """Return what the bonus added, [N]; 0 where it is no source."""
        terms = [rewards.terms[spec.name] for spec in self._specs if spec.keys.is_bonus]
        return (terms[0] if terms else torch.zeros_like(rewards.total)).flatten()


# What a run knows of its sources' earlier values, for those with ``normalize: running``; kept beside the run.


NAME = "reward_statistics.jsonl"


def read_running(run_dir: Path, step: int) -> dict[str, Running]:
    """Read each source's statistics after ``step``."""
    records = [record for record in read_jsonl(run_dir / NAME) if record["step"] <= step]
    return {name: Running(**known) for name, known in records[-1]["sources"].items()} if records else {}


def keep_running(run_dir: Path, step: int, running: Mapping[str, Running]) -> None:
    """Append the statistics after ``step``."""
    if running:
        known = {name: asdict(each) for name, each in running.items()}
        append_json(run_dir / NAME, {"step": step, "sources": known})
