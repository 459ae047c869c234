"""The rewards of a recipe for responses in a file, as a run gives them, without a policy and without training."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import STEP_ESTIMATORS
from oger_recipe.algorithm.hybrid_group import REPLACE_MODES
from oger_recipe.algorithm.normalize import Running
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import atomic_write, to_json
from oger_recipe.base.remote_code import policy_models
from oger_recipe.checks.settings import require_loadable
from oger_recipe.data.responses import Response
from oger_recipe.data.rows import Row
from oger_recipe.embedding.similarity import make_similarity
from oger_recipe.evaluation.scores import Column, score_table
from oger_recipe.offline.answers import Answers, graded_answers, is_teacher, own_sources
from oger_recipe.offline.shared import Settings, asking, checked, rows_and_responses
from oger_recipe.rewards.by_steps import step_lines
from oger_recipe.rewards.compose import ON_ERROR, Rewards, cost_of_failures, rewards_of, with_fixed_rewards
from oger_recipe.rewards.kinds.entries import models_of, sources_of
from oger_recipe.rewards.sources import Group, Scores, Source
from oger_recipe.rewards.spec import SourceSpec
from oger_recipe.run.inputs import preparation, with_judges, with_task, writes_chats
from oger_recipe.settings.oger import OgerSettings

_POLICY = "actor.model_name_or_path"


def score(value: Settings, file: Path, out: Path) -> tuple[str, list[str]]:
    """Score the responses of a file by the settings of a run, and write a line for each. Return a table, and a
    sentence for each source that failed on every answer that it was asked about.

    Raises RecipeError for what is wrong with recipe, rows and responses, before any model is loaded, and where a
    source fails and oger.reward.on_error is stop.
    """
    asked = checked(value)
    value = with_judges(with_task(asked, build_policy=False))
    settings = OgerSettings.of(value)
    rows, responses = rows_and_responses(value, file)
    _require_entropy(settings, responses, file)
    if needs := _needs_of_policy(value, rows, responses):
        if not value[_POLICY]:
            raise RecipeError(f"set {_POLICY}: the policy's tokenizer is needed: {'; '.join(needs)}")
        value = with_judges(with_task(asked))
        require_loadable(value, [each for each in policy_models(value) if each.key == _POLICY])
    shared = preparation(value, has_tokenizer=bool(needs))
    uids = dict.fromkeys(response.uid for response in responses)
    print(f"{len(responses)} answers to {len(uids)} of {len(rows)} prompts", flush=True)
    if replaced := sum(response.replaced for response in responses):
        taught = sum(is_teacher(response) for response in responses)
        print(
            f"note: {taught} of them are teachers' trajectories, in place of {replaced} rollouts, which get no reward",
            flush=True,
        )
    if repeated := len(responses) - len({(response.uid, response.text) for response in responses}):
        print(f"note: {repeated} answers repeat another one of their group; each counts", flush=True)
    answered = [rows[uid] for uid in uids]
    specs = [
        replace(spec, weight=settings.bonus.bonus_weight) if spec.keys.is_bonus else spec
        for spec in sources_of(settings.reward.sources, value["algo.advantage.estimator"])
    ]
    by_steps = value["algo.advantage.estimator"] in STEP_ESTIMATORS
    with asking(value, [keys for _, keys in models_of(settings.reward.sources)]) as surroundings:
        sources = [_Watched(spec, spec.source(surroundings)) for spec in specs]
        answers = graded_answers(value, answered, responses, shared)
        started = time.monotonic()
        scored = _scored(settings, specs, sources, answers, by_steps)
        seconds = answers.grading_s + time.monotonic() - started
    dead = _say_errors(scored, settings.reward.on_error)
    with atomic_write(out) as partial, partial.open("w", encoding="utf-8") as lines:
        lines.writelines(to_json(line) + "\n" for line in scored.lines())
    return scored.table(seconds, {source.name: source.seconds_of(answers) for source in sources}), dead


def _needs_of_policy(value: Settings, rows: Mapping[str, Row], responses: Sequence[Response]) -> list[str]:
    """List, as sentences, all that the rewards need the policy's tokenizer for."""
    settings, own, specs = OgerSettings.of(value), own_sources(value), sources_of(value["oger.reward.sources"])
    with_teachers = [spec.name for spec in specs if spec.keys.is_bonus and settings.has_bonus]
    with_teachers += [spec.name for spec in specs if spec.keys.reads_teachers]
    lengths = own + [spec.name for spec in specs if spec.keys.is_length]
    needs = []
    if settings.cuts_steps(value["algo.advantage.estimator"]):
        needs.append("it cuts responses into steps of reasoning")
    if own and writes_chats(value):
        needs.append(f"its chat template writes prompts, which a source may read: {', '.join(own)}")
    if own + with_teachers and any(rows[each.uid].get("teachers") for each in responses):
        needs.append(f"it counts the tokens of teachers, which a source reads: {', '.join(own + with_teachers)}")
    if lengths and any(each.response_length is None for each in responses):
        needs.append(
            f"it counts the tokens of responses, which a source reads: {', '.join(lengths)} (or add "
            "response_length to each line)"
        )
    return needs


