"""The loss by steps of reasoning, against a reference in plain Python that walks the steps of each row."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
import torch

from oger_recipe.algorithm.batches import step_log_probs, unit_mask
from oger_recipe.algorithm.policy_loss import hybrid_policy_loss
from oger_recipe.algorithm.steps import step_ratio

AGGREGATIONS = ["token_mean", "sequence_mean", "constant"]
TEACHER_LOSSES = ["reshape", "ppo", "sft"]
LOW, HIGH, LONGEST, GAMMA, SFT = 0.2, 0.3, 40, 0.1, 0.7


@dataclass
class Row:
    """A prompt's length and, of each response token: its step from 1 (0: none), whether it is a teacher's, log p, old
    log p, advantage."""

    prompt: int
    tokens: list[tuple[int, bool, float, float, float]] = field(default_factory=list)

    @property
    def units(self) -> list[list[int]]:
        """The tokens of each unit: those of a rollout's step together, every other one alone."""
        found: dict[object, list[int]] = {}
        for number, (step, is_teacher, *_) in enumerate(self.tokens):
            found.setdefault((number, "alone") if is_teacher or not step else step, []).append(number)
        return list(found.values())


def random_rows(seed: int, *, longest_step: int = 6, with_none: bool = True) -> list[Row]:
    """Rollouts, a teacher's row, rollouts that a teacher began (in the middle of a step), and rows without steps."""
    dice = random.Random(seed)
    rows = []
    for number in range(7):
        row, step_lengths = Row(dice.randint(1, 5)), [dice.randint(1, longest_step) for _ in range(dice.randint(1, 5))]
        total = sum(step_lengths)
        of_teacher = {1: total, 2: dice.randint(1, total), 3: dice.randint(1, total)}.get(number, 0)
        for step, length in enumerate(step_lengths, start=1):
            for _ in range(length):
                advantage = dice.gauss(0, 1)  # a step has that of its first token
                place = 0 if with_none and number == 4 else step
                old = -3 * dice.random()
                new = min(old + dice.gauss(0, 0.3), -1e-3)
                row.tokens.append((place, len(row.tokens) < of_teacher, new, old, advantage))
        rows.append(row)
    if with_none:
        rows.append(Row(3))  # without a response
    return rows


def tensors(rows: list[Row], width: int = 0) -> tuple[torch.Tensor, ...]:
    """log p, old log p, advantages, action mask, teachers' mask and step index, [B, A]; nonsense outside the mask."""
    width = max(width, *(row.prompt + len(row.tokens) for row in rows))
    numbers = torch.full((3, len(rows), width), torch.nan, dtype=torch.float64)
    mask, teachers = torch.zeros(2, len(rows), width, dtype=torch.long)
    step_index = torch.ones(len(rows), width, dtype=torch.int32)
    for number, row in enumerate(rows):
        for place, (step, is_teacher, *values) in enumerate(row.tokens, start=row.prompt):
            numbers[:, number, place] = torch.tensor(values, dtype=torch.float64)
            mask[number, place], teachers[number, place], step_index[number, place] = 1, is_teacher, step
    return *numbers, mask, teachers.bool(), step_index


def loss_of(rows: list[Row], width: int = 0, **settings):
    log_probs, old, advantages, mask, teachers, step_index = tensors(rows, width)
    log_probs.requires_grad_()
    units = unit_mask(mask, teachers, step_index)
    of_units = [step_log_probs(each, mask, teachers, step_index) for each in (log_probs, old)]
    settings = {"clip_low": LOW, "clip_high": HIGH, "max_response_length": LONGEST, "sft_loss_coef": SFT} | settings
    loss, metrics = hybrid_policy_loss(*of_units, advantages, units, teachers, **settings)
    loss.backward()
    return loss.item(), [row[action == 1].tolist() for row, action in zip(log_probs.grad, mask, strict=True)], metrics


