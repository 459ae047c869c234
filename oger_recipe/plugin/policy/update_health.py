"""Whether a step's updates did what they are for: DeepSpeed skips an update without a word, a rate can be too high."""

import math
from collections.abc import Sequence
from typing import Any

import torch

_LOST_STEPS, _BEFORE, _SOLVED = 3, 5, 0.05  # steps without a solution, after that many with this mean solve rate


class UpdateHealth:
    """Counts the updates of a DeepSpeed engine from here on."""

    def __init__(self, strategy: Any, engine: Any) -> None:
        self._strategy, self._engine = strategy, engine
        self._updates, self._skipped = engine.global_steps, engine.skipped_steps

    def since(self) -> dict[str, float]:
        """``updates``, ``skipped_updates`` and ``nonfinite_parameters``, tensors on any rank with such a number."""
        local = [getattr(parameter, "ds_tensor", parameter) for parameter in self._engine.module.parameters()]
        broken = sum(not torch.isfinite(tensor.detach()).all().item() for tensor in local)
        return {
            "updates": float(self._engine.global_steps - self._updates),
            "skipped_updates": float(self._engine.skipped_steps - self._skipped),
            "nonfinite_parameters": float(self._strategy.all_reduce(float(broken), op="max")),
        }


def bad_numbers(figures: dict[str, Any]) -> str | None:
    """What is wrong with the policy or the critic after this step, None where nothing is."""
    for prefix, model, loss in (("", "policy", "policy_loss"), ("critic_", "critic", "critic_loss")):
        norm = figures.get("actor_grad_norm" if not prefix else "critic_grad_norm", 0.0)
        updates, skipped = figures.get(f"{prefix}updates", 0.0), figures.get(f"{prefix}skipped_updates", 0.0)
        advice = f"; a lower {'critic' if prefix else 'actor'}.adam.lr is the usual remedy"
        if figures.get(f"{prefix}nonfinite_parameters"):
            return f"the {model} has parameters that are not finite{advice}"
        if not math.isfinite(figures.get(loss, 0.0)):
            return f"the {model}'s loss is {figures[loss]}{advice}"
        if updates and skipped == updates:
            return f"DeepSpeed skipped all {updates:.0f} updates of the {model}: no gradient was finite{advice}"
        if not math.isfinite(norm):
            return f"the norm of the {model}'s gradient is {norm}{advice}"
    return None


def collapsed(solve_rates: Sequence[float]) -> str | None:
    """A warning where a policy that did solve problems has solved none in the last steps."""
    before = solve_rates[:-_LOST_STEPS][-_BEFORE:]
    if not before or any(solve_rates[-_LOST_STEPS:]) or sum(before) / len(before) < _SOLVED:
        return None
    return (
        f"WARNING: the policy has collapsed: it solved {sum(before) / len(before):.3f} of its rollouts, and none in "
        f"the last {_LOST_STEPS} steps. A new run with a lower actor.adam.lr is the usual remedy; the newest "
        "checkpoint of a step that solved something is kept"
    )
