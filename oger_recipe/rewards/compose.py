"""How the sources of a run make one reward: a left fold with weights and gates, and what a failed source costs.

    total = weight_1 * value_1
    total = total + weight_k * value_k      combine: add
    total = total * weight_k * value_k      combine: mul

A value is 0 where its gate is closed; elsewhere it is what the source said, by NORMALIZE compared with other values.
A row that has none because of what its response says (Scores.causes) gets the worst that the source gives, before it
is compared with others: whatever a policy does to a judge, it earns no more by it than by the worst verdict.

From a step of reasoning to its tokens' advantages, where an estimator goes by steps:

    Scores.steps        what one source says of each step (sources.py)
    _Contribution       the same, with the worst value or none where it failed, weighted: its term
    StepRewards         all terms, folded (by_steps.py); Rewards.steps, whose sums over rows are Rewards.total
    in_group            StepRewards to advantages of steps, by comparing rows (algorithm/step_credit.py)
    with_values         or, with a critic's values, to advantages of tokens
    credit_by_steps     to the tokens of OpenRLHF's experiences (pipeline/controller/credit_by_steps.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import penalise_truncated
from oger_recipe.algorithm.normalize import Running
from oger_recipe.algorithm.step_credit import StepRewards
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import reward_fault
from oger_recipe.rewards.by_steps import (
    compose_steps,
    step_errors,
    step_mask,
    weighted_steps,
    with_steps_of,
)
from oger_recipe.rewards.sources import (
    ANSWER,
    OVERFLOW,
    Group,
    Scores,
    Source,
    is_reward,
    of_rows,
    reason,
    unfit_values,
)
from oger_recipe.rewards.spec import COMBINATIONS, GATES, NORMALIZE, SourceSpec

_T = TypeVar("_T")


@dataclass(frozen=True)
class OnError:
    """What a failed source costs rows whose responses are not at fault: its value is 0, or it counts as not listed
    there (`passed_by`); the group has no advantage in this step (`drops_group`); the run ends (`stops`)."""

    passed_by: bool = False
    drops_group: bool = False
    stops: bool = False


ON_ERROR: dict[str, OnError] = {
    "zero": OnError(),
    "neutral": OnError(passed_by=True),
    "drop_group": OnError(passed_by=True, drops_group=True),
    "stop": OnError(stops=True),
}


@dataclass(frozen=True)
class Rewards:
    """The rewards of a step; tensors are [groups, n].

    terms: source -> its weighted values, 0 where its gate is closed; said: ``source`` and ``source/component`` -> what
    it said, nan where it said nothing; errors: source -> row, counted over all groups -> why it has no value; dropped
    (bool [groups]): groups that have no advantage in this step; metrics: ``source/name`` -> a number about the step;
    running: source -> statistics of all its values so far, where needed; unfit (bool [groups, n]): rows whose terms
    made a total that cannot be a reward, and is 0 now; steps: what each step of reasoning is paid,
    where an estimator takes that: then total and terms are sums over a row's steps; said_of_steps: source ->
    what it said of steps of reasoning, [groups, n, S], nan where there is no such step; asked: source -> rows that it
    was asked about; too_long: source -> those among them that failed as longer than its model reads; criteria: source
    -> row -> verdicts on the criteria of a rubric, where it gives any.
    """

    total: Tensor
    terms: dict[str, Tensor]
    said: dict[str, Tensor]
    errors: dict[str, dict[int, str]]
    dropped: Tensor
    metrics: dict[str, float]
    running: dict[str, Running]
    unfit: Tensor
    steps: StepRewards | None = None
    said_of_steps: dict[str, Tensor] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    too_long: dict[str, int] = field(default_factory=dict)
    criteria: dict[str, dict[int, Mapping[str, float | None]]] = field(default_factory=dict)

    def without_unfit(self) -> Rewards:
        """Drop the groups of rows whose total cannot be a reward; such a row is a failure of its largest term."""
        unfit = ~is_reward(self.total)
        if not unfit.any():
            return self
        names, errors = list(self.terms), {name: dict(rows) for name, rows in self.errors.items()}
        terms = torch.stack(list(self.terms.values()))
        largest = terms.abs().nan_to_num(nan=torch.inf).argmax(dim=0)
        for group, row in unfit.nonzero().tolist():
            number, reward = int(largest[group, row]), self.total[group, row].item()
            errors[names[number]][group * self.total.shape[1] + row] = (
                f"its weighted value is {terms[number, group, row].item():g}, and the row's reward then {reward:g}, "
                f"which is {reward_fault(reward)}"
            )
        total = self.total.masked_fill(unfit, 0.0)
        steps = self.steps and self.steps.with_responses(total, unfit)
        dropped = self.dropped | unfit.any(dim=1)
        return replace(self, total=total, steps=steps, errors=errors, dropped=dropped, unfit=unfit)


def rewards_of(
    groups: Sequence[Group],
    sources: Sequence[Source],
    specs: Sequence[SourceSpec],
    *,
    on_error: str,
    running: Mapping[str, Running] | None = None,
    by_steps: bool = False,
) -> Rewards:
    """Ask all sources and compose what they say; ``running``: that of the step before, None at the first.

    by_steps: every step of reasoning gets a reward, and groups have to know their steps; otherwise a source that
    rewards steps counts with its one value for a row. A source that raises has failed on all rows that it was asked
    about; only a RecipeError is raised further.
    """
    rule = of_rows(groups, lambda group: [graded.verdict.reward for graded in group.graded])
    wanted = [GATES[spec.gate](rule) for spec in specs]
    mask, how, before, size = step_mask(groups) if by_steps else None, ON_ERROR[on_error], running or {}, rule.shape[1]
    heard = {
        spec.name: _Contribution(spec, scores, asked, mask, before.get(spec.name, Running()))
        for spec, scores, asked in zip(specs, _asked(sources, groups, wanted), wanted, strict=True)
    }
    every = [*heard.values()]
    terms, counts = [each.term() for each in every], [each.counts(how) for each in every]
    combine = [spec.combine for spec in specs]
    steps = None if mask is None else compose_steps(terms, counts, combine, mask)
    dropped = [each.without if how.drops_group else each.left_out for each in every]
    rewards = Rewards(
        total=compose(terms, counts, combine) if steps is None else steps.total,
        terms={name: term.sum(dim=2) if term.ndim == 3 else term for name, term in zip(heard, terms, strict=True)},
        said={place: values for each in every for place, values in each.as_said()},
        errors={name: _by_row(each.said.errors, size) for name, each in heard.items()},
        dropped=torch.stack(dropped).any(dim=0).any(dim=1),
        metrics={f"{name}/{what}": value for name, each in heard.items() for what, value in each.said.metrics.items()},
        running={name: each.running for name, each in heard.items() if each.spec.is_compared},
        steps=steps,
        said_of_steps={
            name: torch.where(each.failed.unsqueeze(2), torch.nan, each.said.steps)
            for name, each in heard.items()
            if each.said.steps is not None
        },
        asked={name: int(each.wanted.sum()) for name, each in heard.items()},
        too_long={name: len(_too_long(each.said)) for name, each in heard.items()},
        criteria={name: _by_row(each.said.criteria, size) for name, each in heard.items() if each.said.criteria},
        unfit=torch.zeros_like(rule, dtype=torch.bool),
    )
    return rewards.without_unfit()


class _Contribution:
    """What one source contributes to the rewards of a training step. All masks are bool [groups, n].

    said: its scores; failed: rows that it failed on; scores: said, with the worst value where the response made it
    fail; without: rows that have no value even so; silent: rows that do not concern it; valued: rows that have a
    value; left_out: rows that the entry leaves out; running: its values so far, this step's among them.
    """

    def __init__(self, spec: SourceSpec, scores: Scores, wanted: Tensor, mask: Tensor | None, before: Running) -> None:
        self.spec, self.wanted, self.mask = spec, wanted, mask
        said = scores if mask is None else _with_steps(spec, scores, wanted, mask)
        self.said = _without_unfit(said, wanted, mask)
        self.failed = _failed(self.said)
        self.silent = torch.zeros_like(wanted) if self.said.silent is None else self.said.silent
        speaks = wanted & ~self.silent
        known = before.joined_by(_of_rows(self.said, mask)[speaks & ~self.failed])
        self.scores = _with_worst(spec, self.said, known, mask)
        self.without = _failed(self.scores)
        self.valued = speaks & ~self.without
        self.left_out = _left_out(spec, self.scores)
        self.running = known.joined_by(_of_rows(self.scores, mask)[self.failed & self.valued])

    def term(self) -> Tensor:
        """Normalize and weigh values [groups, n], or weigh steps [groups, n, S]; 0 where a row has none."""
        if self.mask is not None and self.scores.steps is not None:
            return weighted_steps(self.scores.steps, self.spec.weight, self.valued, self.mask)
        values = NORMALIZE[self.spec.normalize](self.scores.values, self.valued, self.running)
        return self.spec.weight * torch.where(self.valued, values, 0.0)

    def counts(self, how: OnError) -> Tensor:
        """Return the rows (bool [groups, n]) on which the source is not passed by."""
        return ~self.silent & ~(self.without if how.passed_by else self.left_out)

    def as_said(self) -> Iterator[tuple[str, Tensor]]:
        yield self.spec.name, torch.where(self.failed, torch.nan, self.said.values)
        for name, values in self.said.components.items():
            yield f"{self.spec.name}/{name}", values


def _by_row(found: Mapping[tuple[int, int], _T], size: int) -> dict[int, _T]:
    """Key what was found by the row's number over all groups."""
    return {group * size + row: each for (group, row), each in found.items()}


