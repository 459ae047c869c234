"""The lines of samples/*.jsonl: every rollout and every injected teacher of a training step."""

from collections.abc import Iterator
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience

from oger_recipe.grading.verdict import verdict_columns
from oger_recipe.pipeline.controller.training_step import Rollouts, TrainingStep
from oger_recipe.rewards.by_steps import step_lines
from oger_recipe.teachers.store import Teacher

Line = dict[str, Any]


def sample_lines(step: TrainingStep) -> Iterator[Line]:
    """Yield one line for each rollout; where a teacher took its place, ``replaced`` and without the columns of rows
    that are trained, followed by the teacher's line."""
    for row in range(len(step.rollouts.texts)):
        teacher, rollout, trained = step.batch.injected.get(row), _rollout(step, row), _trained(step, row)
        if teacher is None:
            weight = step.entropy_weight[row].item()
            yield rollout | {"bonus": step.bonus[row].item(), "entropy_weight": weight} | trained
        else:
            yield rollout | {"replaced": True}
            yield _prompt(step.rollouts, row) | _teacher(teacher, step.batch.samples[row]) | trained


def _prompt(rollouts: Rollouts, row: int) -> Line:
    label = rollouts.labels[row // rollouts.size]
    prompt = rollouts.samples[row].prompts[0]
    return {"uid": label["uid"], "prompt": prompt, "task": label["task"], "answer": label["answer"]}


def _rollout(step: TrainingStep, row: int) -> Line:
    """Return what is known of a rollout, trained or not."""
    rollouts, batch = step.rollouts, step.batch
    line = _prompt(rollouts, row) | {"truncated": bool(rollouts.samples[row].truncated[0])}
    if rollouts.guided[row]:
        line["off_policy_tokens"] = int(batch.samples[row].info["off_policy_tokens"])
        line["off_policy_characters"] = rollouts.taught[row]
    similarity = batch.similarity[row]
    return (
        line
        | {"text": rollouts.texts[row], "off_policy": bool(rollouts.guided[row])}
        | {"response_length": int(rollouts.samples[row].response_length[0])}
        | {"reward": rollouts.rewards[row].item(), "score": rollouts.scores[row].item()}
        | verdict_columns(rollouts.graded[row])
        | {"graded": rollouts.graded[row].error is None}
        | {"similarity": similarity.item(), "divergence": 1 - similarity.item()}
    )


def _teacher(teacher: Teacher, sample: Experience) -> Line:
    return {
        "text": teacher.text, "truncated": False, "source": teacher.source, "off_policy": True,
        "response_length": int(sample.response_length[0]), "reward": teacher.reward, "score": teacher.score,
    }  # fmt: skip


def _trained(step: TrainingStep, row: int) -> Line:
    """Return what a row that is trained was given."""
    rewards = step.rewards
    errors = {source: rows[row] for source, rows in rewards.errors.items() if row in rows}
    criteria = {source: rows[row] for source, rows in rewards.criteria.items() if row in rows}
    return {
        "entropy": step.entropy[row].item(),
        "log_prob": step.log_prob[row].item(),
        "sources": {name: values[row].item() for name, values in step.said.items() if not values[row].isnan()},
        **({"errors": errors} if errors else {}),
        **({"criteria": criteria} if criteria else {}),
        "total_reward": rewards.total.flatten()[row].item(),
        "advantage": step.advantages[row].item(),
        **({} if step.grade is None or step.grade[row].isnan() else {"grade": step.grade[row].item()}),
        **({"steps_of_reasoning": _steps(step, row)} if step.batch.steps else {}),
    }


def _steps(step: TrainingStep, row: int) -> list[Line]:
    """Return a row's steps of reasoning, with what sources said of each, its pay and its advantage."""
    said = {name: values.flatten(0, 1)[row].tolist() for name, values in step.rewards.said_of_steps.items()}
    paid = None if step.rewards.steps is None else step.rewards.steps.rewards.flatten(0, 1)
    given = {"reward": paid, "advantage": step.step_advantages}
    known = {name: values[row].tolist() for name, values in given.items() if values is not None}
    return step_lines(step.batch.steps[row], said, known)
