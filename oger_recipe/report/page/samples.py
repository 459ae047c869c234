"""The samples of a run that the page shows: whole groups of rollouts, and evaluated problems before and after."""

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from oger_recipe.base.files import to_json
from oger_recipe.report.groups import parted, samples_path
from oger_recipe.report.page.distributions import Numbers
from oger_recipe.report.page.payload import rounded
from oger_recipe.report.page.problems import find_problems, read_problems
from oger_recipe.report.page.rollouts import Line, Reading, kinds_of, read_again
from oger_recipe.report.page.sampling import Candidate, choose

Record = dict[str, Any]

TEXT_LIMIT = 20_000  # characters of one text: 5,000 tokens, ten screens
_OF_PROBLEMS = 4  # the part of the room for samples that evaluated problems may take
_TRIES = 6  # to fill the room; how far texts can be packed shows only when they are
_WELL_FILLED = 0.85


@dataclass(frozen=True)
class Samples:
    """packed: the block of the page; about: what of the run is in it; numbers: of all rows that were read."""

    packed: bytes
    about: Record
    numbers: Numbers


def samples_of_run(
    run_dir: Path, evaluated: Sequence[int], room: int, read: Callable[[], None] = lambda: None
) -> Samples:
    """Choose what is shown of the run's samples, and pack it into ``room`` bytes.

    evaluated: the steps of the first and the last evaluation; read: is called after every file of samples.
    """
    reading, numbers = Reading.of(run_dir), Numbers()
    groups: list[Candidate] = []
    for step in reading.steps:
        for lines in reading.groups(step):
            groups.append(_candidate(step, lines))
            for line in lines:
                numbers.take(step, line.row)
        read()
    problems = find_problems(run_dir, evaluated)
    packed, shown, answers = _fitted(groups, problems, room, lambda *chosen: _block(run_dir, evaluated, *chosen))
    about = _about(reading, groups, shown)
    if len(answers) < len(problems):
        about["text"] += (
            f" Of {len(problems):,} evaluated problems {len(answers):,} are shown, with all their answers."
        )
    return Samples(packed, about, numbers)


def _candidate(step: int, lines: Sequence[Line]) -> Candidate:
    kinds = frozenset().union(*(kinds_of(line.row) for line in lines))
    rollouts = sum("source" not in line.row for line in lines)
    size = sum(line.size for line in lines)
    return Candidate(step, str(lines[0].row.get("uid")), size, kinds, (lines[0].start, size, rollouts))


def _fitted(
    groups: Sequence[Candidate],
    problems: Sequence[Candidate],
    room: int,
    block: Callable[[Sequence[Candidate], Sequence[Candidate]], Record],
) -> tuple[bytes, list[Candidate], list[Candidate]]:
    """Choose groups and problems whose block fills the room. Return it packed, with its groups and its problems."""
    most = min(8 * room, _size(groups) + _size(problems))
    best = pack(block([], [])), list[Candidate](), list[Candidate]()
    for _ in range(_TRIES):
        answers = choose(problems, max(most // _OF_PROBLEMS, most - _size(groups)))
        shown = choose(groups, most - _size(answers))
        packed = pack(block(shown, answers))
        if len(best[0]) < len(packed) <= room:
            best = packed, shown, answers
            if len(packed) > _WELL_FILLED * room or len(shown) + len(answers) == len(groups) + len(problems):
                break
        most = int(0.95 * most * room / len(packed))
    return best


def _size(candidates: Sequence[Candidate]) -> int:
    return sum(each.size for each in candidates)


def _block(
    run_dir: Path, evaluated: Sequence[int], groups: Sequence[Candidate], problems: Sequence[Candidate]
) -> Record:
    document = {"groups": list(_groups(run_dir, groups)), "evaluations": read_problems(run_dir, evaluated, problems)}
    return _readable(document)


def _groups(run_dir: Path, groups: Sequence[Candidate]) -> Iterator[Record]:
    for step, of_step in groupby(groups, key=lambda each: each.step):
        spans = [group.place[:2] for group in of_step]
        for rows in filter(None, read_again(samples_path(run_dir, step), spans)):  # a run may have begun a step anew
            of_prompt, kept = parted(rows)
            yield {"step": step} | of_prompt | {"rows": kept}


def _readable(value: Any) -> Any:
    """Round numbers and shorten texts; a row whose ``text`` is shortened says how much was ``cut``."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if not isinstance(value, dict):
        return rounded(value)
    over = len(value["text"]) - TEXT_LIMIT if isinstance(value.get("text"), str) else 0
    return {key: _readable(each) for key, each in value.items()} | ({"cut": over} if over > 0 else {})


def shortened(text: str) -> str:
    """Return a text of at most TEXT_LIMIT characters and a mark: its beginning, and half as much of its end."""
    if len(text) <= TEXT_LIMIT:
        return text
    end = TEXT_LIMIT // 3
    return (
        f"{text[: TEXT_LIMIT - end]}\n[... {len(text) - TEXT_LIMIT:,} characters are left out here ...]\n{text[-end:]}"
    )


def pack(document: Any) -> bytes:
    """Compress a document; the same one gives the same bytes."""
    return gzip.compress(to_json(document).encode("utf-8", "replace"), mtime=0)


def _about(reading: Reading, groups: Sequence[Candidate], shown: Sequence[Candidate]) -> Record:
    """Say what of a run's rollouts is shown, and how it was chosen. What was not read is counted by its bytes."""
    seen = sum(each.place[2] for each in groups)
    read = sum(each.size for each in groups)
    is_whole = len(reading.steps) == reading.files and read == reading.written
    written = seen if is_whole else round(seen * reading.written / max(read, 1))
    rollouts, steps = sum(each.place[2] for each in shown), sorted({each.step for each in shown})
    facts = {"rollouts_shown": rollouts, "rollouts_written": written, "steps": steps}
    if not groups:
        return facts | {"text": "The run has written no samples."}
    if rollouts == written:
        return facts | {"text": f"All {written:,} rollouts of {reading.files:,} step{'s' * (reading.files > 1)}."}
    about = "" if is_whole else "about "
    share = f"{rollouts:,} of {about}{written:,} rollouts ({rollouts / written:.2%})"
    where = f"{len(steps):,} of the {reading.files:,} steps with samples"
    return facts | {
        "text": f"{share}, in whole groups from {where}: evenly over the steps and over right, wrong, truncated, "
        "replaced, failed and teachers' rows, of which rare ones are shown more often than they occur. Some prompts "
        "are shown at every step that was read and had them."
    }