def reference(rows: list[Row], aggregation: str, teacher_loss: str) -> tuple[float, list[list[float]]]:
    """The loss and its gradient by log p of every response token, from the formulas of the two modules."""
    apart = teacher_loss == "sft"
    counted = [[unit for unit in row.units if not (apart and row.tokens[unit[0]][1])] for row in rows]
    taught = sum(token[1] for row in rows for token in row.tokens)
    with_any = [units for units in counted if units]
    whole = {
        "token_mean": sum(map(len, counted)),
        "sequence_mean": len(with_any),
        "constant": len(rows) * LONGEST,
    }[aggregation]
    total, gradient = 0.0, [[0.0] * len(row.tokens) for row in rows]
    for row, slopes, of_row in zip(rows, gradient, counted, strict=True):
        for unit in row.units:
            tokens = [row.tokens[place] for place in unit]
            is_teacher, advantage = tokens[0][1], tokens[0][4]
            if is_teacher and apart:
                total -= SFT * tokens[0][2] / taught
                slopes[unit[0]] = -SFT / taught
                continue
            weight = 1 / whole / (len(of_row) if aggregation == "sequence_mean" else 1)
            if is_teacher and teacher_loss == "reshape":
                p = math.exp(tokens[0][2])
                loss, slope = -advantage * p / (p + GAMMA), -advantage * GAMMA * p / (p + GAMMA) ** 2
            else:
                ratio = math.exp(sum(new - old for _, _, new, old, _ in tokens))
                clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
                loss = max(-advantage * ratio, -advantage * clipped)
                slope = -advantage * ratio if loss == -advantage * ratio else 0.0
            total += weight * loss
            for place in unit:
                slopes[place] = weight * slope
    return total, gradient


def flat(gradient: list[list[float]]) -> list[float]:
    return [value for row in gradient for value in row]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("teacher_loss", TEACHER_LOSSES)
@pytest.mark.parametrize("seed", range(6))
def test_loss_and_gradient_are_those_of_the_plain_reference(seed: int, teacher_loss: str, aggregation: str) -> None:
    rows = random_rows(seed)
    expected, expected_gradient = reference(rows, aggregation, teacher_loss)
    loss, gradient, metrics = loss_of(rows, aggregation=aggregation, teacher_loss=teacher_loss)
    assert loss == pytest.approx(expected, rel=1e-9)
    assert flat(gradient) == pytest.approx(flat(expected_gradient), rel=1e-9, abs=1e-15)
    steps = [unit for row in rows for unit in row.units if not row.tokens[unit[0]][1]]
    assert metrics["rollout_tokens"].item() == len(steps)
    assert len({len(unit) for unit in steps}) >= 3


def test_the_rows_of_these_tests_hold_clipped_steps_and_steps_that_a_teacher_began() -> None:
    rows = [row for seed in range(6) for row in random_rows(seed)]
    shared = 0
    for row in rows:
        steps = {step: [token[1] for token in row.tokens if token[0] == step] for step, *_ in row.tokens}
        shared += sum(0 < sum(is_teacher) < len(is_teacher) for is_teacher in steps.values())
    clipped = loss_of(rows)[2]["clip_fraction"].item()
    assert shared >= 3 and 0.1 < clipped < 0.6


