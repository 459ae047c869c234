"""The whole loss of HPT (arXiv 2509.04419), as configs/hpt.yaml sets it, against a reference in plain Python.

Of a question with solve rate P, with the coefficients (alpha, beta) = (0, c) where P is at or below the gate, else
(1, 0), and of n rollouts with r their ratios, R their rewards and R_mean the mean:

    alpha / (n L) * sum over rollouts and tokens of -(R - R_mean) r  +  beta / (n L) * sum of -log p of the teacher

and of these the mean over the questions.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import yaml

from oger_recipe.algorithm.credit import hybrid_advantages, token_advantages
from oger_recipe.algorithm.hybrid_group import TAUGHT_GROUPS
from oger_recipe.algorithm.policy_loss import hybrid_policy_loss

FILE = yaml.safe_load((Path(__file__).parents[2] / "configs" / "hpt.yaml").read_text())["oger"]
N, LONGEST = 8, 10  # n as in the file (advantages come in float32)
QUESTIONS = 5
Rows = list[dict[str, list[float]]]


def questions(unsolved: int, seed: int = 0) -> list[tuple[list[float], Rows, list[float]]]:
    """Rewards of the rollouts, log-probabilities of their tokens, and those of the teacher's; the last ones are
    solved by some, and have the same numbers however many are not."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(length: int) -> list[float]:
        return (-2.5 * torch.rand(length, generator=generator, dtype=torch.float64)).tolist()

    found = []
    for question in range(QUESTIONS):
        rollouts = []
        for row in range(N):
            now = drawn(1 + (3 * row + question) % LONGEST)
            rollouts.append({"now": now, "old": [value - 0.1 * place for place, value in enumerate(now)]})
        rewards = [0.0] * N if question < unsolved else [float(row <= question) for row in range(N)]
        found.append((rewards, rollouts, drawn(4 + question)))
    return found


def reference(asked: list[tuple[list[float], Rows, list[float]]], c: float, gate: float) -> tuple[float, list]:
    """The loss, and of each question its slope at every token: the teacher's, or those of all rollouts."""
    loss, slopes = 0.0, []
    for rewards, rollouts, teacher in asked:
        share = 1 / (len(asked) * N * LONGEST)
        if sum(rewards) / N <= gate:
            loss += share * sum(-c * log_p for log_p in teacher)
            slopes.append([[-c * share] * len(teacher)])
            continue
        advantages = [reward - sum(rewards) / N for reward in rewards]
        of_rows = []
        for advantage, row in zip(advantages, rollouts, strict=True):
            ratios = [math.exp(now - old) for now, old in zip(row["now"], row["old"], strict=True)]
            loss += share * sum(-advantage * ratio for ratio in ratios)
            of_rows.append([-advantage * ratio * share for ratio in ratios])
        slopes.append(of_rows)
    return loss, slopes