def _with_steps(spec: SourceSpec, scores: Scores, wanted: Tensor, mask: Tensor) -> Scores:
    """Count rows as failed where a source rewards steps that they do not have. Raises RecipeError for a source that
    multiplies or is normalized."""
    if scores.steps is None:
        return scores
    if spec.combine == "mul" or spec.normalize != "none":
        raise RecipeError(f"oger.reward.sources: {by_steps_problem(spec.name)}")
    unfit = step_errors(scores, mask, wanted)
    values, steps = scores.values.clone(), scores.steps.clone()
    for place in unfit:  # what it gave there must not count as its worst value
        values[place], steps[place] = torch.nan, torch.nan
    errors, causes = unfit | dict(scores.errors), dict.fromkeys(unfit, ANSWER) | dict(scores.causes)
    return replace(scores, values=values, steps=steps, errors=errors, causes=causes)


def _without_unfit(scores: Scores, wanted: Tensor, mask: Tensor | None) -> Scores:
    """Count rows as failed whose value, or reward of a step where steps are paid, cannot be a reward."""
    heard = wanted & ~_failed(scores)
    heard = heard if scores.silent is None else heard & ~scores.silent
    values = scores.values
    if mask is not None and scores.steps is not None:  # the largest of a row; nan is no step
        values = scores.steps.masked_fill(scores.steps.isnan(), 0.0).abs().amax(dim=2)
    return replace(scores, errors={**scores.errors, **dict(unfit_values(values, heard))})


