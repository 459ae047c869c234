"""Solutions whose steps of reasoning have labels, from the files that people publish; the shape of each row is told by
its columns.

PRM800K: question, label.steps with rated completions (phase files of openai/prm800k).
Math-Shepherd: input with a tag behind every step, label with + or - in the tags' places.
ProcessBench: problem, steps, label: the index of the first wrong step, -1: there is none.
PRMBench: original_process, modified_process, error_steps (counted from 1).
stepwise supervision: prompt, completions, labels (TRL's; prm800k and others on the Hub; `oger prm label` writes it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.base.errors import RecipeError, shown
from oger_recipe.base.seeds import stable_seed
from oger_recipe.data.sources import made_of_records

Label = float | None  # 1: good, 0: bad, between: a share of rollouts from here that were right; None: no label
TAG = "ки"  # Math-Shepherd's
_SIGNS = {"+": 1.0, "-": 0.0}
_FIRST_STEP = "Step 1:"  # ends Math-Shepherd's question
_RATINGS = {1: 1.0, 0: 1.0, -1: 0.0}  # a neutral step of PRM800K is not wrong


@dataclass(frozen=True)
class Solution:
    """name: of the row; subset and generator: the part of the data and who wrote it, where that is said."""

    name: str
    question: str
    steps: tuple[str, ...]
    labels: tuple[Label, ...]
    subset: str = ""
    generator: str = ""


@dataclass(frozen=True)
class _Row:
    """A record and its place, which errors name."""

    record: Mapping[str, Any]
    where: str

    def wrong(self, field: str, needed: str, found: Any) -> RecipeError:
        return RecipeError(f"{self.where}: '{field}' must be {needed}, found {shown(found)}")

    def text(self, field: str) -> str:
        value = self.record.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(field, "a text", value)
        return value

    def texts(self, field: str) -> list[str]:
        value = self.record.get(field)
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise self.wrong(field, "a list of texts, one per step", value)
        for number, each in enumerate(value):
            if not each.strip():
                raise self.wrong(f"{field}[{number}]", "a step that is not empty", each)
        return value

    def name(self, *fields: str) -> str:
        return next((str(self.record[each]) for each in fields if self.record.get(each) is not None), self.where)

    def optional(self, *fields: str) -> str:
        return next((str(self.record[each]) for each in fields if self.record.get(each)), "")


def read_labelled_steps(sources: Sequence[str], split: str = "train") -> tuple[list[Solution], dict[str, int]]:
    """Read .json, .jsonl and .parquet files, saved folders or datasets of the Hub.

    Return the solutions, and how many rows of each shape there were. Raises RecipeError with the file, the line and
    the field of what is wrong.
    """
    solutions: list[Solution] = []
    shapes: Counter[str] = Counter()
    for source in sources:
        made = made_of_records(source, split, _solutions, "no labelled steps in this file")
        shapes.update(shape for shape, _ in made)
        solutions += [each for _, of_row in made for each in of_row]
    return solutions, dict(shapes)


def stepwise_record(solution: Solution) -> dict[str, Any]:
    """Make a line of stepwise supervision, which `read_labelled_steps` reads as the same solution."""
    said = {"id": solution.name, "subset": solution.subset, "generator": solution.generator}
    return {
        "prompt": solution.question,
        "completions": list(solution.steps),
        "labels": list(solution.labels),
    } | {name: text for name, text in said.items() if text}


def is_apart(solution: Solution, share: float, seed: int, purpose: str) -> bool:
    """Say whether the solution is in the share of problems that is set apart. It follows from the problem's text: all
    solutions of a problem are on one side, whatever data stand beside it."""
    return stable_seed(purpose, seed, solution.question) / 2**63 < share


def _solutions(record: Any, where: str) -> tuple[str, list[Solution]]:
    if not isinstance(record, dict):
        raise RecipeError(f"{where}: a JSON object is needed, found {type(record).__name__}")
    shape = next((name for name, (columns, _) in _SHAPES.items() if columns <= record.keys()), None)
    if shape is None:
        known = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, (columns, _) in _SHAPES.items())
        raise RecipeError(f"{where}: the columns match no known shape ({known}); they are {', '.join(record)}")
    return shape, list(_SHAPES[shape][1](_Row(record, where)))


def _stepwise(row: _Row) -> Iterator[Solution]:
    steps, labels = row.texts("completions"), row.record["labels"]
    if not isinstance(labels, list) or len(labels) != len(steps):
        raise row.wrong("labels", f"a list with a label for each of the {len(steps)} completions", labels)
    for number, label in enumerate(labels):
        if label is not None and (not isinstance(label, bool | int | float) or not 0 <= label <= 1):
            raise row.wrong(f"labels[{number}]", "true, false, a number from 0 to 1, or null", label)
    made = tuple(None if label is None else float(label) for label in labels)
    yield Solution(
        row.name("id", "uid", "idx"), row.text("prompt"), tuple(steps), made,
        row.optional("subset", "task"), row.optional("generator"),
    )  # fmt: skip


def _process_bench(row: _Row) -> Iterator[Solution]:
    steps, label = row.texts("steps"), row.record["label"]
    if not _is_whole(label) or not -1 <= label < len(steps):
        raise row.wrong("label", f"the index of the first wrong step, 0 to {len(steps) - 1}, or -1", label)
    labels: list[Label] = [1.0] * len(steps)
    if label >= 0:
        labels[label:] = [0.0] + [None] * (len(steps) - label - 1)
    name = row.name("id")
    subset = row.optional("subset") or (name.rpartition("-")[0] if "id" in row.record else "")
    yield Solution(name, row.text("problem"), tuple(steps), tuple(labels), subset, row.optional("generator"))


def _prm_bench(row: _Row) -> Iterator[Solution]:
    """Yield the original solution, which is right, and the modified one, which is wrong where error_steps says."""
    wrong, name, kind = row.record["error_steps"], row.name("idx", "id"), row.optional("classification")
    original, modified = row.texts("original_process"), row.texts("modified_process")
    if not isinstance(wrong, list) or not all(_is_whole(each) and 1 <= each <= len(modified) for each in wrong):
        raise row.wrong(
            "error_steps", f"a list of numbers from 1 to {len(modified)}, steps of modified_process", wrong
        )
    question = row.text("original_question")
    labels = tuple(0.0 if number in wrong else 1.0 for number in range(1, len(modified) + 1))
    yield Solution(f"{name}/original", question, tuple(original), (1.0,) * len(original), kind)
    yield Solution(f"{name}/modified", row.text("modified_question"), tuple(modified), labels, kind)


def _math_shepherd(row: _Row) -> Iterator[Solution]:
    text, labelled = row.text("input"), row.text("label")
    parts, signs, at = text.split(TAG), [], 0
    if len(parts) < 2 or parts.pop().strip():
        raise row.wrong("input", f"a question and steps that end with {TAG!r} each", text[-60:])
    for number, part in enumerate(parts, start=1):
        at += len(part) + 1
        if labelled[at - 1 - len(part) : at - 1] != part or labelled[at - 1 : at] not in _SIGNS:
            raise row.wrong("label", f"the input with + or - in place of its tags; step {number} differs",
                            labelled[at - 1 - len(part) : at])  # fmt: skip
        signs.append(_SIGNS[labelled[at - 1]])
    question, _, first = parts[0].partition(_FIRST_STEP)
    if not question.strip() or not first.strip():
        raise row.wrong("input", f"a question, and {_FIRST_STEP!r} behind it", parts[0])
    steps = [_FIRST_STEP + first, *parts[1:]]
    yield Solution(
        row.name("id", "uid"), question.strip(), tuple(each.strip() for each in steps), tuple(signs),
        row.optional("task"),
    )  # fmt: skip


def _prm800k(row: _Row) -> Iterator[Solution]:
    """Yield the chosen path as one solution. Every other completion of a step is a solution that ends there; the steps
    before it have no label in it, as they have theirs already."""
    question, label = row.record["question"], row.record["label"]
    problem = question.get("problem") if isinstance(question, dict) else None
    if not isinstance(problem, str) or not problem.strip():
        raise row.wrong("question.problem", "a text", problem)
    steps = label.get("steps") if isinstance(label, dict) else None
    if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
        raise row.wrong("label.steps", "a list of steps with their completions", steps)
    way: list[tuple[str, Label]] = []
    others: list[list[tuple[str, Label]]] = []
    for number, step in enumerate(steps):
        completions, chosen, human = _completions(row, f"label.steps[{number}]", step)
        is_end = chosen is None and human is None
        if is_end:  # an error was found, or no step follows
            chosen = 0
        unlabelled: list[tuple[str, Label]] = [(text, None) for text, _ in way]
        others += [[*unlabelled, each] for place, each in enumerate(completions) if place != chosen]
        way += [(human, 1.0)] if human is not None and chosen is None else completions[chosen : (chosen or 0) + 1]
        if is_end:
            break
    name = row.name("id", "timestamp")
    for number, solution in enumerate(
        [each for each in (way, *others) if any(label is not None for _, label in each)]
    ):
        texts, labels = zip(*solution, strict=True)
        yield Solution(f"{name}/{number}", problem, texts, labels)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _completions(
    row: _Row, field: str, step: Mapping[str, Any]
) -> tuple[list[tuple[str, Label]], int | None, str | None]:
    """Return the completions of a step with their labels, the index of the chosen one, and that of a person."""
    made: list[tuple[str, Label]] = []
    for place, each in enumerate(step.get("completions") or ()):
        if not isinstance(each, dict) or not isinstance(each.get("text"), str):
            raise row.wrong(f"{field}.completions[{place}]", "a completion with its text", each)
        rating = each.get("rating")
        if rating is not None and (not _is_whole(rating) or rating not in _RATINGS):
            raise row.wrong(f"{field}.completions[{place}].rating", "-1, 0, 1 or null", rating)
        made.append((each["text"], None if rating is None else _RATINGS[rating]))
    chosen, human = step.get("chosen_completion"), step.get("human_completion")
    if chosen is not None and (not _is_whole(chosen) or not 0 <= chosen < len(made)):
        raise row.wrong(f"{field}.chosen_completion", f"the index of one of {len(made)} completions, or null", chosen)
    if human is not None and (not isinstance(human, dict) or not isinstance(human.get("text"), str)):
        raise row.wrong(f"{field}.human_completion", "a completion with its text, or null", human)
    return made, chosen, None if human is None else human["text"]


_SHAPES: dict[str, tuple[set[str], Callable[[_Row], Iterable[Solution]]]] = {
    "PRMBench": ({"original_process", "modified_process", "error_steps"}, _prm_bench),
    "ProcessBench": ({"problem", "steps", "label"}, _process_bench),
    "stepwise supervision": ({"prompt", "completions", "labels"}, _stepwise),
    "Math-Shepherd": ({"input", "label"}, _math_shepherd),
    "PRM800K": ({"question", "label"}, _prm800k),
}
