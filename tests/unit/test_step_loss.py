"""The loss of labelled steps, and the batches it is made of, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from oger_recipe.data.labelled_steps import Solution, is_apart
from oger_recipe.prm.learning import NO_LABEL, Collator, Row, loss_of, step_loss
from oger_recipe.rewards.place import StepPrompt


def row(tokens: int, ends: tuple[int, ...], labels: tuple[float | None, ...]) -> Row:
    return Row(Solution("n", "q", (), ()), StepPrompt(tuple(range(1, tokens + 1)), ends), labels)


def test_a_labelled_place_costs_what_its_verdict_was_unlikely() -> None:
    """Probabilities 1/10, 2/10, 7/10 of tokens 0, 1, 2; bad is 2 and good is 0."""
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(1, 4, 3)
    labels = torch.tensor([[1.0, NO_LABEL, 0.0, 0.25]])
    found = step_loss(logits, labels, bad=2, good=0)
    wanted = [-math.log(0.1), -math.log(0.7), -0.25 * math.log(0.1) - 0.75 * math.log(0.7)]
    assert found.tolist() == pytest.approx(wanted)


def test_the_loss_is_the_mean_over_the_steps_of_all_parts_of_a_batch() -> None:
    class Outputs:
        logits = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]]).log()

    labels = torch.tensor([[NO_LABEL, 1.0, 1.0]])  # the first column is no place
    whole = (-math.log(0.5) - math.log(0.25)) / 2
    assert loss_of(0, 1)(Outputs, labels).item() == pytest.approx(whole)
    assert loss_of(0, 1)(Outputs, labels, num_items_in_batch=8).item() == pytest.approx(2 * whole / 8)


def test_a_batch_has_labels_at_the_ends_alone() -> None:
    rows = [row(4, (1, 3), (1.0, 0.0)), row(2, (0, 1), (None, 1.0))]
    batch = Collator(only_ends=False)(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4], [1, 2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 1, -100, 0], [-100, -100, 1, -100, -100]]


def test_a_batch_for_a_vocabulary_has_the_ends_of_its_rows_alone() -> None:
    rows = [row(4, (1, 3), (1.0, 0.0)), row(2, (0, 1), (None, 1.0))]
    batch = Collator(only_ends=True)(rows)
    assert batch["logits_to_keep"].tolist() == [0, 1, 3]
    assert batch["labels"].tolist() == [[-100, -100, 1, 0], [-100, -100, 1, -100]]


def test_all_solutions_of_a_problem_are_on_one_side() -> None:
    many = [Solution(str(number), f"q{number % 200}", (), ()) for number in range(400)]
    apart = [is_apart(each, 0.3, 1, "held out") for each in many]
    assert apart[:200] == apart[200:] and 40 <= sum(apart[:200]) <= 80
    assert apart != [is_apart(each, 0.3, 2, "held out") for each in many]
    assert not any(is_apart(each, 0.0, 1, "held out") for each in many)
