"""Labelled solutions as a PRM reads them: tokens, and the label of each place where it says a score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from oger_recipe.data.labelled_steps import Label, Solution
from oger_recipe.models.step_text import StepWriter
from oger_recipe.rewards.place import Reply, StepPrompt


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