def _with_worst(spec: SourceSpec, scores: Scores, known: Running, mask: Tensor | None) -> Scores:
    """Give a source's worst value to rows whose response made it fail, and drop their errors. The worst is what the
    source itself has there, else the entry's or the kind's, else the worst of the run so far, never better than 0."""
    lowest = spec.lowest
    if lowest is None and known.lowest is not None and known.highest is not None:
        lowest = max(0.0, known.highest) if spec.weight < 0 else min(0.0, known.lowest)
    left_out = _left_out(spec, scores)
    values, errors, given = scores.values.clone(), dict(scores.errors), {}
    for place in scores.causes:
        if place not in errors or left_out[place]:
            continue
        if not is_reward(values[place]):
            if lowest is None:
                continue
            values[place] = given[place] = lowest
        del errors[place]
    scores = replace(scores, values=values, errors=errors)
    return scores if mask is None else with_steps_of(scores, given, mask)


def _of_rows(scores: Scores, mask: Tensor | None) -> Tensor:
    """Return a source's values [groups, n]; where steps are paid, the sums over them."""
    return scores.values if mask is None or scores.steps is None else scores.steps.nansum(dim=2)


def _left_out(spec: SourceSpec, scores: Scores) -> Tensor:
    """Return the rows (bool [groups, n]) whose groups the entry drops as too long for its model."""
    drops = spec.keys.drops_overflow
    return _marked(_too_long(scores) if drops else [], scores)