def _require_entropy(settings: OgerSettings, responses: Sequence[Response], file: Path) -> None:
    """Raise RecipeError where the bonus needs entropies that lines lack."""
    if not settings.has_bonus or settings.bonus.last_token_enp_reward == "none":
        return
    earning = [response for response in responses if not response.off_policy and not response.replaced]
    without = [response for response in earning if math.isnan(response.entropy)]
    if without:
        raise RecipeError(
            f"{without[0].where}: the exploration bonus is weighted with the policy's entropy, which "
            f"{len(without)} of {len(earning)} lines do not have: add 'entropy' to them (samples/*.jsonl of a run "
            "have it), or leave the weight or the bonus out: --oger.last_token_enp_reward none, --oger.bonus_weight 0"
        )


def _scored(
    settings: OgerSettings, specs: Sequence[SourceSpec], sources: Sequence[Source], answers: Answers, by_steps: bool
) -> _Scored:
    compares = settings.compares and any(prompt.teachers for prompt in answers.prompts.values())
    measure = make_similarity(settings.embedding) if compares else None
    scored, fixed = _Scored(answers), settings.advantage.non_stop_fixed_reward
    running: Mapping[str, Running] = {}
    for groups in answers.by_size():
        members = [[answers.responses[number] for number in group] for group in groups]
        similarity = torch.full((len(groups), len(groups[0])), torch.nan)
        if measure is not None:
            references = [list(dict.fromkeys(answers.prompts[each[0].uid].teachers)) for each in members]
            texts = [[response.text for response in each] for each in members]
            how = REPLACE_MODES[settings.teachers.replace_mode].similarity or "mean"
            similarity = measure.of_groups(texts, references, how)
        shown = [
            answers.group(numbers, row, settings) for numbers, row in zip(groups, similarity.tolist(), strict=True)
        ]
        rewards = rewards_of(
            shown, sources, specs, on_error=settings.reward.on_error, running=running, by_steps=by_steps
        )
        running = rewards.running
        scored.add(groups, shown, with_fixed_rewards(rewards, shown, fixed))
    return scored


class _Watched:
    """A source that says when it begins, and whose time is taken."""

    def __init__(self, spec: SourceSpec, source: Source) -> None:
        self.name, self._spec, self._source = spec.name, spec, source
        self.overlaps = getattr(source, "overlaps", False)
        self._seconds = 0.0

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores:
        if not (self._spec.keys.is_rule or self._spec.keys.is_bonus):
            print(f"{self.name}: {int(wanted.sum())} answers ...", flush=True)
        started = time.monotonic()
        try:
            return self._source.score(groups, wanted)
        finally:
            self._seconds += time.monotonic() - started

    def seconds_of(self, answers: Answers) -> float:
        """Return the seconds of scoring; the verifier's include grading before."""
        return self._seconds + (answers.grading_s if self._spec.keys.is_rule else 0.0)


