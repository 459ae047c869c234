"""When the metrics of a step say that training is lost: numbers that are not finite, a policy that has collapsed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_LOST_STEPS, _BEFORE, _SOLVED = 3, 5, 0.05  # steps without a solution, the steps before, their mean solve rate


def bad_numbers(metrics: Mapping[str, Any]) -> str | None:
    """Say what is wrong with the policy or the critic after this step; return None where nothing is."""
    for prefix, model, loss in (("", "policy", "policy_loss"), ("critic_", "critic", "critic_loss")):
        norm = metrics.get("actor_grad_norm" if not prefix else "critic_grad_norm", 0.0)
        updates, skipped = metrics.get(f"{prefix}updates", 0.0), metrics.get(f"{prefix}skipped_updates", 0.0)
        advice = f"; a lower {'critic' if prefix else 'actor'}.adam.lr is the usual remedy"
        if metrics.get(f"{prefix}nonfinite_parameters"):
            return f"the {model} has parameters that are not finite{advice}"
        if not math.isfinite(metrics.get(loss, 0.0)):
            return f"the {model}'s loss is {metrics[loss]}{advice}"
        if updates and skipped == updates:
            return f"DeepSpeed skipped all {updates:.0f} updates of the {model}: no gradient was finite{advice}"
        if not math.isfinite(norm):
            return f"the norm of the {model}'s gradient is {norm}{advice}"
    return None


def collapsed(solve_rates: Sequence[float]) -> str | None:
    """Return a warning where a policy that did solve problems has solved none in the last steps, else None."""
    before = solve_rates[:-_LOST_STEPS][-_BEFORE:]
    if not before or any(solve_rates[-_LOST_STEPS:]) or sum(before) / len(before) < _SOLVED:
        return None
    return (
        f"WARNING: the policy has collapsed: it solved {sum(before) / len(before):.3f} of its rollouts, and none in "
        f"the last {_LOST_STEPS} steps. A new run with a lower actor.adam.lr is the usual remedy; the newest "
        "checkpoint of a step that solved something is kept"
    )
