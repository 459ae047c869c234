"""Responses of a file, graded, as groups that sources of reward score as in a run."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from oger_recipe.algorithm.hybrid_group import ALL_CORRECT_GROUPS
from oger_recipe.base.cutting import StepCutter
from oger_recipe.data.responses import Response
from oger_recipe.data.rows import Row
from oger_recipe.data.train_files_cache import write_train_files_once
from oger_recipe.grading.pool import GradingPool
from oger_recipe.grading.rules import is_repetitive, labelled_answer, travelled
from oger_recipe.grading.verdict import Graded
from oger_recipe.offline.shared import Settings
from oger_recipe.rewards.kinds.entries import sources_of
from oger_recipe.rewards.sources import Group
from oger_recipe.run.inputs import budget_of, grading_settings
from oger_recipe.settings.oger import OgerSettings
from oger_recipe.teachers.store import TeacherStore


@dataclass(frozen=True)
class Prompt:
    """A row as the sources see it: its text for the policy, what travels with it, and its usable teachers' texts."""

    text: str
    label: Mapping[str, Any]
    teachers: list[str]


@dataclass(frozen=True)
class Answers:
    """Responses with their grades, the prompts by uid, what cuts responses into steps of reasoning (None: nothing
    reads these), and the policy's tokenizer."""

    responses: Sequence[Response]
    graded: Sequence[Graded]
    prompts: Mapping[str, Prompt]
    grading_s: float
    cutter: StepCutter | None
    tokenizer: Any

    def by_size(self) -> list[list[list[int]]]:
        """Return the groups, as numbers of responses, those of one size together, as the sources take them. What
        teachers replaced is in none."""
        groups: dict[str, list[int]] = {}
        for number, response in enumerate(self.responses):
            if not response.replaced:
                groups.setdefault(response.uid, []).append(number)
        sizes: dict[int, list[list[int]]] = {}
        for group in groups.values():
            sizes.setdefault(len(group), []).append(group)
        return list(sizes.values())

    def group(self, numbers: Sequence[int], similarity: Sequence[float], settings: OgerSettings) -> Group:
        members, graded = [self.responses[number] for number in numbers], [self.graded[number] for number in numbers]
        prompt = self.prompts[members[0].uid]
        return Group(
            uid=members[0].uid,
            prompt=prompt.text,
            task=prompt.label["task"],
            answer=prompt.label["answer"],
            **travelled(prompt.label),
            teachers=prompt.teachers,
            responses=[response.text for response in members],
            graded=graded,
            is_teacher=[response.off_policy for response in members],
            truncated=[response.truncated for response in members],
            may_earn=self._may_earn(members, settings),
            similarity=list(similarity),
            entropy=[response.entropy for response in members],
            log_prob=[response.log_prob for response in members],
            steps=[self._steps(response.text) for response in members] if self.cutter is not None else [],
            tokens=[self._tokens(response) for response in members],
        )

    def _may_earn(self, members: Sequence[Response], settings: OgerSettings) -> list[bool]:
        """Say which responses of a group may earn the bonus."""
        solved = members[0].uid in self.solved
        if solved and not ALL_CORRECT_GROUPS[settings.teachers.all_correct_group].bonus:
            return [False] * len(members)
        fixed, no_repetition = settings.advantage.non_stop_fixed_reward is not None, settings.bonus.repeating_check
        return [
            not response.off_policy
            and not (fixed and response.truncated)
            and not (no_repetition and is_repetitive(response.text))
            for response in members
        ]

    @cached_property
    def solved(self) -> set[str]:
        """Uids whose rollouts are all right, those that teachers replaced included."""
        rollouts = [
            (response.uid, graded.verdict.score > 0)
            for response, graded in zip(self.responses, self.graded, strict=True)
            if not is_teacher(response)
        ]
        return {uid for uid, _ in rollouts} - {uid for uid, right in rollouts if not right}

    def _tokens(self, response: Response) -> int:
        """Count a text's tokens, and the end of sequence behind a whole one, unless the response says its length."""
        if response.response_length is not None:
            return response.response_length
        if self.tokenizer is None:
            return 0  # nobody reads it
        return len(self.tokenizer.encode(response.text, add_special_tokens=False)) + (not response.truncated)

    def _steps(self, text: str) -> list[str]:
        """Cut a text where a run would cut its tokens."""
        assert self.cutter is not None
        return self.cutter.texts(self.cutter.tokenizer.encode(text, add_special_tokens=False)) or [text]


def graded_answers(value: Settings, rows: Sequence[Row], responses: Sequence[Response], shared: Settings) -> Answers:
    settings = OgerSettings.of(value)
    cuts = settings.cuts_steps(value["algo.advantage.estimator"])
    cutter = StepCutter(shared["tokenizer"], settings.steps.rule) if cuts else None
    with GradingPool(grading_settings(value, rows)) as pool:
        prompts = _prompts(value, rows, pool, shared)
        answers = [labelled_answer(prompts[response.uid].label, response.text) for response in responses]
        started = time.monotonic()
        graded = pool.grade_many(answers, progress=sys.stderr.isatty() or len(answers) > 2000)
        graded = [_of_teacher(each) if is_teacher(one) else each for one, each in zip(responses, graded, strict=True)]
        return Answers(responses, graded, prompts, time.monotonic() - started, cutter, shared["tokenizer"])


def is_teacher(response: Response) -> bool:
    """Say whether the whole response is a teacher's."""
    return response.off_policy and response.source is not None


def _of_teacher(graded: Graded) -> Graded:
    """Keep what a run knows of a teacher: reward and score."""
    verdict = graded.verdict
    return replace(graded, verdict=replace(verdict, components={}, steps=(), solution=None))


def _prompts(value: Settings, rows: Sequence[Row], pool: GradingPool, shared: Settings) -> dict[str, Prompt]:
    """Prepare rows as a run does, with teachers that it would take; texts and teachers only where they are read."""
    written, tokenizer, rules = shared["prompt_format"], shared["tokenizer"], shared["rules"]
    teachers: dict[str, list[str]] = {}
    if tokenizer is not None and any(row.get("teachers") for row in rows):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "teachers.arrow"
            write_train_files_once(
                rows,
                budget=budget_of(value, value["rollout.max_new_tokens"]),
                prompts_path=Path(folder) / "prompts.jsonl",
                teachers_path=store,
                cache=Path(value["oger.data_cache"]).expanduser(),
                cache_gb=value["oger.data_cache_gb"],
                pool=pool,
                **shared,
            )
            found = TeacherStore(store)
            teachers = {row["uid"]: [teacher.text for teacher in found[row["uid"]]] for row in rows}
    is_read = tokenizer is not None or bool(own_sources(value))
    texts = [written.text(row["prompt"], tokenizer) if is_read else "" for row in rows]
    return {
        row["uid"]: Prompt(text, rules.label(row), teachers.get(row["uid"], []))
        for row, text in zip(rows, texts, strict=True)
    }


def own_sources(value: Settings) -> list[str]:
    """Name the user's own sources, which may read whatever a group has."""
    return [spec.name for spec in sources_of(value["oger.reward.sources"]) if spec.keys.is_own]
