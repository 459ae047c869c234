"""The lines of samples/*.jsonl: every rollout and every injected teacher of a step."""

from collections.abc import Iterator
from typing import Any

from oger_recipe.algorithm.exploration import ENTROPY_WEIGHTS
from oger_recipe.grading.verdict import verdict_columns
from oger_recipe.pipeline.controller.hybrid_batch import HybridBatch, Rollouts
from oger_recipe.pipeline.controller.metrics import Credit
from oger_recipe.rewards.by_steps import step_lines
from oger_recipe.teachers.store import Teacher

Line = dict[str, Any]


def sample_lines(rollouts: Rollouts, batch: HybridBatch, credit: Credit) -> Iterator[Line]:
    """Yield one line for each rollout; where a teacher took its place, ``replaced`` and without the columns of rows
    that are trained, followed by the teacher's line."""
    weight = ENTROPY_WEIGHTS[credit.entropy_weight](credit.entropy)
    for row in range(len(rollouts.texts)):
        teacher, trained = batch.injected.get(row), _trained(row, credit)
        rollout, steps = _rollout(rollouts, batch, row), _steps(batch.steps, row, credit)
        if teacher is None:
            yield rollout | {"bonus": credit.bonus[row].item(), "entropy_weight": weight[row].item()} | trained | steps
        else:
            yield rollout | {"replaced": True}
            yield _prompt(rollouts, row) | _teacher(teacher) | trained | steps


def _prompt(rollouts: Rollouts, row: int) -> Line:
    label = rollouts.labels[row // rollouts.size]
    prompt = rollouts.samples[row].prompts[0]
    return {"uid": label["uid"], "prompt": prompt, "task": label["task"], "answer": label["answer"]}


def _rollout(rollouts: Rollouts, batch: HybridBatch, row: int) -> Line:
    """Return what is known of a rollout, trained or not."""
    line = _prompt(rollouts, row) | {"truncated": bool(rollouts.samples[row].truncated[0])}
    if rollouts.guided[row]:
        line["off_policy_tokens"] = int(batch.samples[row].info["off_policy_tokens"])
    similarity = batch.similarity[row]
    return (
        line
        | {"text": rollouts.texts[row], "off_policy": bool(rollouts.guided[row])}
        | {"reward": rollouts.rewards[row].item(), "score": rollouts.scores[row].item()}
        | verdict_columns(rollouts.graded[row])
        | {"similarity": similarity.item(), "divergence": 1 - similarity.item()}
    )


def _teacher(teacher: Teacher) -> Line:
    return {
        "text": teacher.text, "truncated": False, "source": teacher.source, "off_policy": True,
        "reward": teacher.reward, "score": teacher.score,
    }  # fmt: skip


def _steps(steps: list[list[str]], row: int, credit: Credit) -> Line:
    """Return a trained row's steps of reasoning, with what sources said of each, its pay and its advantage."""
    if not steps:
        return {}
    said = {name: values[row].tolist() for name, values in credit.said_of_steps.items()}
    of_steps = {"reward": credit.step_rewards, "advantage": credit.step_advantages}
    given = {name: values[row].tolist() for name, values in of_steps.items() if values is not None}
    return {"steps_of_reasoning": step_lines(steps[row], said, given)}


def _trained(row: int, credit: Credit) -> Line:
    """Return what a row that is trained was given."""
    errors = {source: rows[row] for source, rows in credit.errors.items() if row in rows}
    criteria = {source: rows[row] for source, rows in credit.criteria.items() if row in rows}
    return {
        "entropy": credit.entropy[row].item(),
        "sources": {name: values[row].item() for name, values in credit.said.items() if not values[row].isnan()},
        **({"errors": errors} if errors else {}),
        **({"criteria": criteria} if criteria else {}),
        "total_reward": credit.rewards[row].item(),
        "advantage": credit.advantages[row].item(),
    }
