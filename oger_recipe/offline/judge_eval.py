"""A judge or a head on labelled pairs or answers: it is asked as in a run, and its values are held against labels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.machine import where_named
from oger_recipe.checks.settings import loaded_for, require_loadable
from oger_recipe.evaluation.judge_metrics import (
    JudgedPair,
    Prices,
    Work,
    criterion_metrics,
    label_metrics,
    pair_metrics,
)
from oger_recipe.evaluation.labelled import Answer, Pair, RatedAnswer
from oger_recipe.evaluation.tables import aligned
from oger_recipe.grading.verifiers import look_in
from oger_recipe.models.asking import Judged, RewardModel
from oger_recipe.models.keys import ValueKeys
from oger_recipe.offline.shared import Metered, Settings, asking, spec_of
from oger_recipe.rewards.kinds import KINDS
from oger_recipe.rewards.kinds.pairwise import TIE, compare
from oger_recipe.rewards.spec import SourceSpec
from oger_recipe.settings.oger import OgerSettings

Case = dict[str, Any]  # a pair or an answer with what the judge said, as the file of results has it


@dataclass(frozen=True)
class Found:
    """metrics: by name; work: what the verdicts took; cases: one by one."""

    metrics: Mapping[str, Any]
    work: Work
    cases: list[Case]


def judge_of(entry: Mapping[str, Any], value: Settings) -> SourceSpec:
    """Read an entry of oger.reward.sources. Raises RecipeError for one that is wrong, or asks no model for values."""
    spec = spec_of(entry, value, "judge")
    keys_of(spec)
    return spec


def keys_of(spec: SourceSpec) -> ValueKeys:
    """Return the keys of a kind that asks a model for values. Raises RecipeError for another kind."""
    if spec.keys.reads_steps:
        raise RecipeError(f"{spec.name} is of kind {spec.kind}, which scores steps: use `oger prm eval`")
    if not isinstance(spec.keys, ValueKeys):
        kinds = ", ".join(name for name, kind in KINDS.items() if issubclass(kind, ValueKeys))
        raise RecipeError(f"{spec.name} is of kind {spec.kind}; kinds that can be evaluated: {kinds}")
    return spec.keys


def on_pairs(spec: SourceSpec, pairs: Sequence[Pair], value: Settings) -> Found:
    """Judge pairs: kind pairwise reads both answers, in both orders; other kinds value each, the greater is better."""
    if keys_of(spec).reads_rubric is not None:
        raise RecipeError(f"{spec.name} reads a rubric with each answer: kind {spec.kind} needs --labels")
    meters: list[Metered] = []
    questions = [pair.question for pair in pairs]
    if keys_of(spec).threshold is None:
        with _asked(spec, value, meters) as judge:
            compared = compare(judge, questions, [(pair.first, pair.second) for pair in pairs])
        judged = [(each.forth, each.back) for each in compared]
        metrics = pair_metrics(
            [
                JudgedPair(pair.first_is_better, _value(forth), _value(back))
                for pair, (forth, back) in _zip(pairs, judged)
            ]
        )
    else:
        with _asked(spec, value, meters) as judge:
            said = judge.judge(
                [*questions, *questions], [pair.first for pair in pairs] + [pair.second for pair in pairs]
            )
        judged = list(zip(said[: len(pairs)], said[len(pairs) :], strict=True))
        greater = [_greater(*both) for both in judged]
        of_both = pair_metrics(
            [
                JudgedPair(pair.first_is_better, each, None if each is None else 1 - each)
                for pair, each in _zip(pairs, greater)
            ]
        )
        metrics = {name: of_both[name] for name in ("pairs", "accuracy", "accuracy_of_read", "ties", "unread")}
    cases = [
        {"pair": pair.name, "better": "first" if pair.first_is_better else "second"}
        | {"forth": _case(both[0]), "back": _case(both[1])}
        for pair, both in _zip(pairs, judged)
    ]
    return Found(metrics | _failures([each for both in judged for each in both]), _work(spec, meters), cases)


def on_answers(spec: SourceSpec, answers: Sequence[Answer], value: Settings, threshold: float | None) -> Found:
    """Judge labelled answers. threshold: the least value that says label 1; None: the kind's own."""
    of_kind = keys_of(spec).threshold
    if of_kind is None:
        kinds = [name for name, kind in KINDS.items() if getattr(kind, "threshold", None) is not None]
        raise RecipeError(f"{spec.name} compares pairs: --labels needs one of the kinds {', '.join(kinds)}")
    threshold = of_kind if threshold is None else threshold
    meters: list[Metered] = []
    with _asked(spec, value, meters) as judge:
        judged = judge.judge([each.question for each in answers], [each.judged for each in answers])
    labels = [each.label for each in answers]
    metrics = label_metrics(labels, [_value(each) for each in judged], threshold)
    cases = [{"answer": each.name, "label": each.label} | _case(said) for each, said in _zip(answers, judged)]
    if any(said.criteria for said in judged):
        rated = [(each.labels, said.criteria) for each, said in _zip(answers, judged) if isinstance(each, RatedAnswer)]
        pairs = [(label, said.get(name)) for labels, said in rated for name, label in labels.items()]
        metrics |= criterion_metrics(*zip(*pairs, strict=True)) if pairs else {}
        cases = [case | {"criteria": said, "labels": labels} for case, (labels, said) in _zip(cases, rated)]
    return Found(metrics | _failures(judged), _work(spec, meters), cases)


