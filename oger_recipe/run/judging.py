"""A judge on labelled pairs or answers: it is asked as in a run, and its verdicts are held against the labels."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oger_recipe.errors import RecipeError
from oger_recipe.evaluation.judges import JudgedPair, Prices, Work, label_metrics, pair_metrics
from oger_recipe.evaluation.labelled import Answer, Pair
from oger_recipe.evaluation.tables import aligned
from oger_recipe.remote_code import may_run
from oger_recipe.rewards.compose import SourceSpec, Surroundings, entry_problems, sources_of
from oger_recipe.rewards.models.asking import Judged
from oger_recipe.rewards.models.cache import Cached
from oger_recipe.rewards.models.judge import Judge
from oger_recipe.rewards.models.keys import JudgeKeys, PairwiseKeys
from oger_recipe.rewards.models.pairwise import TIE, compare
from oger_recipe.rewards.models.place import Place, Reply, Sampling
from oger_recipe.rewards.verifiers import look_in
from oger_recipe.run.engines import engines_of
from oger_recipe.run.inputs import with_judges
from oger_recipe.settings.oger import OgerSettings

_ENTRY = "oger.reward.sources, entry 1: "  # not where the user has written it
Case = dict[str, Any]  # a pair or an answer with what the judge said, as the file of results has it


@dataclass(frozen=True)
class Found:
    """metrics: by name; work: what the verdicts took; cases: one by one."""

    metrics: Mapping[str, Any]
    work: Work
    cases: list[Case]


def judge_of(entry: Mapping[str, Any], value: Mapping[str, Any]) -> SourceSpec:
    """Reads an entry of oger.reward.sources. Raises RecipeError for one that is wrong, or no judge's."""
    (entry,) = with_judges({**value, "oger.reward.sources": (entry,)})["oger.reward.sources"]
    if problems := [each.removeprefix(_ENTRY) for each in entry_problems([entry])]:
        raise RecipeError("\n  - ".join(["this judge cannot be asked:", *problems]))
    (spec,) = sources_of([entry])
    if not isinstance(spec.keys, JudgeKeys):
        raise RecipeError(f"{spec.name} is of kind {spec.kind}: kinds judge and pairwise have verdicts to evaluate")
    return spec


def on_pairs(spec: SourceSpec, pairs: Sequence[Pair], value: Mapping[str, Any]) -> Found:
    """Kind pairwise reads both answers, in both orders; kind judge values each, and the greater value is better."""
    asked = _Asked(spec, value)
    questions = [pair.question for pair in pairs]
    if isinstance(spec.keys, PairwiseKeys):
        with asked as judge:
            compared = compare(judge, questions, [(pair.first, pair.second) for pair in pairs])
        judged = [(each.forth, each.back) for each in compared]
        metrics = pair_metrics(
            [
                JudgedPair(pair.first_is_better, _value(forth), _value(back))
                for pair, (forth, back) in _zip(pairs, judged)
            ]
        )
    else:
        with asked as judge:
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
    return Found(metrics | _failures([each for both in judged for each in both]), asked.work, cases)


def on_answers(spec: SourceSpec, answers: Sequence[Answer], value: Mapping[str, Any], threshold: float) -> Found:
    if isinstance(spec.keys, PairwiseKeys):
        raise RecipeError(f"{spec.name} compares pairs: --labels needs a judge of kind judge")
    asked = _Asked(spec, value)
    with asked as judge:
        judged = judge.judge([each.question for each in answers], [each.text for each in answers])
    labels = [each.label for each in answers]
    metrics = label_metrics(labels, [_value(each) for each in judged], threshold)
    cases = [{"answer": each.name, "label": each.label} | _case(said) for each, said in _zip(answers, judged)]
    return Found(metrics | _failures(judged), asked.work, cases)


def report(found: Found, prices: Prices) -> str:
    """Writes the figures under one another; those that are not known are left out."""
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
    """Returns all that is known, as JSON has it."""
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


class _Asked:
    """A judge that is there between entering and leaving, and what asking it took."""

    def __init__(self, spec: SourceSpec, value: Mapping[str, Any]) -> None:
        assert isinstance(spec.keys, JudgeKeys)
        self._spec, self._keys = spec, spec.keys
        self._settings, self._seed = OgerSettings.of(value), value["train.seed"]
        look_in(self._settings.verifiers.verifier_path)
        self._engines = engines_of(spec.keys.models, self._settings.reward.engine_memory_gb)

    def __enter__(self) -> Judge:
        surroundings = Surroundings.of(self._settings, self._engines.__enter__(), self._seed)
        judge = Judge.of(self._keys, self._spec.name, replace(surroundings, cache=None))
        self._meter = _Metered(judge.place, loads_when_asked=self._keys.runs_on == "process")
        kept = surroundings.cache if self._keys.cache else None
        place = self._meter if kept is None else Cached(self._meter, self._keys, kept)
        return replace(judge, place=place)

    def __exit__(self, *exception: Any) -> None:
        self._engines.__exit__(*exception)

    @property
    def work(self) -> Work:
        meter = self._meter
        return Work(len(meter.replies), meter.seconds, meter.loading_s, self._tokens())

    def _tokens(self) -> tuple[int, int] | None:
        if self._keys.chats:  # nobody here knows its tokenizer
            return None
        from transformers import AutoTokenizer

        name = self._keys.tokenizer or self._keys.model
        revision = self._keys.revision if name == self._keys.model else None
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=may_run())
        read, written = (
            sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
            for texts in (self._meter.prompts, [reply.text for reply in self._meter.replies])
        )
        return read, written


@dataclass
class _Metered:
    """A place whose work is taken down."""

    place: Place
    loads_when_asked: bool
    loading_s: float = 0.0
    seconds: float = 0.0
    prompts: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def open(self) -> None:
        started = time.monotonic()
        self.place.open()
        if self.loads_when_asked:
            self.place.generate(["Hello."], Sampling(max_new_tokens=1))
        self.loading_s += time.monotonic() - started

    def close(self) -> None:
        self.place.close()

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        started = time.monotonic()
        replies = self.place.generate(prompts, sampling)
        self.seconds += time.monotonic() - started
        self.prompts += prompts
        self.replies += replies
        return replies

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        return self.place.classify(prompts)


def _value(judged: Judged) -> float | None:
    return None if judged.error is not None else judged.value


def _greater(first: Judged, second: Judged) -> float | None:
    """As a verdict on the first answer."""
    one, other = _value(first), _value(second)
    return None if one is None or other is None else TIE if one == other else float(one > other)


def _failures(judged: Sequence[Judged]) -> dict[str, int]:
    """What `unread` is made of."""
    unparsed = sum(each.unparsed for each in judged)
    return {
        "unparsed_replies": unparsed,
        "other_failures": sum(each.error is not None for each in judged) - unparsed,
        "cut_replies": sum(each.reply is not None and each.reply.cut for each in judged),
    }


def _case(judged: Judged) -> Case:
    reply = {} if judged.reply is None else {"reply": judged.reply.text}
    return {"value": _value(judged)} | reply | ({} if judged.error is None else {"error": judged.error})


def _cases_of(case: Case) -> list[Case]:
    """Those of a pair's both orders, or that of an answer."""
    return [case["forth"], case["back"]] if "forth" in case else [case]


def _zip(one: Sequence[Any], other: Sequence[Any]) -> Any:
    return zip(one, other, strict=True)
