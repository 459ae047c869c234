"""The groups of a training step, by its samples file: a prompt, its rollouts, and the teachers that entered."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from oger_recipe.base.files import parse_record, read_jsonl, to_json

Row = dict[str, Any]
_OF_PROMPT = ("uid", "prompt", "task", "answer")


@dataclass(frozen=True)
class SampledGroup:
    """``rows``: lines of samples/step_*.jsonl without what they share. A rollout that made room for a teacher has
    ``replaced``, and the teacher's row follows it."""

    step: int
    uid: str
    prompt: str
    task: str
    answer: str
    rows: tuple[Row, ...]


def sampled_steps(folder: Path) -> list[int]:
    """List the steps whose samples a run has written."""
    numbers = (path.stem.removeprefix("step_") for path in (folder / "samples").glob("step_*.jsonl"))
    return sorted(int(number) for number in numbers if number.isdigit())


def read_groups(folder: Path, step: int) -> list[SampledGroup]:
    """Read the groups of one step, in their order; none where the step's samples were not written."""
    lines = read_jsonl(samples_path(folder, step))
    return [_group(step, list(of_uid)) for _, of_uid in groupby(lines, key=lambda line: line["uid"])]


def first_row(folder: Path, step: int) -> Row | None:
    """Read the first line of a step's samples alone; None where it is not whole."""
    with suppress(OSError), samples_path(folder, step).open("rb") as file:
        return parse_record(file.readline())
    return None


def samples_path(folder: Path, step: int) -> Path:
    return folder / "samples" / f"step_{step:05d}.jsonl"


def _group(step: int, lines: list[Row]) -> SampledGroup:
    of_prompt, rows = parted(lines)
    return SampledGroup(step=step, rows=tuple(rows), **of_prompt)


def parted(lines: Sequence[Row]) -> tuple[Row, list[Row]]:
    """Return what the lines of a group share, as texts, and the lines without it."""
    of_prompt = {name: _text(lines[0].get(name)) for name in _OF_PROMPT}
    return of_prompt, [{name: value for name, value in line.items() if name not in _OF_PROMPT} for line in lines]


def _text(value: Any) -> Any:
    """Write messages and numbers, which other writers than a run may leave there, as text."""
    return value if value is None or isinstance(value, str) else to_json(value)