def _too_long(scores: Scores) -> list[tuple[int, int]]:
    return [place for place, cause in scores.causes.items() if cause == OVERFLOW and place in scores.errors]


def by_steps_problem(name: str) -> str:
    """Say that a source that pays for steps can only be added as it is."""
    return (
        f"{name!r} pays each step of reasoning, and such rewards can only be added as they are: leave its combine "
        "and normalize out, or choose an algo.advantage.estimator that does not go by steps"
    )


def with_fixed_rewards(rewards: Rewards, groups: Sequence[Group], fixed: float | None) -> Rewards:
    """Replace truncated rows' total by their fixed reward (oger.non_stop_fixed_reward; None: keep it)."""
    if fixed is None:
        return rewards
    truncated = of_rows(groups, lambda group: group.truncated)
    total = penalise_truncated(rewards.total, truncated, 0.0, fixed)
    return replace(rewards, total=total, steps=rewards.steps and rewards.steps.with_responses(total, truncated))


def cost_of_failures(on_error: str) -> str:
    """Say what failed rows are worth."""
    return (
        "a failure that the answer causes gets the source's worst value; any other is handled by "
        f"oger.reward.on_error {on_error}"
    )


def _asked(sources: Sequence[Source], groups: Sequence[Group], wanted: Sequence[Tensor]) -> list[Scores]:
    """Ask sources in turn, and those that wait for servers meanwhile in threads."""
    overlap = [getattr(source, "overlaps", False) for source in sources]
    with ThreadPoolExecutor(max(sum(overlap), 1)) as threads:
        waiting = {
            number: threads.submit(_scores, sources[number], groups, wanted[number])
            for number, overlaps in enumerate(overlap)
            if overlaps
        }
        asked = {
            number: _scores(sources[number], groups, wanted[number])
            for number, overlaps in enumerate(overlap)
            if not overlaps
        }
        asked |= {number: each.result() for number, each in waiting.items()}
    return [asked[number] for number in range(len(sources))]


@torch.no_grad()  # holds for one thread, and this may run in a new one
def _scores(source: Source, groups: Sequence[Group], wanted: Tensor) -> Scores:
    try:
        return _of_asked(source.score(groups, wanted), wanted)
    except RecipeError:
        raise
    except Exception as error:
        why = reason(error)
        errors = {(group, row): why for group, row in wanted.nonzero().tolist()}
        return Scores(torch.full(wanted.shape, torch.nan), errors=errors)


def _of_asked(scores: Scores, wanted: Tensor) -> Scores:
    """Drop what a source says of rows that it was not asked about, as their gate is closed."""
    return replace(
        scores,
        values=torch.where(wanted, scores.values, torch.nan),
        components={name: torch.where(wanted, values, torch.nan) for name, values in scores.components.items()},
        errors={place: why for place, why in scores.errors.items() if wanted[place]},
        criteria={place: said for place, said in scores.criteria.items() if wanted[place]},
        steps=None if scores.steps is None else torch.where(wanted.unsqueeze(2), scores.steps, torch.nan),
    )


def compose(terms: Sequence[Tensor], counts: Sequence[Tensor], combine: Sequence[str]) -> Tensor:
    """Fold terms from the left; skip a term where its `counts` (bool) is not set. All tensors have one shape."""
    total, begun = torch.zeros_like(terms[0]), torch.zeros_like(counts[0])
    for term, counted, how in zip(terms, counts, combine, strict=True):
        folded = torch.where(begun, COMBINATIONS[how](total, term), term)
        total, begun = torch.where(counted, folded, total), begun | counted
    return total


def _failed(scores: Scores) -> Tensor:
    return _marked(scores.errors, scores)


def _marked(places: Iterable[tuple[int, int]], scores: Scores) -> Tensor:
    marked = torch.zeros_like(scores.values, dtype=torch.bool)
    for place in places:
        marked[place] = True
    return marked