def test_metrics_are_means_over_steps() -> None:
    """Two steps of two tokens and of one: ratios 1.5 and 0.5, old probabilities 0.08 and 0.6."""
    log = math.log
    rows = [
        Row(2, [(1, False, log(0.4), log(0.2), 1.0), (1, False, log(0.3), log(0.4), 1.0)]),
        Row(1, [(1, False, log(0.3), log(0.6), 1.0), (2, True, log(0.25), log(0.9), 2.0)]),
    ]
    _, _, metrics = loss_of(rows)
    expected = {
        "on_policy_ratio": (1.5 + 0.5) / 2,
        "on_policy_prob": (0.08 + 0.6) / 2,
        "on_policy_loss": (-1.3 - 0.5) / 2,
        "ppo_kl": -(log(1.5) + log(0.5)) / 2,
        "approx_kl": (0.5 - log(1.5) - 0.5 - log(0.5)) / 2,
        "clip_fraction": 0.5,
        "rollout_tokens": 2,
        "off_policy_prob": 0.25,
    }
    assert {name: metrics[name].item() for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("teacher_loss", TEACHER_LOSSES)
def test_steps_of_one_token_are_tokens_to_the_last_bit(teacher_loss: str, aggregation: str) -> None:
    rows = random_rows(0, longest_step=1, with_none=False)
    log_probs, old, advantages, mask, teachers, _ = tensors(rows)
    log_probs = log_probs.float().requires_grad_()
    step_index = mask.cumsum(dim=1) * mask
    found = []
    for by_step in (False, True):
        log_probs.grad, units, of_units = None, mask, [log_probs, old.float()]
        if by_step:
            units = unit_mask(mask, teachers, step_index)
            of_units = [step_log_probs(each, mask, teachers, step_index) for each in of_units]
        loss, metrics = hybrid_policy_loss(
            *of_units, advantages.float(), units, teachers, aggregation=aggregation, teacher_loss=teacher_loss
        )
        loss.backward()
        found.append([loss.detach(), log_probs.grad, *metrics.values()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


def test_the_ratio_is_that_of_the_algorithm_of_steps() -> None:
    """step_ratio has -1 where there is no token, and a column for each step."""
    rows = [row for seed in range(5) for row in random_rows(seed, with_none=False)]
    log_probs, old, _, mask, teachers, step_index = tensors(rows)
    of_rollouts = torch.where((mask == 1) & ~teachers, step_index - 1, -1)
    expected = step_ratio(log_probs, old, of_rollouts)
    ours = [step_log_probs(each, mask, teachers, step_index) for each in (log_probs, old)]
    stands = unit_mask(mask, teachers, step_index) & ~teachers
    ratio = (ours[0] - ours[1]).exp()
    for row in range(len(rows)):
        steps = [int(step_index[row, place]) - 1 for place in stands[row].nonzero().flatten()]
        assert ratio[row][stands[row]].tolist() == pytest.approx([expected[row, step].item() for step in steps])
    assert stands.sum() > 40


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("teacher_loss", TEACHER_LOSSES)
def test_rows_may_be_permuted_padded_and_cut(teacher_loss: str, aggregation: str) -> None:
    rows = random_rows(1)
    units = [row.units for row in rows]
    rollouts = [[unit for unit in row.units if not row.tokens[unit[0]][1]] for row in rows]
    counted = rollouts if teacher_loss == "sft" else units
    totals = {
        "num_tokens": sum(map(len, counted)),
        "num_rows": len(rows) if aggregation == "constant" else sum(map(bool, counted)),
        "num_teacher_tokens": sum(token[1] for row in rows for token in row.tokens),
    }
    expected, expected_gradient = reference(rows, aggregation, teacher_loss)
    for cut in ([[7, 3, 1, 0, 2, 5, 4, 6]], [[0, 1, 2], [3, 4, 5, 6, 7]], [[row] for row in range(8)]):
        total, gradient = 0.0, {}
        for width, pack in enumerate(cut, start=36):
            loss, of_rows, _ = loss_of(
                [rows[row] for row in pack], width, aggregation=aggregation, teacher_loss=teacher_loss, **totals
            )
            total += loss
            gradient |= dict(zip(pack, of_rows, strict=True))
        assert total == pytest.approx(expected, rel=1e-9)
        assert flat([gradient[row] for row in range(8)]) == pytest.approx(flat(expected_gradient), abs=1e-15)


def test_what_stands_for_a_step() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1, 0, 0]])
    teachers = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    steps = torch.tensor([[1, 1, 1, 2, 2, 2, 0, 0], [0, 0, 1, 1, 1, 2, 0, 0]], dtype=torch.int32)
    # The last token of the first row belongs to no step: it is one by itself.
    assert unit_mask(mask, teachers, steps).int().tolist() == [[0, 1, 0, 1, 0, 0, 1, 0], [0, 0, 1, 1, 1, 1, 0, 0]]
    log_probs = torch.tensor([[9.0, 1, 2, 3, 4, 5, 6, torch.nan], [torch.inf, 9, 1, 2, 3, 4, 9, 9]])
    sums = step_log_probs(log_probs, mask, teachers, steps)
    assert sums[0, :7].tolist() == [9, 3, 3, 12, 12, 12, 6] and sums[1, 2:6].tolist() == [1, 2, 3, 4]


def test_sums_of_many_tokens_are_in_float32() -> None:
    """In bfloat16 they would stop growing at -256."""
    count = 600
    summed = step_log_probs(
        torch.full((1, count), -1.0, dtype=torch.bfloat16),
        torch.ones(1, count),
        torch.zeros(1, count, dtype=torch.bool),
        torch.ones(1, count, dtype=torch.int32),
    )
    assert summed.dtype == torch.float32 and summed[0, 0] == -count
