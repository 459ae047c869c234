"""The metrics of one training step that the controller knows: of rollouts, teachers, bonus and advantages."""

import math

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.algorithm.exploration import spread_within_groups
from oger_recipe.algorithm.hybrid_group import own_or_all, solve_rates
from oger_recipe.grading.verdict import Verdict
from oger_recipe.pipeline.controller.training_step import HybridBatch, Rollouts, TrainingStep


def info_value(sample: Experience, key: str) -> float:
    """Return a number that the reward function reported of a single rollout, 0 where it reported none."""
    return float(sample.info[key].item()) if key in sample.info else 0.0


def metrics_of(step: TrainingStep) -> dict[str, float]:
    """Return the step's metrics; the keys never change, but for components that a failing source does not name.

    ``rollout/*`` are of the policy's own rollouts as sampled, before any bonus or replacement; ``oger/*`` of the rows
    that are trained, ``reward/*`` of the rollouts among them. Where teachers began every rollout of a group,
    ``rollout/*`` are of these; but see _mean_token_entropy.
    """
    rollouts, groups = step.rollouts, (-1, step.rollouts.size)
    unguided = ~rollouts.guided.view(groups)
    own, solved = own_or_all(unguided).flatten(), solve_rates(rollouts.scores.view(groups), unguided)
    lengths = token_counts(rollouts.samples)[own]
    truncated = torch.cat([sample.truncated for sample in rollouts.samples]).float()[own]
    prompts = token_counts(rollouts.samples, "prompt")
    return {
        "rollout/solve_rate": _mean(rollouts.scores[own]),
        "rollout/solve_all": (solved == 1).float().mean().item(),
        "rollout/solve_none": (solved == 0).float().mean().item(),
        "rollout/reward": _mean(rollouts.rewards[own]),
        "rollout/reward_error": sum(info_value(sample, "reward_error") for sample in rollouts.samples),
        "rollout/reward_timeout": sum(info_value(sample, "reward_timeout") for sample in rollouts.samples),
        **_spread("rollout/response_length", lengths),
        "rollout/response_tokens": lengths.sum().item(),
        **_spread("rollout/prompt_length", prompts),
        "rollout/truncated": _mean(truncated),
        "rollout/format": in_form(rollouts)[own].nanmean().item(),
        **_of_steps(rollouts, own, lengths, truncated),
        "rollout/repetitive": _mean(rollouts.repetitive[own].float()),
        "rollout/entropy": _mean_token_entropy(step.batch, step.token_entropy),
        **_teacher_metrics(step),
        **_bonus_metrics(step),
        **_source_metrics(step),
    }


def in_form(rollouts: Rollouts) -> torch.Tensor:
    """Mark the rollouts in which an answer was found (1, else 0), by the verifier's own component or by what it
    extracted, [N].

    nan for a task of which no rollout has either: its verifier, which may return a number alone, says nothing of form.
    """
    tasks = [label["task"] for label in rollouts.labels for _ in range(rollouts.size)]
    forms = [_form(graded.verdict) for graded in rollouts.graded]
    telling = {task for task, form in zip(tasks, forms, strict=True) if form is not None}
    return torch.tensor(
        [float(bool(form)) if task in telling else math.nan for task, form in zip(tasks, forms, strict=True)]
    )


def _form(verdict: Verdict) -> bool | None:
    if "format" in verdict.components:
        return verdict.components["format"] > 0
    return None if verdict.extracted is None else True


def equal_groups(rewards: torch.Tensor) -> float:
    """Return the share of groups whose rows earn the same, of rewards [groups, n]; nan where a group is one row."""
    return (rewards == rewards[:, :1]).all(dim=1).float().mean().item() if rewards.shape[1] > 1 else math.nan


def _of_steps(
    rollouts: Rollouts, own: torch.Tensor, lengths: torch.Tensor, truncated: torch.Tensor
) -> dict[str, float]:
    """Return metrics of the steps of reasoning of the ``own`` rollouts, whose tokens are ``lengths``; {} where the
    recipe has no steps.

    A response that was truncated in the last step that it may have was ended by the cap of steps.
    """
    if rollouts.cutter is None:
        return {}
    steps = torch.tensor([float(len(each)) for each in rollouts.steps])[own]
    most = rollouts.cutter.rule.max_steps
    ended = {} if most is None else {"rollout/ended_by_max_steps": _mean(truncated * (steps >= most))}
    return _spread("rollout/steps", steps) | {"rollout/step_length": _mean(lengths / steps)} | ended


