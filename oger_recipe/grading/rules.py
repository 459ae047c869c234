"""The rules by which responses are graded: options, own verifiers, what text is read, what counts as repetition."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from oger_recipe.grading.verifiers import resolved

PLACES = ("boxed", "answer_tag")  # where a prompt can ask for the answer: \boxed{}, or <answer></answer>
EXTRACTIONS = ("boxed", "answer_tag", "last_number", "anywhere")  # where a math answer can be looked for
GSM8K_FORMATS = ("last_number", "hashes", "boxed", "answer_tag")
MATH_EXTRACT = ("boxed", "answer_tag", "anywhere")  # where a math answer is looked for where no prompt says
TIMES_ASKED = "times_asked"  # column of an evaluation's row: how often its benchmark asks the problem


@dataclass(frozen=True)
class MathRule:
    """Where the answer to a math problem has to be, and what is earned without a right one.

    needs_think: after ``</think>``; boxed_only: inside ``\\boxed{}``; rewards of a wrong answer and of a response that
    breaks the rule.
    """

    needs_think: bool
    boxed_only: bool
    wrong: float = 0.0
    unformatted: float = 0.0


MATH_RULES: dict[str, MathRule] = {
    "deepscaler": MathRule(True, True),  # LUFFY's reward version 0
    "deepscaler_format": MathRule(True, True, wrong=-0.5, unformatted=-1.0),  # 1
    "deepscaler_no_think": MathRule(False, True),  # 2
    "math_verify_think": MathRule(True, False),  # 3
    "math_verify": MathRule(False, False),  # 4
}


@dataclass(frozen=True)
class GradingRules:
    """options: keyword arguments for the verifiers by task; own: the user's tasks by name, as import paths; place:
    where the prompts ask for the answer (one of PLACES, None: they do not say); cut: stop strings that are not part of
    a response; strip: white space around it is not read; row_travels: sources of the reward read the question and the
    row's other columns."""

    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    place: str | None = None
    cut: tuple[str, ...] = ()
    strip: bool = False
    row_travels: bool = False

    def call(self, row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return a row's task as the pool resolves it, and its options. A row's own ``answer_in`` goes before `place`.
        The user's verifiers are also offered the prompt and the row's other columns."""
        task = self.own.get(row["task"], row["task"])
        given = self.options.get(row["task"], {})
        spec = resolved(task)
        places = {} if spec is None or given.get("strict_oat") else spec.places  # OAT's scoring has its own
        options = dict(places.get(row.get("answer_in") or self.place or "", {})) | given
        if ":" in task:
            other = {name: value for name, value in row.items() if name not in _KNOWN and _is_json(value)}
            options = {"prompt": row.get("prompt"), "row": other} | options
        return task, options

    def label(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Make what travels with a prompt: uid, answer, task, what the reward function and the sources of the reward
        need beside them, and how often a benchmark asks its problem where that is more than once."""
        task, options = self.call(row)
        label = {"uid": row["uid"], "answer": row["answer"], "task": task}
        extras = {"options": options, "cut": list(self.cut), "strip": self.strip}
        extras |= {TIMES_ASKED: row[TIMES_ASKED]} if row.get(TIMES_ASKED, 1) > 1 else {}
        extras |= {"question": _as_json(row["prompt"]), "row": other_columns(row)} if self.row_travels else {}
        return label | {name: value for name, value in extras.items() if value}

    def answer(self, row: Mapping[str, Any], response: str) -> tuple[str, str, str, dict[str, Any]]:
        """Return what the pool grades of a response to the row's prompt."""
        task, options = self.call(row)
        return task, graded_text(response, self.cut, self.strip), row["answer"], options

    def tasks(self, rows: Iterable[Mapping[str, Any]]) -> set[str]:
        """Return the tasks of rows as the pool resolves them."""
        return {self.own.get(row["task"], row["task"]) for row in rows}


def labelled_answer(label: Mapping[str, Any], response: str) -> tuple[str, str, str, dict[str, Any]]:
    """Return what the pool grades of a response to a prompt with this label (GradingRules.label)."""
    text = graded_text(response, label.get("cut", ()), label.get("strip", False))
    return label["task"], text, label["answer"], label.get("options") or {}


_KNOWN = ("uid", "prompt", "answer", "task", "teachers", "answer_in", TIMES_ASKED)


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, str | bool | int | float)


def question_of(prompt: Any) -> str:
    """Return the user's last turn of a prompt, a text or chat messages, as the data has it."""
    if isinstance(prompt, str):
        return prompt
    turns = [turn["content"] for turn in prompt if turn["role"] == "user"]
    return str(turns[-1]) if turns else ""


def travelled(label: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a Group takes from its label (GradingRules.label): question, messages and row."""
    prompt = label.get("question", "")
    return {
        "question": question_of(prompt),
        "messages": prompt if isinstance(prompt, list) else [],
        "row": label.get("row", {}),
    }


def other_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that are not the recipe's own as JSON documents; leave out what cannot be one."""
    columns = {}
    for name, value in row.items():
        if name not in _KNOWN:
            try:
                columns[name] = _as_json(value)
            except TypeError:  # an image, say
                continue
    return columns


def _as_json(value: Any) -> Any:
    """Make a JSON document of what parquet files hold: bytes are texts, or else base64, dates are ISO 8601, a number
    that is not finite is null. Raises TypeError for other objects."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    for method in ("tolist", "isoformat"):  # of NumPy's arrays and numbers; of dates and times
        if hasattr(value, method):
            return _as_json(getattr(value, method)())
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else None
    raise TypeError(f"{type(value).__name__} is not JSON")


def graded_text(response: str, cut: Sequence[str] = (), strip: bool = False) -> str:
    """Cut a response at the first of the stop strings in ``cut``; ``strip`` drops white space around it."""
    ends = [position for stop in cut if (position := response.find(stop)) >= 0]
    text = response[: min(ends)] if ends else response
    return text.strip() if strip else text


WINDOW = 1000  # bytes of UTF-8
LEAST_RATIO = 0.1  # compressed to plain size; reasoning has 0.25 and more, a loop of a line of text about 0.05


def is_repetitive(text: str) -> bool:
    """Say whether some stretch of WINDOW bytes compresses below LEAST_RATIO of its size.

    Stretches overlap by half, so that a loop of 1.5 windows is always seen. Shorter texts never count.
    """
    data = text.encode()
    starts = range(0, max(len(data) - WINDOW, -1) + 1, WINDOW // 2)
    return any(len(zlib.compress(data[start : start + WINDOW])) < LEAST_RATIO * WINDOW for start in starts)