def dead(found: Found) -> str | None:
    """Say how the judge failed on every verdict; None where one came."""
    verdicts = [verdict for case in found.cases for verdict in _cases_of(case)]
    if not verdicts or not all("error" in verdict for verdict in verdicts):
        return None
    return f"the judge gave none of {len(verdicts)} verdicts; the first error: {verdicts[0]['error']}"


def report(found: Found, prices: Prices) -> str:
    """Format the figures one below the other, without those that are not known."""
    work, metrics = found.work, found.metrics
    known = {name: number for name, number in metrics.items() if not math.isnan(number)}
    lines = [
        [name.replace("_", " "), str(number) if isinstance(number, int) else f"{number:.3f}"]
        for name, number in known.items()
    ]
    lines += [["verdicts asked for", str(work.asked)]]
    if work.asked:
        lines += [["verdicts per second", f"{work.per_second():.2f}"], ["seconds of loading", f"{work.loading_s:.1f}"]]
    if not math.isnan(cost := work.cost_per_1000(prices)):
        lines += [["cost per 1,000 verdicts", f"{cost:.4g}"]]
    unread = next((case for each in found.cases for case in _cases_of(each) if "error" in case), None)
    example = [] if unread is None else [f"the first unread: {unread['error']}"]
    return "\n".join([aligned(lines), *example])


def figures(found: Found, prices: Prices) -> dict[str, Any]:
    """Return metrics and work as JSON has them; None: not known."""
    work = found.work
    numbers = dict(found.metrics) | {
        "asked": work.asked,
        "verdicts_per_second": work.per_second(),
        "loading_s": work.loading_s,
        "tokens_read": work.tokens and work.tokens[0],
        "tokens_written": work.tokens and work.tokens[1],
        "cost_per_1000_verdicts": work.cost_per_1000(prices),
    }
    return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in numbers.items()}


@contextlib.contextmanager
def _asked(spec: SourceSpec, value: Settings, meters: list[Metered]) -> Iterator[RewardModel]:
    """Yield the judge or head, whose models are there inside the context."""
    require_loadable(value, (each for keys in spec.keys.models for each in loaded_for(where_named(spec.name), keys)))
    look_in(OgerSettings.of(value).verifiers.verifier_path)
    with asking(value, spec.keys.models, meters) as surroundings:
        yield keys_of(spec).reward_model(spec, surroundings)


def _work(spec: SourceSpec, meters: Sequence[Metered]) -> Work:
    """Add up the work of all models of the entry; a critic and the head that reads it give one verdict."""
    tokens = None  # a server that applies the template has a tokenizer that is not known here
    if not any(keys.chats for keys in spec.keys.models):
        read, written = zip(*(meter.tokens() for meter in meters), strict=True)
        tokens = sum(read), sum(written)
    return Work(
        max(len(meter.replies) for meter in meters),
        sum(meter.seconds for meter in meters),
        sum(meter.loading_s for meter in meters),
        tokens,
    )


def _value(judged: Judged) -> float | None:
    return None if judged.error is not None else judged.value


def _greater(first: Judged, second: Judged) -> float | None:
    """Return 1, 0 or TIE as a verdict on the first answer; None where a value is missing."""
    one, other = _value(first), _value(second)
    return None if one is None or other is None else TIE if one == other else float(one > other)


def _failures(judged: Sequence[Judged]) -> dict[str, int]:
    """Count the failures that make up `unread`, and cut replies."""
    unparsed = sum(each.unparsed for each in judged)
    return {
        "unparsed_replies": unparsed,
        "other_failures": sum(each.error is not None for each in judged) - unparsed,
        "cut_replies": sum(each.reply is not None and each.reply.cut for each in judged),
    }


def _case(judged: Judged) -> Case:
    wrote = judged.reply is not None and math.isnan(judged.reply.value)  # a head's reply is its number
    reply = {"reply": judged.reply.text} if judged.reply is not None and wrote else {}
    return {"value": _value(judged)} | reply | ({} if judged.error is None else {"error": judged.error})


def _cases_of(case: Case) -> list[Case]:
    """Return the cases of a pair's two orders, or that of an answer."""
    return [case["forth"], case["back"]] if "forth" in case else [case]


def _zip(one: Sequence[Any], other: Sequence[Any]) -> Any:
    return zip(one, other, strict=True)