def _mean_token_entropy(batch: HybridBatch, entropy: torch.Tensor) -> float:
    """Average the rows' means ``entropy`` [N] (nats) over the tokens of the rollouts that are trained on.

    Rows with a teacher's tokens do not count, neither do rollouts that made room for a teacher: no model reads these.
    One row whose entropy is not finite, which is counted elsewhere, must not hide the others'. nan where none is left.
    """
    lengths = token_counts(batch.samples)
    own = ~batch.is_teacher & (lengths > 0) & entropy.isfinite()
    return (entropy[own] @ lengths[own] / lengths[own].sum()).item() if own.any() else math.nan


def _teacher_metrics(step: TrainingStep) -> dict[str, float]:
    batch, advantages = step.batch, step.advantages
    off, on = batch.is_teacher, ~batch.is_teacher
    lengths = token_counts(batch.samples)
    teacher_tokens = torch.tensor([info_value(sample, "off_policy_tokens") for sample in batch.samples])
    replaced = torch.tensor(sorted(batch.injected), dtype=torch.long)
    correct = step.rollouts.scores[replaced].sum().item()
    return {
        "oger/replaced": float(len(batch.injected)),
        "oger/replaced_correct": correct,
        "oger/replaced_wrong": len(batch.injected) - correct,
        "oger/taught_groups": off.view(-1, step.rollouts.size).any(dim=1).float().mean().item(),
        "oger/prompts_without_teacher": float(batch.prompts_without_teacher),
        "oger/prefix_ratio": _mean(teacher_tokens / lengths.clamp(min=1)),
        "oger/off_on_ratio": off.sum().item() / max(on.sum().item(), 1),
        "oger/on_response_length": _mean(lengths[on]),
        "oger/off_response_length": _mean(lengths[off]),
        "oger/on_score": _mean(batch.scores[on]),
        "oger/off_score": _mean(batch.scores[off]),
        "oger/on_reward": _mean(step.rewards.total.flatten()[on]),
        "oger/teacher_reward": _mean(batch.rewards[off]),
        "oger/teacher_advantage": _mean(advantages[off]),
        "oger/rollout_advantage_abs": _mean(advantages[on].abs()),
        "oger/advantage_max": advantages.max().item(),
        "oger/advantage_min": advantages.min().item(),
    }


def _bonus_metrics(step: TrainingStep) -> dict[str, float]:
    batch, bonus, size = step.batch, step.bonus, step.rollouts.size
    on = ~batch.is_teacher
    finite = on & step.entropy.isfinite()
    read = finite if finite.any() else on  # nan where no entropy is known
    entropy, weight = step.entropy[read], step.entropy_weight[read]
    correct = on & (batch.scores > 0)
    similarity = batch.similarity[on & ~batch.similarity.isnan()]
    earned = bonus[correct]
    return {
        "oger/similarity": _mean(similarity),
        "oger/similarity_std": _std(similarity),
        "oger/divergence": _mean(1 - similarity),
        "oger/divergence_std": _std(1 - similarity),
        "oger/entropy": _mean(entropy),
        "oger/entropy_p90": _quantile(entropy, 0.9),
        "oger/entropy_weight": _mean(weight),
        "oger/entropy_weight_std": _std(weight),
        "oger/bonus": _mean(bonus[on]),
        "oger/bonus_of_correct": _mean(earned),
        "oger/bonus_of_correct_std": _std(earned),
        "oger/bonus_of_correct_std_in_group": spread_within_groups(bonus.view(-1, size), correct.view(-1, size)),
    }


def _source_metrics(step: TrainingStep) -> dict[str, float]:
    """Average what the sources said of rollouts, count the rows on which they failed, and add numbers of their own.

    nan where a source said nothing of any: a judge that is gone must not look like one that says 0.
    """
    on, rewards = ~step.batch.is_teacher, step.rewards
    means = {f"reward/{name}": values[on].nanmean().item() for name, values in step.said.items()}
    failed = {f"reward/{name}/failed": float(len(rows)) for name, rows in rewards.errors.items()}
    return means | failed | {f"reward/{name}": float(value) for name, value in rewards.metrics.items()}


def token_counts(samples: list[Experience], of: str = "response") -> torch.Tensor:
    """Count the tokens of the responses, or of the prompts, [N]."""
    responses = torch.cat([sample.response_length for sample in samples]).float()
    if of == "response":
        return responses
    return torch.tensor([float(sample.attention_mask.sum()) for sample in samples]) - responses


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    return {
        name: _mean(values),
        f"{name}_max": values.max().item() if len(values) else 0.0,
        f"{name}_min": values.min().item() if len(values) else 0.0,
    }


def _mean(values: torch.Tensor) -> float:
    return values.mean().item() if len(values) else 0.0


def _std(values: torch.Tensor) -> float:
    return values.std().item() if len(values) > 1 else 0.0


def _quantile(values: torch.Tensor, share: float) -> float:
    return values.quantile(share).item() if len(values) else 0.0
