"""Numbers of models that are not finite: which rows have them, what becomes of them and is kept, when the run stops.

log-probability (the policy's or the reference's),   no other row sees it; the updates that the row is in are
value of the critic                                  skipped
log-probability, the engine's                        the row is not compared with the policy, and its tokens have
                                                     weight 1; the run stops where no row is left to compare
entropy                                              the row earns no bonus
similarity to the teachers                           it is unknown: no bonus, and the group's mean in its place
                                                     where rollouts make room
grade of a token                                     the row has no grades
reward                                               its source failed on the row, or its group is dropped
                                                     (rewards/compose.py)
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from oger_recipe.pipeline.controller.samples import Line, sample_lines
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.run_folder.records import event, write_skipped

LOG_PROBS, VALUES, ENGINE_LOG_PROBS, ENTROPIES, SIMILARITIES, GRADES, REWARDS = KINDS = (
    "log_probs", "values", "engine_log_probs", "entropies", "similarities", "grades", "rewards",
)  # fmt: skip
_TENSORS = {LOG_PROBS: ("action_log_probs", "base_action_log_probs", "kl"), VALUES: ("values",)}
_OF_ROWS = ("kl", "logprobs_diff")  # among the infos: means of rows
_SOURCE = "reward/"  # begins the metrics of a source


def take_out(experience: Experience) -> dict[str, Tensor]:
    """Return the rows (bool [B]) with log-probabilities and values that are not finite, and put 0 in their place.

    What compares rows, as whitening does, must not see them.
    """
    mask, found = experience.action_mask.bool(), {}
    for kind, names in _TENSORS.items():
        tensors = {name: tensor for name in names if (tensor := getattr(experience, name)) is not None}
        bad = torch.zeros(len(mask), dtype=torch.bool)
        for tensor in tensors.values():
            bad |= (~tensor.isfinite() & mask).any(dim=1)
        for name, tensor in tensors.items():
            setattr(experience, name, tensor.masked_fill(bad.unsqueeze(1), 0.0))
        found[kind] = bad
    for name in _OF_ROWS:
        experience.info[name] = experience.info[name].masked_fill(found[LOG_PROBS], 0.0)
    return found


def make_untrainable(experiences: Iterable[Experience], step: TrainingStep) -> None:
    """Give the rows whose log-probabilities or values are not finite an advantage and a return that are not.

    The loss of their micro-batches is not finite then, and DeepSpeed skips the update (pipeline/policy/updates.py).
    """
    bad = step.nonfinite[LOG_PROBS] | step.nonfinite[VALUES]
    for experience in experiences:
        rows = bad[experience.index].unsqueeze(1)
        for name in ("advantages", "returns"):
            if rows.any() and getattr(experience, name) is not None:
                setattr(experience, name, getattr(experience, name).masked_fill(rows, torch.nan))


def counts(step: TrainingStep) -> dict[str, float]:
    """Return how many rows have each kind of number that is not finite."""
    return {f"nonfinite/{kind}": float(step.nonfinite[kind].sum()) for kind in KINDS}


def keep_skipped(of_step: TrainingStep, status: Mapping[str, float], step: int, run_dir: Path) -> None:
    """Keep the rows of a step in which an update was skipped, and record a note. ``status``: of the training."""
    metrics = {**status, **of_step.metrics}
    for prefix, model in _trained(metrics).items():
        if not (skipped := metrics.get(f"{prefix}skipped_updates")):
            continue
        path = write_skipped(run_dir, step, kept_lines(of_step))
        text = f"WARNING: {skipped:.0f} of {metrics[f'{prefix}updates']:.0f} updates of the {model} were skipped"
        text += f": {why_skipped(metrics, prefix)}. The rows of the step are in {path}"
        event(run_dir, "note", step=step, text=text)


def kept_lines(step: TrainingStep) -> Iterator[Line]:
    """Yield the lines of samples/ for the rows that are trained, with their number, their tokens and what is not
    finite."""
    trained = (line for line in sample_lines(step) if not line.get("replaced"))
    for row, (line, sample) in enumerate(zip(trained, step.batch.samples, strict=True)):
        tokens = sample.sequences[0][sample.attention_mask[0].bool()].tolist()
        named: dict[str, Any] = {"row": row, "tokens": tokens}
        yield line | named | {"not_finite": [kind for kind in KINDS if step.nonfinite[kind][row]]}


def broken_parameters(metrics: Mapping[str, Any]) -> str | None:
    """Say which model is broken after this step, so that nothing of it is worth saving; None where all are whole."""
    for prefix, model in _trained(metrics).items():
        if metrics.get(f"{prefix}nonfinite_parameters"):
            return f"the {model} has parameters that are not finite{_advice(prefix)}"
    return None


def skipped_too_often(metrics: Mapping[str, Any], *, limit: int) -> str | None:
    """Say why the run stops after this step, whose models are whole: ``limit`` updates in a row were skipped."""
    for prefix, model in _trained(metrics).items():
        series = metrics.get(f"{prefix}skipped_in_a_row", 0.0)
        if series >= limit:
            return (
                f"{series:.0f} updates of the {model} in a row were skipped (limit: {limit}, "
                f"oger.max_skipped_updates): {why_skipped(metrics, prefix)}"
            )
    return None


def _trained(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Name what is trained, by the prefix of its metrics: the policy, a critic, and sources of reward that learn."""
    end = "/skipped_updates"
    sources = [name.removesuffix(end) for name in metrics if name.startswith(_SOURCE) and name.endswith(end)]
    return {"": "policy", "critic_": "critic"} | {
        f"{each}/": f"reward source {each.removeprefix(_SOURCE)}" for each in sources
    }


def why_skipped(metrics: Mapping[str, Any], prefix: str) -> str:
    """Name the number that was not finite first in a step in which an update was skipped, and what to do."""
    if prefix.startswith(_SOURCE):  # its model has seen no number of the policy's
        return f"its gradients are not finite{_advice(prefix)}"
    for kind, of in (("log_probs", "the log-probabilities"), ("values", "the critic's values")):
        if rows := metrics.get(f"nonfinite/{kind}"):
            return (
                f"{of} of {rows:.0f} rows are not finite already before the update: check the model with oger eval, "
                "and the rows for what they have in common"
            )
    model, advice = _trained(metrics)[prefix], _advice(prefix)
    if metrics.get(f"{prefix}nonfinite_losses"):
        return f"the {model}'s loss is not finite, and the numbers that it is made of were{advice}"
    return f"the {model}'s gradients are not finite, and its loss is{advice}"


def _advice(prefix: str) -> str:
    rate = {"": "actor.adam.lr", "critic_": "critic.adam.lr"}.get(prefix, "learning_rate or beta of the source")
    return f"; a lower {rate} is the usual remedy"
