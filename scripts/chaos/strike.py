"""One strike at an attempt, and what came of it."""

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from attempt import Attempt, Ended
from plan import TREE, Trial
from processes import left_over, send, wait

END_LIMIT_S, CLEAN_LIMIT_S = 120.0, 45.0
GOES_ON = 2  # steps after which a run that may continue has done so
_PAGE = 12  # lines
_WHEN = re.compile(r"\b(?:at|after) step (\d+)|before the first step")
_LOG = re.compile(r"(?:its log: |processes are in )([^\n;]+\.(?:log|txt))")


def struck(one: Trial, attempt: Attempt, step: int, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Strike the attempt in ``step``, and return the trial's record. ``seconds``: how long phases take.

    told: the run may go on as another one, without what the victim did, as its lines say; one that says nothing of the
    victim has to go on as the same run.

    Raises:
        Ended: it ended by itself before that.
    """
    if one.phase != "start":
        attempt.until_phase(one.phase, step)
    time.sleep(one.moment * seconds.get(one.phase, 0.0))
    victims: list[psutil.Process] = []

    def found() -> bool:
        victims[:] = attempt.tree.find(one.victim)
        return bool(victims) or attempt.code is not None

    wait(found, END_LIMIT_S, 0.05)
    if not victims or attempt.code is not None:
        raise Ended(f"there is no {one.victim.name} at {attempt.where(time.time())}; exit code {attempt.code}")
    attempt.tree.look()
    printed, at = len(attempt.text()), time.time()
    send(victims, one.victim.signals)
    wait(lambda: attempt.code is not None or _goes_on(one, attempt, at), END_LIMIT_S)
    after, end = time.time() - at, _end(one, attempt, at)
    phase, step = attempt.where(at)
    text = attempt.text()[printed:]
    if end == "went on":
        wrong = _of_page(text) + (["it went on"] if one.victim.ends else [])
        send([attempt.tree.driver], [signal.SIGINT])
        attempt.ended(END_LIMIT_S)
    since = time.time()
    left = _left(one, attempt)
    if end != "went on":
        wrong = faults(one, attempt.text()[printed:], phase, step)  # by now all have said what they say
        wrong += ["it ended"] if not one.victim.ends and one.victim.said is None else []
    return {
        "hit": phase,
        "step": step,
        "pids": [each.pid for each in victims],
        "end": end,
        "seconds": round(after, 1),
        "clean_after": round(time.time() - since, 1),
        "faults": wrong,
        "told": _told(one, text),
        "left": left,
    }


def _goes_on(one: Trial, attempt: Attempt, struck: float) -> bool:
    """Say whether a run that may continue does. One that has to end may train steps until it does."""
    return not one.victim.ends and attempt.steps_after(struck) >= GOES_ON


def _told(one: Trial, text: str) -> bool:
    victim = one.victim
    return not victim.ends and victim.said is not None and bool(re.search(victim.said, "\n".join(_notes(text))))


def _end(one: Trial, attempt: Attempt, struck: float) -> str:
    if attempt.code == 0 or _goes_on(one, attempt, struck):
        return "went on"
    return "hung" if attempt.code is None else f"exit {attempt.code}"


def _left(one: Trial, attempt: Attempt) -> list[str]:
    """Return what is left after the time that clearing up may take."""
    left: list[str] = []

    def clean() -> bool:
        left[:] = left_over(attempt.tree, attempt.shared_before, attempt.temporary, attempt.run_dir)
        if one.victim.process == TREE:  # the next attempt removes it: nobody else is there
            left[:] = [each for each in left if not each.startswith("temporary")]
        return not left

    wait(clean, CLEAN_LIMIT_S, 0.3)
    return left


def faults(one: Trial, text: str, phase: str, step: int) -> list[str]:
    """Say what is wrong with what a run that ended has printed from a strike on."""
    said, found = one.victim.said, _of_page(text)
    if said is None:
        return found
    ending = text[at:] if (at := text.rfind("oger train: ")) >= 0 else ""  # lines of steps and evaluations say less
    if not re.search(said, ending):
        found.append(f"the last words do not match {said!r}")
    when = _WHEN.search(ending)
    if when is None and phase == "start" and "stopped by" in ending:
        return found  # nothing had begun
    if when is None or abs(int(when[1] or 1) - step) > 1:  # a phase of one step may end in the next
        found.append(f"step {step} is not named")
    if one.victim.ends and "stopped by" not in said:
        logs = [Path(path) for names in _LOG.findall(ending) for path in names.split(", ")]
        none_yet = "it had no log yet" in ending
        if not none_yet and (not logs or not all(path.is_file() for path in logs)):
            found.append(f"the logs named are {[*map(str, logs)]}, which are not there")
    return found


def _of_page(text: str) -> list[str]:
    """Say what is wrong with what was printed, whatever it says."""
    found = ["a traceback is printed"] if "Traceback (most recent call last)" in text else []
    return found + ([f"{count} lines are printed"] if (count := len(_notes(text))) > _PAGE else [])


def _notes(text: str) -> list[str]:
    """Return the lines that a run does not print in every step."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("step ")]
