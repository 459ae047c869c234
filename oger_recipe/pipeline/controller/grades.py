"""Grades of a step's rollouts: what a grader reads of each, how likely it finds their tokens, and what that adds to
advantages (algorithm/grades.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from oger_recipe.algorithm.grades import grade_tokens
from oger_recipe.base.errors import SourceFailed
from oger_recipe.base.seeds import stable_seed
from oger_recipe.models.asking import ask_about
from oger_recipe.models.tokens import plain_tokens
from oger_recipe.pipeline.controller import nonfinite
from oger_recipe.pipeline.controller.training_step import TrainingStep
from oger_recipe.pipeline.experiences import prompt_tokens, response_tokens, teachers_tokens
from oger_recipe.rewards.place import Likelihoods, Reply, StepPrompt
from oger_recipe.rewards.sources import ANSWER
from oger_recipe.settings.grades import GradeSettings
from oger_recipe.settings.teachers import TeacherSettings
from oger_recipe.teachers.draw import draw, may_enter
from oger_recipe.teachers.store import Teacher, TeacherStore


class Grader:
    """Grades the rollouts of each step. What it shows of a prompt's teachers follows from seed, uid and step alone."""

    def __init__(
        self,
        settings: GradeSettings,
        teachers: TeacherSettings,
        place: Likelihoods,
        store: TeacherStore,
        tokenizer: Any,
        *,
        window: int | None,
        seed: int,
    ) -> None:
        """``place``: who grades; ``window``: the most tokens that it reads, where it is shown a teacher."""
        self._settings, self._teachers, self._place = settings, teachers, place
        self._store, self._tokenizer, self._window, self._seed = store, tokenizer, window, seed

    def differences(self, step: TrainingStep, experiences: Sequence[Experience]) -> dict[str, float]:
        """Set the step's differences d of log-probabilities, the grader's less the policy's: [B, A] for each
        experience, nan on tokens without a grade. Return metrics.

        Raises:
            SourceFailed: the grader has graded no row of those that it was asked about.
        """
        started = time.monotonic()
        left_out = step.batch.left_out | step.nonfinite[nonfinite.LOG_PROBS]
        rows = [row for row in (~left_out).nonzero().flatten().tolist() if _own(step.batch.samples[row]).any()]
        texts, metrics = self._texts(step, rows)
        replies = dict(zip(texts, ask_about(self._place, [*texts.values()], self._place.log_probs), strict=True))
        failed = {row: reply for row, reply in replies.items() if reply.error is not None}
        step.nonfinite[nonfinite.GRADES][[row for row, reply in failed.items() if reply.cause == ANSWER]] = True
        if replies and len(failed) == len(replies):
            raise SourceFailed(f"oger.grader {self._settings.grader}: {next(iter(failed.values())).error}")
        step.differences = [_differences(experience, replies) for experience in experiences]
        metrics |= {"oger/grade_failed": float(len(failed)), "timing/grades": time.monotonic() - started}
        return metrics

    def _texts(self, step: TrainingStep, rows: Sequence[int]) -> tuple[dict[int, StepPrompt], dict[str, float]]:
        """Return what the grader reads, by the row that it grades, and metrics."""
        if not self._settings.shows_teachers:
            return {row: _text(step.batch.samples[row]) for row in rows}, {}
        size = step.rollouts.size
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(row // size, []).append(row)
        texts: dict[int, StepPrompt] = {}
        untaught = too_long = 0
        for group, members in groups.items():
            teachers = may_enter(step.batch.teachers[group], self._teachers)
            longest = max(int(step.batch.samples[row].response_length[0]) for row in members)
            shown = [(teacher, self._shown(step.rollouts.uids[group], teacher)) for teacher in teachers]
            fitting = [each for each in shown if self._window is None or len(each[1]) + longest <= self._window]
            too_long += len(shown) - len(fitting)
            untaught += not fitting
            if fitting:
                prompt = self._drawn(fitting, step.rollouts.uids[group], step.number)
                texts |= {row: _text(step.batch.samples[row], prompt) for row in members}
        return texts, {"oger/grade_untaught": float(untaught), "oger/grade_too_long": float(too_long)}

    def _shown(self, uid: str, teacher: Teacher) -> list[int]:
        return plain_tokens(self._tokenizer, self._store.shown_prompt(uid, teacher.text))

    def _drawn(self, shown: Sequence[tuple[Teacher, list[int]]], uid: str, step: int) -> list[int]:
        """Draw the teacher that is shown to the grader of a group, and return its prompt."""
        generator = torch.Generator().manual_seed(stable_seed(self._seed, "grade", uid, step))
        (drawn,) = draw([teacher for teacher, _ in shown], 1, self._teachers, generator, step)
        return next(prompt for teacher, prompt in shown if teacher is drawn)


def _own(rows: Experience) -> Tensor:
    """Mark the tokens that the policy sampled itself, bool [B, A]: not a teacher's trajectory, or the beginning of one
    that it went on from."""
    return rows.action_mask.bool() & ~teachers_tokens(rows)


def _text(sample: Experience, prompt: Sequence[int] | None = None) -> StepPrompt:
    """Put a row's tokens behind its prompt, or behind another one, as what its own tokens are to be graded by."""
    response = response_tokens(sample).tolist()
    before = prompt_tokens(sample).tolist() if prompt is None else prompt
    last = len(before) + len(response) - 1
    return StepPrompt((*before, *response), (last - int(_own(sample).sum()), last))


def _differences(experience: Experience, replies: Mapping[int, Reply]) -> Tensor:
    difference, own = torch.full_like(experience.action_log_probs, torch.nan, dtype=torch.float32), _own(experience)
    for place, row in enumerate(experience.index):
        reply = replies.get(row)
        if reply is not None and reply.error is None:
            difference[place, own[place]] = (
                torch.tensor(reply.log_probs) - experience.action_log_probs[place, own[place]]
            )
    return difference


def add_grades(
    experiences: Sequence[Experience], step: TrainingStep, left_out: Tensor, settings: GradeSettings, weight: float
) -> dict[str, float]:
    """Add weighted grades to the advantages of all rows but those of ``left_out`` (bool [N]), and return metrics."""
    step.grade = torch.full((len(left_out),), torch.nan)
    total = torch.zeros(6, dtype=torch.float64)
    for experience, difference in zip(experiences, step.differences, strict=True):
        graded = difference.isfinite() & ~left_out[experience.index].unsqueeze(1)
        grades = grade_tokens(difference, graded, divergence=settings.grade_divergence, limit=settings.grade_max)
        known = difference.masked_fill(~graded, 0.0)
        tokens = graded.sum(dim=1)
        step.grade[experience.index] = known.sum(dim=1) / tokens.where(tokens > 0, torch.nan)
        ours, estimators = (
            each.masked_fill(~graded, 0.0).abs().sum() for each in (grades.advantages, experience.advantages)
        )
        counts = (tokens > 0).sum(), tokens.sum(), known.sum(), grades.clamped.sum()
        total += torch.stack([each.double() for each in (*counts, weight * ours, estimators)])
        experience.advantages = experience.advantages + weight * grades.advantages
    rows, tokens, summed, clamped, ours, estimators = total.tolist()
    return {
        "oger/grade": summed / max(tokens, 1),
        "oger/grade_weight": weight,
        "oger/grade_share": ours / (ours + estimators) if ours else 0.0,
        "oger/grade_clamped": clamped / max(tokens, 1),
        "oger/graded_rollouts": rows,
        "oger/graded_tokens": tokens,
    }
