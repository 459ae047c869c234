"""The implicit process reward model against plain Python written from its formulas: values and gradients."""

from __future__ import annotations

import math
import random

import pytest
import torch

from oger_recipe.algorithm.implicit import implicit_step_rewards, outcome_accuracy, outcome_losses, pair_accuracy


def rewards_by_hand(
    log_probs: list[float], reference: list[float], index: list[int], beta: float, steps: int
) -> list[float]:
    found = [0.0] * steps
    for pi, ref, step in zip(log_probs, reference, index, strict=True):
        if step >= 0:
            found[step] += beta * (pi - ref)
    return found


def loss_by_hand(reward: float, outcome: int) -> float:
    right = 1 / (1 + math.exp(-reward))
    return -math.log(right) if outcome else -math.log(1 - right)


def a_row(draw: random.Random, tokens: int) -> list[int]:
    """Steps of a response, with places without a token before it, behind it and between its tokens."""
    row, step = [-1] * draw.randrange(3), 0
    for _ in range(draw.randrange(tokens)):
        row.append(step)
        row += [-1] * (draw.random() < 0.1)
        step += draw.random() < 0.4
    used = sorted({each for each in row if each >= 0})
    return [used.index(each) if each >= 0 else -1 for each in row]


def random_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = random.Random(seed)
    rows = [a_row(draw, 9) for _ in range(5)]
    width = max(map(len, rows)) + 1
    index = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    generator = torch.Generator().manual_seed(seed)
    pi, ref = (-3 * torch.rand(index.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return pi, ref, index


@pytest.mark.parametrize("seed", range(30))
def test_rewards_of_random_responses(seed: int) -> None:
    pi, ref, index = random_batch(seed)
    rewards = implicit_step_rewards(pi, ref, index, beta=0.05)
    assert rewards.shape == (5, int(index.max()) + 1)
    for row in range(5):
        wanted = rewards_by_hand(*(each[row].tolist() for each in (pi, ref, index)), 0.05, rewards.shape[1])
        assert rewards[row].tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_loss_and_its_gradient_on_random_responses(seed: int) -> None:
    """d loss / d log pi_t = beta (sigmoid(r) - o) at each token of the response, and nothing elsewhere."""
    pi, ref, index = random_batch(seed)
    beta, outcomes = 0.7, torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    pi.requires_grad_(True)
    losses = outcome_losses(implicit_step_rewards(pi, ref, index, beta=beta).sum(dim=1), outcomes)
    losses.sum().backward()
    for row in range(5):
        of_row = [each[row].tolist() for each in (pi, ref, index)]
        reward = sum(rewards_by_hand(*of_row, beta, 9))
        assert losses[row].item() == pytest.approx(loss_by_hand(reward, int(outcomes[row])), abs=1e-12)
        slope = beta * (1 / (1 + math.exp(-reward)) - outcomes[row].item())
        wanted = [slope if step >= 0 else 0.0 for step in of_row[2]]
        assert pi.grad is not None and pi.grad[row].tolist() == pytest.approx(wanted, abs=1e-12)


def test_by_hand() -> None:
    """Two steps of (-1 - -2) + (-1 - -1) = 1 and (-3 - -1) = -2 nats; beta 1/2."""
    pi, ref = torch.tensor([[-1.0, -1.0, -3.0]]), torch.tensor([[-2.0, -1.0, -1.0]])
    rewards = implicit_step_rewards(pi, ref, torch.tensor([[0, 0, 1]]), beta=0.5)
    assert rewards.tolist() == [[0.5, -1.0]]
    assert outcome_losses(rewards.sum(dim=1), torch.tensor([1.0])).item() == pytest.approx(math.log(1 + math.exp(0.5)))


def test_a_right_response_gains_likelihood_and_a_wrong_one_loses_it() -> None:
    for outcome, sign in ((1.0, -1), (0.0, 1)):
        pi = torch.zeros(1, 3, requires_grad=True)
        rewards = implicit_step_rewards(pi, torch.zeros(1, 3), torch.tensor([[0, 0, 1]]), beta=1.0)
        outcome_losses(rewards.sum(dim=1), torch.tensor([outcome])).sum().backward()
        assert pi.grad is not None and pi.grad.sign().tolist() == [[sign] * 3]


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf])
def test_what_stands_where_there_is_no_token_never_matters(rubbish: float) -> None:
    index = torch.tensor([[-1, 0, 1, -1], [0, 1, 2, 2]])
    clean, ref = torch.full((2, 4), -1.0), torch.full((2, 4), -1.5)
    dirty, dirty_ref = clean.masked_fill(index < 0, rubbish).requires_grad_(True), ref.masked_fill(index < 0, rubbish)
    rewards = implicit_step_rewards(dirty, dirty_ref, index, beta=1.0)
    assert torch.equal(rewards, implicit_step_rewards(clean, ref, index, beta=1.0))
    outcome_losses(rewards.sum(dim=1), torch.tensor([1.0, 0.0])).sum().backward()
    assert dirty.grad is not None and dirty.grad.isfinite().all() and (dirty.grad[index < 0] == 0).all()


