"""How the sources of a run make one reward: a left fold with weights and gates, and what a failed source costs.

    total = weight_1 * value_1
    total = total + weight_k * value_k      combine: add
    total = total * weight_k * value_k      combine: mul

A value is 0 where its gate is closed; elsewhere it is what the source said, by NORMALIZE compared with other values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from oger_recipe.algorithm.credit import penalise_truncated
from oger_recipe.algorithm.normalize import Running
from oger_recipe.errors import RecipeError
from oger_recipe.rewards.by_steps import StepRewards, Term, compose_steps, step_errors, step_mask, weighted_steps
from oger_recipe.rewards.kinds import COMBINATIONS, GATES, NORMALIZE, SourceSpec
from oger_recipe.rewards.own import reason
from oger_recipe.rewards.sources import Group, Scores, Source, of_rows


@dataclass(frozen=True)
class OnError:
    """What a source without a value costs the rows it failed on: its value is 0, or it counts as not listed there
    (`passed_by`); the group has no advantage in this step (`drops_group`); the run ends (`stops`)."""

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
    running: source -> all its values so far, of those that are compared with them; steps: what each step of reasoning
    is paid, where an estimator takes that: then total and terms are sums over a row's steps; said_of_steps: source ->
    what it said of steps of reasoning, [groups, n, S], nan where there is no such step.
    """

    total: Tensor
    terms: dict[str, Tensor]
    said: dict[str, Tensor]
    errors: dict[str, dict[int, str]]
    dropped: Tensor
    metrics: dict[str, float]
    running: dict[str, Running]
    steps: StepRewards | None = None
    said_of_steps: dict[str, Tensor] = field(default_factory=dict)


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

    by_steps: every step of reasoning gets a reward, of groups that know their steps; otherwise a source that speaks of
    steps counts with its one value for a row, as any other. A source that raises has failed on all rows that it was
    asked about; a RecipeError is raised further.
    """
    rule = of_rows(groups, lambda group: [graded.verdict.reward for graded in group.graded])
    wanted = [GATES[spec.gate](rule) for spec in specs]
    scores = _asked(sources, groups, wanted)
    mask = step_mask(groups) if by_steps else None
    if mask is not None:
        scores = [_with_steps(*each, mask) for each in zip(specs, scores, wanted, strict=True)]
    failed = [_failed(each) for each in scores]
    valued = [asked & ~missing for asked, missing in zip(wanted, failed, strict=True)]
    before = running or {}
    so_far = {
        spec.name: before.get(spec.name, Running()).joined_by(each.values[has_value])
        for spec, each, has_value in zip(specs, scores, valued, strict=True)
    }
    terms = _terms(specs, scores, valued, so_far)
    names, how = [spec.name for spec in specs], ON_ERROR[on_error]
    counts = [~missing if how.passed_by else torch.ones_like(missing) for missing in failed]
    errors = [{group * rule.shape[1] + row: why for (group, row), why in each.errors.items()} for each in scores]
    rewards = Rewards(
        compose(terms, counts, [spec.combine for spec in specs]),
        dict(zip(names, terms, strict=True)),
        _said(scores, names, failed),
        dict(zip(names, errors, strict=True)),
        torch.stack(failed).any(dim=0).any(dim=1) & how.drops_group,
        {f"{spec.name}/{name}": value for spec, each in zip(specs, scores, strict=True)
         for name, value in each.metrics.items()},
        {spec.name: so_far[spec.name] for spec in specs if spec.normalize == "running"},
        said_of_steps={name: each.steps for name, each in zip(names, scores, strict=True) if each.steps is not None},
    )  # fmt: skip
    return rewards if mask is None else _paid_by_steps(rewards, specs, scores, valued, counts, mask)


def _terms(
    specs: Sequence[SourceSpec], scores: Sequence[Scores], valued: Sequence[Tensor], so_far: Mapping[str, Running]
) -> list[Tensor]:
    """Compare and weigh what sources said of rows; 0 where a row has no value (``valued``, bool)."""
    values = [
        NORMALIZE[spec.normalize](each.values, has_value, so_far[spec.name])
        for spec, each, has_value in zip(specs, scores, valued, strict=True)
    ]
    return [
        spec.weight * torch.where(has_value, each, 0.0)
        for spec, each, has_value in zip(specs, values, valued, strict=True)
    ]


def _paid_by_steps(
    rewards: Rewards,
    specs: Sequence[SourceSpec],
    scores: Sequence[Scores],
    valued: Sequence[Tensor],
    counts: Sequence[Tensor],
    mask: Tensor,
) -> Rewards:
    """Add what each step of reasoning is paid, and make sums over steps of total and terms."""
    paid = [
        rewards.terms[spec.name] if each.steps is None else weighted_steps(each.steps, spec.weight, has_value, mask)
        for spec, each, has_value in zip(specs, scores, valued, strict=True)
    ]
    factors = [spec.combine == "mul" for spec in specs]
    steps = compose_steps([Term(*each) for each in zip(paid, counts, factors, strict=True)], mask)
    sums = {spec.name: term.sum(dim=2) if term.ndim == 3 else term for spec, term in zip(specs, paid, strict=True)}
    return replace(rewards, total=steps.total, terms=sums, steps=steps)


def _with_steps(spec: SourceSpec, scores: Scores, wanted: Tensor, mask: Tensor) -> Scores:
    """Count rows as failed to which a source gives rewards of steps that they do not have."""
    if scores.steps is None:
        return scores
    if spec.combine == "mul" or spec.normalize != "none":
        raise RecipeError(f"oger.reward.sources: {by_steps_problem(spec.name)}")
    return replace(scores, errors=step_errors(scores, mask, wanted) | dict(scores.errors))


def by_steps_problem(name: str) -> str:
    """Say what a source that pays for steps of reasoning cannot have."""
    return (
        f"{name!r} pays for each step of reasoning, which can only be added as it is: leave its combine and normalize "
        "out, or choose an algo.advantage.estimator that does not go by steps"
    )


def with_fixed_rewards(rewards: Rewards, groups: Sequence[Group], fixed: float | None) -> Rewards:
    """Put the fixed reward of truncated rows (oger.non_stop_fixed_reward) in the place of their total."""
    if fixed is None:
        return rewards
    truncated = of_rows(groups, lambda group: group.truncated)
    total = penalise_truncated(rewards.total, truncated, 0.0, fixed)
    return replace(rewards, total=total, steps=rewards.steps and rewards.steps.with_responses(total, truncated))


def _asked(sources: Sequence[Source], groups: Sequence[Group], wanted: Sequence[Tensor]) -> list[Scores]:
    """Ask one source after the other, and meanwhile in threads those that wait for servers."""
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


@torch.no_grad()  # of a thread alone
def _scores(source: Source, groups: Sequence[Group], wanted: Tensor) -> Scores:
    try:
        return source.score(groups, wanted)
    except RecipeError:
        raise
    except Exception as error:
        why = reason(error)
        errors = {(group, row): why for group, row in wanted.nonzero().tolist()}
        return Scores(torch.full(wanted.shape, torch.nan), errors=errors)


def compose(terms: Sequence[Tensor], counts: Sequence[Tensor], combine: Sequence[str]) -> Tensor:
    """Fold terms from the left; where `counts` (bool) is not set a term is passed by. All tensors have one shape."""
    total, begun = torch.zeros_like(terms[0]), torch.zeros_like(counts[0])
    for term, counted, how in zip(terms, counts, combine, strict=True):
        folded = torch.where(begun, COMBINATIONS[how](total, term), term)
        total, begun = torch.where(counted, folded, total), begun | counted
    return total


def _failed(scores: Scores) -> Tensor:
    failed = torch.zeros_like(scores.values, dtype=torch.bool)
    for place in scores.errors:
        failed[place] = True
    return failed


def _said(scores: Sequence[Scores], names: Sequence[str], failed: Sequence[Tensor]) -> dict[str, Tensor]:
    said = {}
    for each, source, missing in zip(scores, names, failed, strict=True):
        said[source] = torch.where(missing, torch.nan, each.values)
        said |= {f"{source}/{name}": values for name, values in each.components.items()}
    return said
