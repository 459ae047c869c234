"""What a run watches in its rewards: a policy that learns to please a source is seen in metrics, and warned of."""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oger_recipe.algorithm.reward_watch import Drift, comoments, correlation, disagreement, drift, growth, pair_orders
from oger_recipe.base.files import read_jsonl
from oger_recipe.grading.verdict import Verdict
from oger_recipe.pipeline.controller.metrics import token_counts
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.rewards.compose import Rewards
from oger_recipe.rewards.spec import GATES, SourceSpec
from oger_recipe.run_folder.records import event
from oger_recipe.settings.rewards import RewardSettings

REWARD = "oger/on_reward"  # the metric of a step that the drift is taken of
FALL = 0.05  # of the share that is right; a larger one is warned of


@dataclass(frozen=True)
class _Watched:
    """made_of: makes the metric of a window's sums; limit: above it a source is warned of; means, advice: what the
    warning says."""

    made_of: Callable[[torch.Tensor], float]
    limit: float
    means: Callable[[float], str]
    advice: str


# By the end of the metric's name.
_WATCHED = {
    "length_correlation": _Watched(
        correlation,
        0.5,
        lambda r: f"pays for {'longer' if r > 0 else 'shorter'} answers",
        "A lower weight, gate rule_equals_1 behind a verifier, or telling a judge that length does not count may help",
    ),
    "format_correlation": _Watched(
        correlation,
        0.9,
        lambda r: f"pays for answers {'in' if r > 0 else 'out of'} form, whatever they say",
        "Gate rule_equals_1 leaves the form to the rule",
    ),
    "rule_disagreement": _Watched(
        disagreement,
        0.6,
        lambda share: f"orders {share:.0%} of the pairs within groups against the rule",
        "With gate rule_equals_1 it decides between right answers alone",
    ),
}


class SourceWatch:
    """Compares what each source says of the policy's own rows with their length, their form and the rule, over some
    steps. A resumed run begins a new window."""

    def __init__(self, settings: RewardSettings, specs: Sequence[SourceSpec], run_dir: Path) -> None:
        self._settings, self._specs, self._run_dir = settings, specs, run_dir
        self._steps: deque[dict[str, torch.Tensor]] = deque(maxlen=settings.watch_steps)
        self._said: set[str] = set()

    def look_at(self, step: TrainingStep) -> dict[str, float]:
        """Return the metrics of the steps up to this one, and warn once of each that passes its limit."""
        self._steps.append({})
        found = {}
        lengths = token_counts(step.batch.samples)
        in_form = torch.tensor([float(_in_form(graded.verdict)) for graded in step.rollouts.graded])
        for spec in self._specs:
            for end, sums in _sums(spec, step, lengths, in_form).items():
                name = f"reward/{spec.name}/{end}"
                self._steps[-1][name] = sums
                found[name] = _WATCHED[end].made_of(torch.stack([each[name] for each in self._steps]).sum(dim=0))
                if not spec.keys.is_rule and not (spec.keys.is_length and end == "length_correlation"):
                    self._warn(spec.name, name, _WATCHED[end], found[name], step.number)
        return found

    def _warn(self, source: str, metric: str, watched: _Watched, value: float, step: int) -> None:
        if metric in self._said or not self._settings.watch or not abs(value) > watched.limit:
            return
        self._said.add(metric)
        text = (
            f"WARNING: step {step}: reward source {source} {watched.means(value)}: {metric} is {value:.2f} over the "
            f"last {len(self._steps)} steps (limit: {watched.limit:g}). Read in samples/ what it pays for. "
            f"{watched.advice}"
        )
        event(self._run_dir, "note", step=step, text=text)