def test_rows_do_not_depend_on_each_other() -> None:
    pi, ref, index = random_batch(3)
    together = implicit_step_rewards(pi, ref, index, beta=0.3)
    for row in range(5):
        alone = implicit_step_rewards(pi[row : row + 1], ref[row : row + 1], index[row : row + 1], beta=0.3)
        assert torch.equal(together[row, : alone.shape[1]], alone[0]) and not together[row, alone.shape[1] :].any()


def test_half_precision_is_summed_in_float32() -> None:
    pi = torch.full((1, 4096), -1 / 256, dtype=torch.bfloat16)
    rewards = implicit_step_rewards(pi, torch.zeros_like(pi), torch.zeros(1, 4096, dtype=torch.int), beta=1.0)
    assert rewards.dtype == torch.float32 and rewards.tolist() == [[-16.0]]


def test_rows_and_batches_without_tokens() -> None:
    empty = torch.zeros(2, 3)
    assert implicit_step_rewards(empty, empty, torch.full((2, 3), -1), beta=1.0).shape == (2, 0)
    assert implicit_step_rewards(empty[:, :0], empty[:, :0], torch.zeros(2, 0).long(), beta=1.0).shape == (2, 0)


def test_what_does_not_fit_is_refused() -> None:
    pi, index = torch.zeros(2, 3), torch.zeros(2, 3).long()
    with pytest.raises(ValueError, match="beta must be above 0, not 0"):
        implicit_step_rewards(pi, pi, index, beta=0.0)
    with pytest.raises(ValueError, match=r"all must be \[B, A\], not \[2, 3\], \[2, 2\], \[2, 3\]"):
        implicit_step_rewards(pi, pi[:, :2], index, beta=1.0)
    for wrong in (index - 2, index.float()):
        with pytest.raises(ValueError, match="step_index (has -2|must be of integers)"):
            implicit_step_rewards(pi, pi, wrong, beta=1.0)


def test_accuracy_counts_sides_and_halves_what_says_nothing() -> None:
    rewards, outcomes = torch.tensor([2.0, -0.1, 0.3, 0.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert outcome_accuracy(rewards, outcomes).item() == (1 + 1 + 0 + 0.5) / 4
    assert outcome_accuracy(rewards[:0], outcomes[:0]).isnan()


def test_pairs_are_of_one_prompt_and_of_rows_that_count() -> None:
    """The first prompt has right ones with 1 and 3, wrong ones with 2 and 3. Of the second the only wrong one does not
    count, of the third the only right one."""
    rewards = torch.tensor([[1.0, 3.0, 2.0, 3.0], [5.0, 9.0, 0.0, 0.0], [5.0, 9.0, 0.0, 0.0]])
    outcomes = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    counted = torch.tensor([[True] * 4, [True, False, True, True], [True, False, True, True]])
    wanted = (0 + 0 + 1 + 0.5) / 4  # 1 > 2, 1 > 3, 3 > 2, 3 = 3
    assert pair_accuracy(rewards, outcomes, counted).item() == wanted
    assert pair_accuracy(rewards[1:], outcomes[1:], counted[1:]).isnan()
