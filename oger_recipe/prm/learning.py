"""What a PRM learns from: solutions as rows of tokens, batches with labels at the ends of steps, and the loss there;
and the probabilities it gives.

Scorer token_head: a head says bad and good at each end. Scorer step_tag: the language model says the token for a bad
or a good step at each tag (Math-Shepherd), so the loss is that of the next token, over the whole vocabulary.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oger_recipe.data.labelled_steps import Label, Solution
from oger_recipe.models.in_process import padded
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.step_models import step_logits, step_reply
from oger_recipe.models.step_text import StepWriter, verdict_tokens
from oger_recipe.rewards.place import Reply, StepPrompt

NO_LABEL = -100.0  # transformers' Trainer counts all other labels


@dataclass(frozen=True)
class Row:
    """A solution, or its first steps; labels: those of the prompt's ends, in order."""

    solution: Solution
    prompt: StepPrompt
    labels: tuple[Label, ...]


def make_rows(solutions: Sequence[Solution], writer: StepWriter, max_length: int) -> tuple[list[Row], dict[str, int]]:
    """Write solutions as the format wants them. Cut one that is longer than max_length tokens behind its last step
    that fits; leave out one that has no labelled step then.

    Return the rows, and counts: rows, steps, labelled and bad ones; solutions that were cut, and steps_cut; solutions
    too_long for any label, and unwritable ones.
    """
    rows: list[Row] = []
    counts: Counter[str] = Counter(
        dict.fromkeys(("rows", "steps", "labelled", "bad", "cut", "steps_cut", "too_long", "unwritable"), 0)
    )
    for solution in solutions:
        prompt = _fitting(solution, writer, max_length)
        if isinstance(prompt, Reply):
            counts["unwritable"] += 1
            continue
        labels = solution.labels[: len(prompt.ends)]
        lost = len(solution.steps) - len(prompt.ends)
        counts["cut"] += lost > 0
        counts["steps_cut"] += lost
        if all(label is None for label in labels):
            counts["too_long"] += 1
            continue
        rows.append(Row(solution, prompt, labels))
        counts.update(
            rows=1,
            steps=len(labels),
            labelled=sum(label is not None for label in labels),
            bad=sum(label == 0 for label in labels),
        )
    return rows, dict(counts)


def _fitting(solution: Solution, writer: StepWriter, max_length: int) -> StepPrompt | Reply:
    """Write as many first steps as fit: none, where not even one does."""
    count = len(solution.steps)
    while count:
        prompt = writer.write(solution.question, solution.steps[:count])
        if isinstance(prompt, Reply) or len(prompt.tokens) <= max_length:
            return prompt
        # What stands behind the last end is there whatever the number of steps.
        behind = len(prompt.tokens) - 1 - prompt.ends[-1]
        count = min(count - 1, sum(end + behind < max_length for end in prompt.ends))
    return StepPrompt((), ())


@dataclass(frozen=True)
class Collator:
    """Batches of rows, padded on the right: tokens [rows, T] and labels [rows, 1 + places], the first column
    unlabelled. A place is a token, or with ``only_ends`` one of the ends of these rows: the model then makes logits
    there alone (a vocabulary for every token is large)."""

    only_ends: bool

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = dict(padded([row.prompt.tokens for row in rows], 0, left=False))
        places = torch.arange(batch["input_ids"].shape[1])
        if self.only_ends:
            places = torch.tensor(sorted({end for row in rows for end in row.prompt.ends}))
            batch["logits_to_keep"] = places
        # Trainer counts the labels that are not NO_LABEL, and leaves the first column out where the model's own loss
        # would compare a token's logits with the next token.
        labels = torch.full((len(rows), 1 + len(places)), NO_LABEL)
        for number, row in enumerate(rows):
            for end, label in zip(row.prompt.ends, row.labels, strict=True):
                if label is not None:
                    labels[number, 1 + int(torch.searchsorted(places, end))] = label
        return batch | {"labels": labels}


def collator_of(keys: ProcessKeys, model: Any) -> Collator:
    is_writer = keys.written.scorer == "step_tag"
    return Collator(is_writer and "logits_to_keep" in inspect.signature(model.forward).parameters)


def verdicts(keys: ProcessKeys, tokenizer: Any) -> tuple[int, int]:
    """Return which of the model's logits say bad and good: tokens, or the head's labels."""
    if keys.written.scorer == "step_tag":
        return verdict_tokens(keys, tokenizer)
    good = keys.written.good_label
    assert good is not None
    return 1 - good, good


def step_loss(logits: Tensor, labels: Tensor, bad: int, good: int) -> Tensor:
    """Return the cross-entropy of each labelled place, over all that could be said there: [labelled places].

    logits [rows, places, verdicts], labels [rows, places], NO_LABEL where there is none; a label between 0 and 1 is
    the probability of good.
    """
    there = labels != NO_LABEL
    said, label = logits[there].float().log_softmax(dim=-1), labels[there].float()
    return -(label * said[:, good] + (1 - label) * said[:, bad])


def loss_of(bad: int, good: int) -> Callable[..., Tensor]:
    """Make the loss for Trainer: mean over all labelled steps of an optimizer step, in however many parts."""

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        losses = step_loss(outputs.logits, labels[:, 1:], bad, good)
        return losses.sum() / (len(losses) if num_items_in_batch is None else num_items_in_batch)

    return loss


def probabilities(
    keys: ProcessKeys, tokenizer: Any, model: Any, rows: Sequence[Row], batch_size: int
) -> list[tuple[float, ...]]:
    """Return the probability that each step of each row is good, as the process source reads it."""
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number].prompt.tokens))
    found: dict[int, tuple[float, ...]] = {}
    model.eval()
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        prompts = [rows[number].prompt for number in numbers]
        batch = padded([each.tokens for each in prompts], 0, left=False).to(model.device)
        logits = step_logits(keys, tokenizer, model, batch, prompts)
        found |= {number: step_reply(keys, each).steps for number, each in zip(numbers, logits, strict=True)}
    return [found[number] for number in range(len(rows))]