@dataclass
class _Scored:
    """What came of the responses, by their numbers."""

    answers: Answers
    total: dict[int, float] = field(default_factory=dict)
    said: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # as samples of a run have them
    errors: dict[str, dict[int, str]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)  # answers, by source
    criteria: dict[str, dict[int, Mapping[str, float | None]]] = field(default_factory=dict)
    dropped: int = 0  # groups

    def add(self, groups: Sequence[Sequence[int]], shown: Sequence[Group], rewards: Rewards) -> None:
        numbers = [number for group in groups for number in group]
        self.total |= dict(zip(numbers, rewards.total.flatten().tolist(), strict=True))
        for name, values in rewards.said.items():
            known = zip(numbers, values.flatten().tolist(), strict=True)
            self.said.setdefault(name, {}).update({number: each for number, each in known if math.isfinite(each)})
        paid = {} if rewards.steps is None else {"reward": rewards.steps.rewards}
        texts = [steps for group in shown for steps in group.steps]
        for row, (number, steps) in enumerate(zip(numbers, texts, strict=bool(texts))):
            said, given = (
                {name: [*map(_digits, values.flatten(0, 1)[row].tolist())] for name, values in each.items()}
                for each in (rewards.said_of_steps, paid)
            )
            self.steps[number] = step_lines(steps, said, given)
        for name, rows in rewards.errors.items():
            self.errors.setdefault(name, {}).update({numbers[row]: why for row, why in rows.items()})
        self.asked.update(rewards.asked)
        for name, of_rows in rewards.criteria.items():
            self.criteria.setdefault(name, {}).update({numbers[row]: said for row, said in of_rows.items()})
        self.dropped += int(rewards.dropped.sum())

    def lines(self) -> Iterator[dict[str, Any]]:
        for number, (response, graded) in enumerate(zip(self.answers.responses, self.answers.graded, strict=True)):
            yield {
                "uid": response.uid,
                "reward": _digits(self.total.get(number, math.nan)),
                "score": graded.verdict.score,
                "components": {
                    name: _digits(values[number]) for name, values in self.said.items() if number in values
                },
                "errors": _of_row(self.errors, number),
                **{name: True for name in ("off_policy", "replaced") if getattr(response, name)},
                **({"steps_of_reasoning": self.steps[number]} if number in self.steps else {}),
                **({"criteria": said} if (said := _of_row(self.criteria, number)) else {}),
            }

    def table(self, seconds: float, of_sources: Mapping[str, float]) -> str:
        scored = sorted(self.total)
        columns = {
            name: Column(
                [values.get(number, math.nan) for number in scored],
                len(self.errors.get(name, ())),
                of_sources.get(name, math.nan),
            )
            for name, values in self.said.items()
        }
        total = Column([self.total[number] for number in scored], 0, seconds)
        rule = [self.answers.graded[number].verdict.reward for number in scored]
        lengths = [len(self.answers.responses[number].text) for number in scored]
        notes = ["r: correlation over all answers; length: characters"]
        notes += (
            [f"{self.dropped} groups would have no advantage (oger.reward.on_error, on_overflow)"]
            if self.dropped
            else []
        )
        return "\n".join([score_table(columns | {"reward": total}, rule, lengths), *notes])


def _of_row(by_source: Mapping[str, Mapping[int, Any]], number: int) -> dict[str, Any]:
    return {name: rows[number] for name, rows in by_source.items() if number in rows}


def _digits(value: float) -> float:
    """Round to the digits of a number of 32 bits."""
    return float(f"{value:.7g}")


def _say_errors(scored: _Scored, on_error: str) -> list[str]:
    """Print each source's first failure; return it for sources that failed on all that they were asked about. Raises
    RecipeError where oger.reward.on_error is stop."""
    dead = []
    for source, rows in scored.errors.items():
        if rows:
            first, asked = min(rows), scored.asked[source]
            text = (
                f"reward source {source} failed on {len(rows)} of {asked} answers, first on "
                f"{scored.answers.responses[first].where}: {rows[first]}"
            )
            if ON_ERROR[on_error].stops:
                raise RecipeError(f"{text} (oger.reward.on_error stop: nothing was written)")
            print(f"note: {text}; {cost_of_failures(on_error)}", flush=True)
            dead += [text] if len(rows) == asked else []
    return dead
