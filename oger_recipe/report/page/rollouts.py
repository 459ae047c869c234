"""Reads the rollouts of a run from samples/step_*.jsonl, as many as are needed, and never all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from oger_recipe.base.files import parse_record
from oger_recipe.report.groups import sampled_steps, samples_path

Row = dict[str, Any]

READ_BYTES = 400_000_000  # of a run's samples: parsed in 2 s, and forty times what a page of them shows
LEAST_STEPS = 100  # of a long run that are looked into, each for its share of READ_BYTES


@dataclass(frozen=True)
class Line:
    """A line of a file of samples or answers: where it lies, and what it says."""

    start: int
    size: int
    row: Row


@dataclass(frozen=True)
class Reading:
    """Which steps of a run are read, and how much of each: ``share`` bytes of its file.

    written, files: the bytes and the number of all files of samples.
    """

    folder: Path
    steps: tuple[int, ...]
    share: int
    written: int
    files: int

    @classmethod
    def of(cls, run_dir: Path) -> "Reading":
        """Plan to read at most READ_BYTES: all of a run, or evenly spaced steps with the first and the last."""
        steps = [step for step in sampled_steps(run_dir) if samples_path(run_dir, step).is_file()]
        sizes = [samples_path(run_dir, step).stat().st_size for step in steps]
        written = sum(sizes)
        if written <= READ_BYTES:
            return cls(run_dir, tuple(steps), READ_BYTES, written, len(steps))
        count = min(max(LEAST_STEPS, READ_BYTES * len(steps) // written), len(steps))
        chosen = sorted({round(place * (len(steps) - 1) / max(count - 1, 1)) for place in range(count)})
        share = READ_BYTES // len(chosen)
        return cls(run_dir, tuple(steps[place] for place in chosen), share, written, len(steps))

    def groups(self, step: int) -> Iterator[list[Line]]:
        """Yield the lines of a step's groups, whole ones, as far as its share goes."""
        lines = read_lines(samples_path(self.folder, step))
        for _, of_group in groupby(lines, key=lambda line: line.row.get("uid")):
            group = list(of_group)
            yield group
            if group[-1].start + group[-1].size >= self.share:
                return


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file of JSON but those that a kill or a full disk tore; none where there is no file."""
    if not path.is_file():
        return
    start = 0
    with path.open("rb") as file:
        for text in file:
            row = parse_record(text)
            if row is not None:
                yield Line(start, len(text), row)
            start += len(text)


def read_again(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[list[Row]]:
    """Yield the rows of each span, start and size, of a file."""
    with path.open("rb") as file:
        for start, size in spans:
            file.seek(start)
            rows = map(parse_record, file.read(size).splitlines(keepends=True))
            yield [row for row in rows if row is not None]


def kinds_of(row: Row) -> set[str]:
    """Name the kinds of row that a row is."""
    kinds = {"teacher"} if "source" in row else {"right" if (row.get("score") or 0) > 0 else "wrong"}
    kinds |= {kind for kind in ("truncated", "replaced") if row.get(kind)}
    return kinds | ({"failed"} if row.get("graded") is False or row.get("errors") else set())