def ours(
    asked: list[tuple[list[float], Rows, list[float]]], cuts: list[int], padding: int = 0, weight: float | None = None
) -> tuple[float, list]:
    """What the functions of a step make of the same questions: a teacher takes the place of the first rollout where
    the gate lets it in, and the other rows of its group are left out."""
    width = LONGEST + padding
    rewards = torch.tensor([each for each, _, _ in asked], dtype=torch.float64)
    enters = rewards.mean(dim=1, keepdim=True) <= FILE["teacher_gate"]
    is_teacher = enters & (torch.arange(N) == 0)
    left_out = TAUGHT_GROUPS[FILE["taught_group"]](is_teacher).flatten()
    rewards = torch.where(is_teacher, 1.0, rewards)
    estimated = hybrid_advantages(
        rewards, rewards, is_teacher, estimator="dr_grpo", baseline="group", all_correct_group="keep"
    )
    shape = (len(asked) * N, width)
    now, old = torch.full(shape, torch.nan, dtype=torch.float64), torch.full(shape, torch.nan, dtype=torch.float64)
    action = torch.zeros(shape, dtype=torch.bool)
    for row in range(len(now)):
        _, rollouts, teacher = asked[row // N]
        taught = is_teacher.flatten()[row]
        values = teacher if taught else rollouts[row % N]["now"]
        now[row, : len(values)] = torch.tensor(values)
        old[row, : len(values)] = torch.tensor(values if taught else rollouts[row % N]["old"])
        action[row, : len(values)] = not left_out[row]
    off = is_teacher.flatten().unsqueeze(1).expand(shape)
    weight = FILE["sft_prefix_reward_weight"] if weight is None else weight
    assert FILE["use_sft_prefix_reward"]
    advantages = token_advantages(
        estimated.flatten().unsqueeze(1).expand(shape), off, left_out, alpha=1.0, beta=1.0, fixed=weight / N
    )
    now.requires_grad_()
    losses, start = [], 0
    for size in cuts:
        here = slice(start, start + size)
        loss, _ = hybrid_policy_loss(
            now[here], old[here], advantages[here], action[here], off[here],
            teacher_loss=FILE["off_policy_loss"], reshape=FILE["off_policy_reshape"],
            reshape_weight=FILE["off_policy_reshape_weight"], use_clip=False, aggregation="constant",
            max_response_length=LONGEST, num_rows=len(now),
        )  # fmt: skip
        losses.append(loss)
        start += size
    total = torch.stack(losses).sum()
    total.backward()
    gradient = [row[kept].tolist() for row, kept in zip(now.grad, action, strict=True)]
    of_questions = [gradient[start : start + N] for start in range(0, len(gradient), N)]
    return total.item(), [[row for row in rows if row] for rows in of_questions]


def flat(slopes: list) -> list[float]:
    return [slope for rows in slopes for row in rows for slope in row]


WHOLE = [QUESTIONS * N]


@pytest.mark.parametrize("c", [1.0, 0.3])
@pytest.mark.parametrize("unsolved", range(QUESTIONS + 1))
def test_loss_and_gradient_are_the_mean_over_questions(unsolved: int, c: float) -> None:
    asked = questions(unsolved)
    wanted, slopes = reference(asked, c, FILE["teacher_gate"])
    loss, gradient = ours(asked, WHOLE, weight=c * N)
    assert loss == pytest.approx(wanted, rel=1e-6, abs=1e-8)
    assert flat(gradient) == pytest.approx(flat(slopes), rel=1e-6, abs=1e-8)


def test_the_files_coefficient_is_the_published_one() -> None:
    asked = questions(2)
    assert ours(asked, WHOLE)[0] == pytest.approx(reference(asked, 1.0, 0.0)[0], rel=1e-6, abs=1e-8)


def test_the_weight_of_a_question_is_the_same_however_many_others_are_unsolved() -> None:
    """The last question is solved in all of them, the first in none: their gradients are the same numbers."""
    of_steps = [ours(questions(unsolved), WHOLE)[1] for unsolved in range(1, QUESTIONS)]
    for other in of_steps[1:]:
        assert other[0] == of_steps[0][0] and other[-1] == of_steps[0][-1]
    assert [len(rows) for rows in of_steps[0]] == [1] + [N] * (QUESTIONS - 1)


@pytest.mark.parametrize("cuts", [WHOLE, [1] * WHOLE[0], [7, 20, 1, 12]])
@pytest.mark.parametrize("padding", [0, 3])
def test_neither_padding_nor_cuts_change_it(padding: int, cuts: list[int]) -> None:
    asked = questions(3, seed=1)
    wanted, slopes = reference(asked, 1.0, 0.0)
    loss, gradient = ours(asked, cuts, padding)
    assert loss == pytest.approx(wanted, rel=1e-6, abs=1e-8)
    assert flat(gradient) == pytest.approx(flat(slopes), rel=1e-6, abs=1e-8)
