"""Rewards, values and ratios of steps of reasoning, against plain Python on random trees and numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from step_trees import (
    Rows,
    Tree,
    filled,
    index_of,
    mask_of,
    numeric_gradient,
    plain_step_gae,
    plain_token_gae,
    trees,
)
from torch import Tensor

from oger_recipe.algorithm.steps import (
    AGGREGATES,
    aggregate_steps,
    min_ahead_rewards,
    min_form_rewards,
    step_gae,
    step_ratio,
    token_gae_by_steps,
)

SEEDS = range(8)


# ---- plain Python


def plain_ratio(log_probs: Rows, old: Rows, rows: list[Tree]) -> Rows:
    steps = max(len(row.steps) for row in rows)
    return [
        [
            math.prod(math.exp(log_probs[i][place] - old[i][place]) for place in row.steps[s])
            if s < len(row.steps)
            else 1.0
            for s in range(steps)
        ]
        for i, row in enumerate(rows)
    ]


def plain_min_form(scores: Rows, rows: list[Tree], temperature: float) -> Rows:
    paid = []
    for row, tree in zip(scores, rows, strict=True):
        inside = row[: len(tree.steps)]
        whole = sum(math.exp(-each / temperature) for each in inside)
        paid.append(
            [math.exp(-each / temperature) / whole * each for each in inside] + [0.0] * (len(row) - len(inside))
        )
    return paid


def plain_min_ahead(scores: Rows, rows: list[Tree], temperature: float) -> Rows:
    paid = []
    for row, tree in zip(scores, rows, strict=True):
        inside = row[: len(tree.steps)]
        worst = [sum(plain_min_form([inside[s:]], [Tree(tree.steps[s:])], temperature)[0]) for s in range(len(inside))]
        paid.append([a - b for a, b in pairwise([*worst, 0.0])] + [0.0] * (len(row) - len(inside)))
    return paid


PLAIN_MIN: dict[str, tuple[Callable[..., Tensor], Callable[..., Rows]]] = {
    "form": (min_form_rewards, plain_min_form), "ahead": (min_ahead_rewards, plain_min_ahead),
}  # fmt: skip
PLAIN_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "min": min, "product": math.prod, "last": lambda row: row[-1], "mean": lambda row: sum(row) / len(row), "sum": sum,
}  # fmt: skip


def tensor(rows: Rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def weighted(of: Tensor) -> Tensor:
    """A number of a tensor, with another weight on each of its places."""
    return (of * torch.arange(1, of.numel() + 1, dtype=of.dtype).reshape(of.shape).sin()).sum()


def plain_weighted(rows: Rows) -> float:
    flat = [value for row in rows for value in row]
    return sum(math.sin(place) * value for place, value in enumerate(flat, start=1))


# ---- on random trees


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bootstrapped", [False, True])
def test_the_advantages_of_steps_are_those_of_plain_python(seed: int, bootstrapped: bool) -> None:
    rows = trees(seed)
    mask = mask_of(rows, more=seed % 3)
    rewards, values = filled(mask, seed), filled(mask, seed + 100)
    after = [0.5 * row - 1 for row in range(len(rows))] if bootstrapped else [0.0] * len(rows)
    next_value = torch.tensor(after, dtype=torch.float64) if bootstrapped else None
    given, critic = rewards.clone().requires_grad_(), values.clone().requires_grad_()
    found = step_gae(given, critic, mask, gamma=0.9, lam=0.8, next_value=next_value)
    expected = plain_step_gae(rewards.tolist(), values.tolist(), rows, 0.9, 0.8, after)
    for got, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(got.detach(), tensor(plain))
    weighted(found[0]).backward()
    for of, at in ((given, 0), (critic, 1)):
        both = [rewards.tolist(), values.tolist()]

        def plain(moved: Rows, at: int = at, both: list[Rows] = both) -> float:
            return plain_weighted(plain_step_gae(*both[:at], moved, *both[at + 1 :], rows, 0.9, 0.8, after)[0])

        torch.testing.assert_close(of.grad, tensor(numeric_gradient(plain, both[at])), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bootstrapped", [False, True])
def test_the_advantages_of_tokens_by_steps_are_those_of_plain_python(seed: int, bootstrapped: bool) -> None:
    rows = trees(seed)
    index, mask = index_of(rows, more=seed % 2), mask_of(rows, more=seed % 3)
    rewards, values = filled(mask, seed), filled(index >= 0, seed + 100)
    after = [0.5 * row - 1 for row in range(len(rows))] if bootstrapped else [0.0] * len(rows)
    next_value = torch.tensor(after, dtype=torch.float64) if bootstrapped else None
    given, critic = rewards.clone().requires_grad_(), values.clone().requires_grad_()
    found = token_gae_by_steps(given, critic, index, gamma=0.9, lam=0.8, next_value=next_value)
    expected = plain_token_gae(rewards.tolist(), values.tolist(), rows, 0.9, 0.8, after)
    for got, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(got.detach(), tensor(plain))
    weighted(found[0]).backward()
    both = [rewards.tolist(), values.tolist()]
    for of, at in ((given, 0), (critic, 1)):

        def plain(moved: Rows, at: int = at) -> float:
            return plain_weighted(plain_token_gae(*both[:at], moved, *both[at + 1 :], rows, 0.9, 0.8, after)[0])

        torch.testing.assert_close(of.grad, tensor(numeric_gradient(plain, both[at])), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ratio_of_a_step_is_the_product_of_its_tokens(seed: int) -> None:
    rows = trees(seed)
    index = index_of(rows, more=seed % 3)
    new, old = (filled(index >= 0, number) for number in (seed, seed + 100))
    given, before = new.clone().requires_grad_(), old.clone().requires_grad_()
    found = step_ratio(given, before, index)
    expected = plain_ratio(new.tolist(), old.tolist(), rows)
    torch.testing.assert_close(found.detach(), tensor(expected))
    weighted(found).backward()
    # d ratio_s / d log pi_t = ratio_s for the tokens of s
    slope = [[0.0] * index.shape[1] for _ in rows]
    for i, row in enumerate(rows):
        for s, places in enumerate(row.steps):
            for place in places:
                slope[i][place] = math.sin(i * len(expected[0]) + s + 1) * expected[i][s]
    torch.testing.assert_close(given.grad, tensor(slope))
    torch.testing.assert_close(before.grad, -tensor(slope))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("which", PLAIN_MIN)
def test_rewards_by_the_lowest_score_are_those_of_plain_python(seed: int, temperature: float, which: str) -> None:
    function, plain = PLAIN_MIN[which]
    rows = trees(seed)
    mask = mask_of(rows, more=seed % 3)
    scores = filled(mask, seed)
    given = scores.clone().requires_grad_()
    found = function(given, mask, temperature)
    expected = plain(scores.tolist(), rows, temperature)
    torch.testing.assert_close(found.detach(), tensor(expected))
    weighted(found).backward()
    slope = numeric_gradient(lambda at: plain_weighted(plain(at, rows, temperature)), scores.tolist())
    torch.testing.assert_close(given.grad, tensor(slope), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", AGGREGATES)
def test_one_number_of_a_rows_steps(seed: int, how: str) -> None:
    rows = trees(seed)
    mask = mask_of(rows, more=seed % 3)
    scores = filled(mask, seed)
    given = scores.clone().requires_grad_()
    found = aggregate_steps(given, mask, how)

    def plain(at: Rows) -> list[float]:
        inside = [row[: len(tree.steps)] for row, tree in zip(at, rows, strict=True)]
        return [PLAIN_AGGREGATES[how](each) if each else 0.0 for each in inside]

    torch.testing.assert_close(found.detach(), torch.tensor(plain(scores.tolist()), dtype=torch.float64))
    weighted(found).backward()
    slope = numeric_gradient(lambda at: plain_weighted([plain(at)]), scores.tolist())
    torch.testing.assert_close(given.grad, tensor(slope), atol=1e-6, rtol=1e-6)


# ---- by hand


def test_two_steps_by_hand() -> None:
    # delta = 1 + 0.5 * 4 - 2 = 1 and 3 + 0 - 4 = -1; A = 1 + 0.5 * 0.5 * -1 = 0.75 and -1
    two = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 4.0]]), torch.tensor([[True, True]])
    advantages, returns = step_gae(*two, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [[0.75, -1.0]] and returns.tolist() == [[2.75, 3.0]]
    # with 8 behind the end: delta = -1 + 0.5 * 8 = 3; A = 1 + 0.25 * 3 and 3
    advantages, returns = step_gae(*two, gamma=0.5, lam=0.5, next_value=torch.tensor([8.0]))
    assert advantages.tolist() == [[1.75, 3.0]] and returns.tolist() == [[3.75, 7.0]]


def test_tokens_of_two_steps_by_hand() -> None:
    # Steps of two and one tokens, gamma = lam = 0.5, V = 1, 2, 4:
    # delta = 2 - 1 = 1; 8 + 0.5 * 4 - 2 = 8; 6 + 0 - 4 = 2
    # A = 2; 8 + 0.25 * 2 = 8.5; 1 + 0.5 * 8.5 = 5.25
    rewards, values, index = torch.tensor([[8.0, 6.0]]), torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0, 0, 1]])
    advantages, returns = token_gae_by_steps(rewards, values, index, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [[5.25, 8.5, 2.0]] and returns.tolist() == [[6.25, 10.5, 6.0]]
    after = torch.tensor([4.0])  # delta_3 = 4, A = 4; 9; 5.5
    advantages, _ = token_gae_by_steps(rewards, values, index, gamma=0.5, lam=0.5, next_value=after)
    assert advantages.tolist() == [[5.5, 9.0, 4.0]]


def test_a_ratio_by_hand() -> None:
    new, old = torch.tensor([[-1.0, -2.0, -3.0, -9.0]]), torch.tensor([[-1.5, -1.0, -3.0, -1.0]])
    found = step_ratio(new, old, torch.tensor([[0, 0, 1, -1]]))
    assert found.tolist() == [pytest.approx([math.exp(-0.5), 1.0])]


def test_min_form_goes_from_the_mean_to_the_min() -> None:
    scores, mask = torch.tensor([[0.25, -0.5, 0.75]]), torch.ones(1, 3, dtype=torch.bool)
    assert min_form_rewards(scores, mask, 1e9).tolist() == [pytest.approx([0.25 / 3, -0.5 / 3, 0.75 / 3])]
    for temperature in (1e-2, 1e-20, 1e-40, 1e-300):
        given = scores.clone().requires_grad_()
        found = min_form_rewards(given, mask, temperature)
        assert found.tolist() == [pytest.approx([0.0, -0.5, 0.0])]
        found.sum().backward()
        assert given.grad.tolist() == [pytest.approx([0.0, 1.0, 0.0])]
    two = min_form_rewards(torch.tensor([[0.5, 0.5]]), mask[:, :2], 1e-40)  # equals share it
    assert two.tolist() == [[0.25, 0.25]]
    high = min_form_rewards(torch.tensor([[900.0, 901.0]]), mask[:, :2], 1.0)
    assert high.tolist() == [pytest.approx([900 / (1 + math.exp(-1)), 901 * math.exp(-1) / (1 + math.exp(-1))])]


def test_what_is_earned_from_a_step_on_hangs_on_nothing_before_it() -> None:
    """Three steps that are as bad: from each on a row earns -1; with min form -1, -2/3 and -1/3."""
    bad, mask = torch.full((1, 3), -1.0), torch.ones(1, 3, dtype=torch.bool)
    assert min_ahead_rewards(bad, mask, 0.1).tolist() == [[0.0, 0.0, -1.0]]
    assert min_form_rewards(bad, mask, 0.1).tolist() == [pytest.approx([-1 / 3] * 3)]
    scores = torch.tensor([[1.0, -1.0, 0.5, 0.75]])
    for temperature in (1e-2, 1e-40, 1e-300):  # lowest ahead: -1, -1, 0.5, 0.75
        given = scores.clone().requires_grad_()
        found = min_ahead_rewards(given, torch.ones(1, 4, dtype=torch.bool), temperature)
        assert found.tolist() == [pytest.approx([0.0, -1.5, -0.25, 0.75])]
        found[0, 1:].sum().backward()
        assert given.grad.tolist() == [pytest.approx([0.0, 1.0, 0.0, 0.0])]


def test_a_row_without_steps_is_worth_nothing_by_any_name() -> None:
    none = torch.zeros(1, 2, dtype=torch.bool)
    for how in AGGREGATES:
        assert aggregate_steps(torch.tensor([[math.nan, 5.0]]), none, how).tolist() == [0.0]
    assert aggregate_steps(torch.zeros(1, 0), none[:, :0], "product").tolist() == [0.0]
    for function, _ in PLAIN_MIN.values():
        assert function(torch.full((1, 2), math.nan), none, 0.1).tolist() == [[0.0, 0.0]]
    nothing, after = torch.full((1, 2), math.nan), torch.tensor([math.nan])
    index = torch.tensor([[-1, -1]])
    for found in (
        *step_gae(nothing, nothing, none, gamma=1, lam=1, next_value=after),
        *token_gae_by_steps(nothing, nothing, index, gamma=1, lam=1, next_value=after),
    ):
        assert found.tolist() == [[0.0, 0.0]]


# ---- what must not change anything


def everything(rows: list[Tree], *, steps: int = 0, tokens: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """All that the functions say of rows, padded by so many steps and tokens, [rows, ...] each."""
    index, mask = index_of(rows, more=tokens), mask_of(rows, more=steps)
    inside = mask_of(rows)
    rewards, values = (_padded(filled(inside, seed + n), mask.shape[1]) for n in (1, 2))
    inner = index_of(rows) >= 0
    new, old, critic = (_padded(filled(inner, seed + n), index.shape[1]) for n in (3, 4, 5))
    after = torch.linspace(-1, 1, len(rows), dtype=torch.float64)
    settings = {"gamma": 0.9, "lam": 0.7, "next_value": after}
    return {
        "steps": torch.stack(step_gae(rewards, values, mask, **settings)).transpose(0, 1),
        "tokens": torch.stack(token_gae_by_steps(rewards, critic, index, **settings)).transpose(0, 1),
        "ratio": step_ratio(new, old, index),
        **{which: function(rewards, mask, 0.3) for which, (function, _) in PLAIN_MIN.items()},
        **{how: aggregate_steps(rewards, mask, how).unsqueeze(1) for how in AGGREGATES},
    }


def _padded(values: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, columns - values.shape[1]), value=math.nan)


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_changes_nothing_and_is_zero(seed: int) -> None:
    rows = trees(seed)
    alone, padded = everything(rows, seed=seed), everything(rows, steps=3, tokens=5, seed=seed)
    for name, found in alone.items():
        wider = padded[name]
        torch.testing.assert_close(wider[..., : found.shape[-1]], found, rtol=0, atol=0)
        assert not wider[..., found.shape[-1] :].any()


@pytest.mark.parametrize("name", ["advantages", "returns"])
def test_rows_stand_for_themselves(name: str) -> None:
    rows = trees(3)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    index, mask = index_of(rows), mask_of(rows)
    rewards, values, critic = filled(mask, 1), filled(mask, 2), filled(index >= 0, 3)
    which = ("advantages", "returns").index(name)
    for found, moved in (
        (
            step_gae(rewards, values, mask, gamma=0.9, lam=0.7),
            step_gae(rewards[order], values[order], mask[order], gamma=0.9, lam=0.7),
        ),
        (
            token_gae_by_steps(rewards, critic, index, gamma=0.9, lam=0.7),
            token_gae_by_steps(rewards[order], critic[order], index[order], gamma=0.9, lam=0.7),
        ),
    ):
        torch.testing.assert_close(moved[which], found[which][order], rtol=0, atol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_every_token_is_a_step_both_are_the_gae_of_tokens(seed: int) -> None:
    rows = [Tree([[place] for step in row.steps for place in step]) for row in trees(seed, gaps=False)]
    index, mask = index_of(rows), mask_of(rows)
    rewards, values = filled(mask, seed), filled(mask, seed + 1)
    by_step = step_gae(rewards, values, mask, gamma=0.9, lam=0.7)
    by_token = token_gae_by_steps(rewards, values, index, gamma=0.9, lam=0.7)
    for one, other in zip(by_step, by_token, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_discounts_every_advantage_is_what_is_still_earned_less_the_value(seed: int) -> None:
    rows = trees(seed)
    index, mask = index_of(rows), mask_of(rows)
    rewards, values, critic = filled(mask, 1), filled(mask, 2), filled(index >= 0, 3)
    _, of_steps = step_gae(rewards, values, mask, gamma=1, lam=1)
    _, of_tokens = token_gae_by_steps(rewards, critic, index, gamma=1, lam=1)
    for i, row in enumerate(rows):
        for s, places in enumerate(row.steps):
            still = sum(rewards[i, s : len(row.steps)].tolist())
            assert of_steps[i, s].item() == pytest.approx(still)
            assert of_tokens[i, places].tolist() == pytest.approx([still] * len(places))


# ---- types and refusals


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_results_are_float32_or_better(dtype: torch.dtype) -> None:
    one, mask, index = torch.ones(1, 1, dtype=dtype), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1).int()
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    found = [
        *step_gae(one, one, mask, gamma=0.9, lam=0.9), *token_gae_by_steps(one, one, index, gamma=0.9, lam=0.9),
        step_ratio(one, one, index), aggregate_steps(one, mask, "mean"),
        *(function(one, mask, 0.1) for function, _ in PLAIN_MIN.values()),
    ]  # fmt: skip
    assert {each.dtype for each in found} == {expected}


def test_half_precision_is_left_before_anything_is_summed() -> None:
    log_probs = torch.full((1, 3000), -0.001, dtype=torch.bfloat16)  # bfloat16 would stop at 0.25
    found = step_ratio(log_probs, torch.zeros_like(log_probs), torch.zeros(1, 3000, dtype=torch.int))
    assert math.log(found.item()) == pytest.approx(3000 * log_probs[0, 0].item(), rel=1e-4)


ROW, BOTH = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
INDEX = torch.tensor([[0, 1]])
GAE: dict[str, Any] = {"gamma": 1, "lam": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_gae(ROW, ROW[:, :1], BOTH, **GAE), "values must"),
        (lambda: step_gae(ROW[0], ROW[0], BOTH[0], **GAE), "rewards must"),
        (lambda: step_gae(ROW, ROW, torch.tensor([[False, True]]), **GAE), "hole"),
        (lambda: step_gae(ROW, ROW, BOTH, next_value=ROW, **GAE), r"next_value must be \[1\], not \[1, 2\]"),
        (lambda: token_gae_by_steps(ROW, ROW, INDEX[:, :1], **GAE), "token_values must"),
        (lambda: token_gae_by_steps(ROW[0], ROW, INDEX, **GAE), r"step_rewards must be \[1, S\]"),
        (lambda: token_gae_by_steps(ROW[:, :1], ROW, INDEX, **GAE), "goes to 1, step_rewards has 1 steps"),
        (lambda: token_gae_by_steps(ROW, ROW, INDEX.flip(1), **GAE), "goes back"),
        (lambda: token_gae_by_steps(ROW, ROW, INDEX - 2, **GAE), "step_index has -2"),
        (lambda: token_gae_by_steps(ROW, ROW, INDEX.float(), **GAE), "integers, not torch.float32"),
        (lambda: token_gae_by_steps(ROW, ROW, INDEX, next_value=torch.zeros(2), **GAE), "next_value must"),
        (lambda: step_ratio(ROW, ROW[:, :1], INDEX), "old_log_probs must"),
        (lambda: step_ratio(ROW, ROW, BOTH), "integers, not torch.bool"),
        (lambda: aggregate_steps(ROW, BOTH, "max"), "'max' is unknown; valid values: min, product, last, mean, sum"),
        (lambda: aggregate_steps(ROW, BOTH[:, :1], "min"), "scores must"),
        (lambda: min_form_rewards(ROW, BOTH, 0), "temperature must be above 0, not 0"),
        (lambda: min_form_rewards(ROW, BOTH, math.nan), "temperature must be above 0, not nan"),
        (lambda: min_form_rewards(ROW[:, :1], BOTH, 1), "scores must"),
        (lambda: min_ahead_rewards(ROW, BOTH, 0), "temperature must be above 0, not 0"),
        (lambda: min_ahead_rewards(ROW[:, :1], BOTH, 1), "scores must"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_batches_without_steps_or_tokens_are_empty() -> None:
    none, index = torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.int)
    for found in (*step_gae(none, none, none.bool(), **GAE), *token_gae_by_steps(none, none, index, **GAE)):
        assert found.shape == (2, 0)
    assert step_ratio(none, none, index).shape == (2, 0)
    assert step_ratio(ROW, ROW, torch.full((1, 2), -1)).shape == (1, 0)
    for function, _ in PLAIN_MIN.values():
        assert function(none, none.bool(), 0.1).shape == (2, 0)
