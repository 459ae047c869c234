"""What a run watches in its rewards: a policy that learns to please a source is seen in metrics."""

from collections import deque
from collections.abc import Mapping, Sequence

import torch

from oger_recipe.algorithm.reward_watch import comoments, correlation, disagreement, pair_orders
from oger_recipe.pipeline.controller.metrics import in_form, token_counts
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.rewards.compose import Rewards
from oger_recipe.rewards.spec import GATES, SourceSpec

# What makes the metric of a window's sums, by the end of the metric's name.
_MADE_OF = {
    "length_correlation": correlation,
    "format_correlation": correlation,
    "rule_disagreement": disagreement,
}


class SourceWatch:
    """Compares what each source says of the policy's own rows with their length, their form and the rule, over some
    steps."""

    def __init__(self, window: int, specs: Sequence[SourceSpec]) -> None:
        self._specs = specs
        self._steps: deque[dict[str, torch.Tensor]] = deque(maxlen=window)

    @property
    def excused(self) -> set[str]:
        """Return the metrics that no alarm is for: those of rules, and the length that kind length is paid for."""
        rules = {f"reward/{spec.name}/{end}" for spec in self._specs if spec.keys.is_rule for end in _MADE_OF}
        return rules | {f"reward/{spec.name}/length_correlation" for spec in self._specs if spec.keys.is_length}

    def state(self) -> list[dict[str, list[float]]]:
        """Return the window, for a checkpoint."""
        return [{name: sums.tolist() for name, sums in step.items()} for step in self._steps]

    def resume(self, state: Sequence[Mapping[str, list[float]]]) -> None:
        """Continue with the window of a checkpoint."""
        self._steps.extend(
            {name: torch.tensor(sums, dtype=torch.double) for name, sums in step.items()} for step in state
        )

    def look_at(self, step: TrainingStep) -> dict[str, float]:
        """Return the metrics of the steps up to this one."""
        self._steps.append({})
        found = {}
        lengths = token_counts(step.batch.samples)
        forms = in_form(step.rollouts)
        for spec in self._specs:
            for end, sums in _sums(spec, step, lengths, forms).items():
                name = f"reward/{spec.name}/{end}"
                self._steps[-1][name] = sums
                window = torch.stack([each[name] for each in self._steps if name in each])
                found[name] = _MADE_OF[end](window.sum(dim=0))
        return found


def _sums(spec: SourceSpec, step: TrainingStep, lengths: torch.Tensor, forms: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sum what a source's metrics are made of, but for teachers' rows, those that it failed on and those behind its
    gate. lengths (tokens), forms (1 or 0, nan: not known): [N]."""
    batch, size = step.batch, step.rollouts.size
    sign = -1.0 if spec.weight < 0 else 1.0  # more of what has a weight below 0 is worth less
    said = (sign * _worth(spec.name, step.rewards)).where(
        GATES[spec.gate](batch.rewards) & ~batch.is_teacher, torch.nan
    )
    compared = (-1, size) if size > 1 else (1, -1)  # without groups rows are compared with the whole step's
    sums = {
        "length_correlation": comoments(said.view(compared), lengths.view(compared)),
        "format_correlation": comoments(said.view(compared), forms.view(compared)),
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