def _sums(
    spec: SourceSpec, step: TrainingStep, lengths: torch.Tensor, in_form: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Sum what a source's metrics are made of, but for teachers' rows, those that it failed on and those behind its
    gate. lengths (tokens), in_form (1 or 0): [N]."""
    batch, size = step.batch, step.rollouts.size
    sign = -1.0 if spec.weight < 0 else 1.0  # more of what has a weight below 0 is worth less
    said = (sign * _worth(spec.name, step.rewards)).where(
        GATES[spec.gate](batch.rewards) & ~batch.is_teacher, torch.nan
    )
    compared = (-1, size) if size > 1 else (1, -1)  # without groups rows are compared with the whole step's
    sums = {
        "length_correlation": comoments(said.view(compared), lengths.view(compared)),
        "format_correlation": comoments(said.view(compared), in_form.view(compared)),
    }
    if not spec.keys.is_rule:
        sums["rule_disagreement"] = pair_orders(said.view(-1, size), batch.rewards.view(-1, size))
    return sums


def _worth(source: str, rewards: Rewards) -> torch.Tensor:
    """Return what a source says of responses [N]. Where it pays for their steps of reasoning that is the steps' sum:
    its one number of a response, the worst step say, may fall with the length while the policy is paid more."""
    said = rewards.said[source].flatten()
    if rewards.steps is None or source not in rewards.said_of_steps:
        return said
    return rewards.said_of_steps[source].flatten(0, 1).nansum(dim=1).where(said.isfinite(), torch.nan)


def _in_form(verdict: Verdict) -> bool:
    """Say whether an answer was found in the response, by the verifier's own component or by what it extracted."""
    return verdict.components.get("format", float(verdict.extracted is not None)) > 0


class DriftWatch:
    """Sees the trained reward rise while held-out accuracy falls; a resumed run knows what was before."""

    def __init__(self, settings: RewardSettings, run_dir: Path) -> None:
        self._settings, self._run_dir, self._said = settings, run_dir, not settings.watch
        steps = read_jsonl(run_dir / "metrics.jsonl")
        self._rewards = {each["step"]: each[REWARD] for each in steps if each.get(REWARD) is not None}
        self._accuracy = {
            int(path.stem.removeprefix("step_")): _accuracy(json.loads(path.read_text())["average"])
            for path in (run_dir / "eval").glob("step_*.json")
        }

    def stepped(self, step: int, reward: float) -> dict[str, float]:
        """Record a step's mean reward; return accuracy's fall and reward's rise up to here, nan where unknown."""
        self._rewards[step] = reward
        found = self._drift()
        fall, rise = (math.nan, math.nan) if found is None else (found.fall, found.rise)
        return {"oger/held_out_fall": fall, "oger/reward_rise": rise}

    def evaluated(self, step: int, average: Mapping[str, Any]) -> None:
        """Record an evaluation, the average over its benchmarks; warn once of a drift."""
        self._accuracy[step] = _accuracy(average)
        found = self._drift()
        if self._said or found is None or found.fall <= FALL or found.rise <= 0:
            return
        self._said = True
        text = (
            f"WARNING: step {step}: since step {found.since} the trained reward has risen by {found.rise:.3f} and "
            f"held-out accuracy has fallen by {found.fall:.3f} (limit: {FALL:g}): the policy "
            "learns what the sources pay for and not what is right. Compare reward/* of both steps: the "
            "source that rose is the one to weigh less or to gate"
        )
        event(self._run_dir, "note", step=step, text=text)

    def _drift(self) -> Drift | None:
        return drift(self._rewards, self._accuracy, self._settings.watch_steps)


# Metrics of a step that grow where a policy is paid by the step, and the factor of growth that is a warning sign.
GROWING = {"rollout/steps": "steps of reasoning", "rollout/response_length": "tokens"}
GREW, SOLVED = 1.2, "rollout/solve_rate"


class GrowthWatch:
    """Sees responses get more steps, or more tokens, while fewer of them are right: what rewards of steps invite. A
    resumed run knows what was before."""

    def __init__(self, settings: RewardSettings, run_dir: Path) -> None:
        self._settings, self._run_dir, self._said = settings, run_dir, not settings.watch
        self._steps: dict[int, Mapping[str, float]] = {}
        for each in read_jsonl(run_dir / "metrics.jsonl"):
            self._remember(each["step"], each)

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step's metrics; warn once where responses grow and solve less."""
        self._remember(step, metrics)
        window = self._settings.watch_steps
        solved = {each: metrics[SOLVED] for each, metrics in self._steps.items()}
        for metric, what in GROWING.items():
            sizes = {each: metrics[metric] for each, metrics in self._steps.items()}
            found = growth(sizes, solved, window)
            if self._said or found is None or found.fall <= FALL or found.factor < GREW:
                continue
            self._said = True
            text = (
                f"WARNING: step {step}: responses have {found.factor:.1f} times the {what} ({metric}) that they had "
                f"in the {window} steps up to step {found.since}, and the share that is right has fallen by "
                f"{found.fall:.3f} (limit: {FALL:g}): a policy that is paid by the step "
                "learns to write more of them. Read steps_of_reasoning in samples/. credit min_ahead, a lower "
                "weight, a verifier beside it or oger.steps.max_steps are the usual remedies"
            )
            event(self._run_dir, "note", step=step, text=text)

    def _remember(self, step: int, metrics: Mapping[str, float]) -> None:
        known = {name: metrics.get(name) for name in (SOLVED, *GROWING)}
        if None not in known.values():  # without steps of reasoning there is nothing to see
            self._steps[step] = {name: float(value) for name, value in known.items() if value is not None}


def _accuracy(average: Mapping[str, Any]) -> float:
    """Return avg@n of an evaluation."""
    return next(float(value) for name, value in average.items() if name.startswith("avg_at_"))
