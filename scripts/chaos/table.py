"""Trials as a table: one row a victim, one column a phase, and every miss."""

from collections.abc import Sequence
from typing import Any

from plan import PHASES, VICTIMS

Record = dict[str, Any]

_HEAD = """# What a run survives

This page is for whoever leaves a run alone over night. `bash scripts/chaos.sh` starts a small run on a CPU again and
again, and strikes it each time: it kills one of its processes, or sends signals to the command. Then it checks four
things.

1. The attempt ends within two minutes, or the run continues.
2. The terminal says in one sentence who died, at which step, and where its log is. It shows no traceback.
3. Nothing remains: no process, port, shared memory, semaphore, temporary folder or lock.
4. The next attempt resumes exactly: metrics, samples, evaluations and weights equal those of a run that was never
   struck, to the last bit.

`bash scripts/chaos.sh --table docs/survival.md` wrote this page.
"""


def merged(records: Sequence[Record]) -> list[Record]:
    """Join the lines of each trial: how it ended, and how the run resumed after it."""
    trials: dict[int, Record] = {}
    for record in records:
        trials[record["trial"]] = trials.get(record["trial"], {}) | record
    return [trials[number] for number in sorted(trials) if "end" in trials[number]]


def misses(record: Record) -> list[str]:
    found = [record["end"]] if record["end"].startswith(("hung", "ended before")) else []
    found += record["faults"]
    found += [f"left: {each}" for each in record.get("left", [])]
    return found + [f"resumed: {each}" for each in record.get("resumed") or []]


def is_no_chance(record: Record) -> bool:
    """Say whether a trial left something behind, or its run was not resumed exactly: no moment excuses that."""
    return bool(record.get("left") or record.get("resumed") or (record.get("differs") and not record.get("told")))


def line(record: Record) -> str:
    wrong = misses(record)
    after = f" after {record['seconds']} s" if "seconds" in record else ""
    what = (
        f"trial {record['trial']:>3}: {record['victim']}, {record.get('hit', record['phase'])}: {record['end']}{after}"
    )
    what += ", another run from here on, as it said" if _differed_as_said(record) else ""
    return "\n".join([what, *(f"    MISS {each}" for each in wrong)])


def summary(trials: Sequence[Record]) -> str:
    wrong = [each for each in trials if misses(each)]
    told = sum(each.get("resumed") is not None for each in trials)
    others = sum(map(_differed_as_said, trials))
    return (
        f"{len(trials)} trials, {len(wrong)} with a miss; after {told} of them the run was resumed and compared; "
        f"{others} differed, as they said"
    )


def _differed_as_said(record: Record) -> bool:
    return bool(record.get("differs") and record.get("told"))


def page(records: Sequence[Record]) -> str:
    trials = merged(records)
    wrong = [_miss(each) for each in trials if misses(each)]
    parts = [_HEAD, of_victims(trials), _LEGEND.format(summary=summary(trials))]
    if wrong:
        parts += ["## Misses\n", _markdown(["trial", "struck", "phase", "what was wrong"], wrong)]
    return "\n".join(parts)


def of_victims(trials: Sequence[Record]) -> str:
    head = ["struck", *PHASES, "longest, s", "named", "clean", "exact", "differed, as it said"]
    rows = [_row(victim.name, [each for each in trials if each["victim"] == victim.name]) for victim in VICTIMS]
    return _markdown(head, rows)


_LEGEND = """
{summary}.

A cell says how many trials passed of those in a phase; an empty one, that none was made there. *longest*: seconds from
the strike to the end of the command, or to the second step after it where the run continued. *named*, *clean* and
*exact* count the trials that passed checks 2, 3 and 4. Where nobody is left to say anything (the command itself is
killed), or nothing was lost (a grading worker), check 2 only wants no traceback. *differed, as it said*: the run
continued without what the encoder, the plugin or the judge would have given, and its lines said so. It is another run
from then on, which check 4 has nothing to compare with. Any other difference is a miss.
"""


def _row(victim: str, trials: Sequence[Record]) -> list[str]:
    cells = []
    for phase in PHASES:
        here = [each for each in trials if each.get("hit", each["phase"]) == phase]
        passed = sum(not misses(each) for each in here)
        cells.append("" if not here else str(passed) if passed == len(here) else f"**{passed} of {len(here)}**")
    longest = max((each["seconds"] for each in trials if "seconds" in each), default=0.0)
    told = [each for each in trials if each.get("resumed") is not None]
    counts = [
        f"{sum(not each['faults'] for each in trials)} of {len(trials)}",
        f"{sum(not each.get('left') for each in trials)} of {len(trials)}",
        f"{sum(not each['resumed'] for each in told)} of {len(told)}",
    ]
    return [victim, *cells, f"{longest:.1f}", *counts, str(sum(map(_differed_as_said, trials)) or "")]


def _miss(record: Record) -> list[str]:
    words = "; ".join(misses(record)).replace("\n", " ").replace("|", "\\|")
    return [str(record["trial"]), record["victim"], record.get("hit", record["phase"]), words[:300]]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
