"""What a run's folder says of the run: running, finished or ended, how far it came, its scores and its warnings.

Everything here only reads. Nothing touches the folder or its lock, so no run notices who looks at it.
"""

import contextlib
import math
import os
import re
import shlex
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

import yaml

from oger_recipe.base.files import parse_record, read_record
from oger_recipe.evaluation.tables import main_metrics
from oger_recipe.report.summary import clock, kept_evaluations
from oger_recipe.run_folder import attempt, checkpoints, own_files
from oger_recipe.run_folder.records import ALARM, ALARM_CLEARED, BEGAN, ENDED, RESTARTING, SAID

Record = dict[str, Any]
Settings = dict[str, Any]  # by flag
QUIET = 1800.0  # seconds without an event after which a run whose process cannot be seen counts as ended
# How records.event begins the two events that make up nearly all of the file; of these only the beginning is read.
_PHASE, _STEP = b', "event": "phase", ', re.compile(rb'\{"time": ([\d.]+), "event": "step", "step": (\d+)[,}]')
_HEAD = 100  # bytes that hold the beginning


@dataclass(frozen=True)
class Score:
    """One number of a held-out evaluation: ``metric`` on ``benchmark``, on "average" where there are several."""

    step: int
    benchmark: str
    metric: str
    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Note:
    """A warning or another note of the run, and the step that it was in."""

    step: int
    time: float
    text: str


@dataclass
class RaisedAlarm:
    """An alarm of the run, from the step at which it was raised to the one at which it cleared, if it did."""

    name: str
    metric: str
    step: int
    value: float
    limit: float
    level: str
    text: str
    cleared: int | None = None


@dataclass
class Attempt:
    """From a start of the command to its end, or to its last event. ``ended``: None while it runs."""

    began: float
    ended: float | None
    resumed_at: int
    last_step: int


@dataclass(frozen=True)
class RunState:
    """``why``: what ended the run, or its last attempt, or by which sign it counts as running where its process cannot
    be seen."""

    folder: Path
    state: Literal["running", "finished", "ended"]
    why: str | None
    resume_from: int | None
    recipe: str | None
    step: int
    planned_steps: int | None
    seconds: float
    last_event: float | None
    first: Score | None
    last: Score | None
    best: Score | None
    attempts: tuple[Attempt, ...]
    notes: tuple[Note, ...]
    alarms: tuple[RaisedAlarm, ...]

    @property
    def raised(self) -> tuple[str, ...]:
        """Name the alarms that have not cleared."""
        return tuple(dict.fromkeys(each.name for each in self.alarms if each.cleared is None))


class Tail:
    """Reads what a file of lines has gained since the last look; a file that was replaced begins anew."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._position = path, (0, 0), 0

    def read(self) -> tuple[bool, list[bytes]]:
        """Return whether the file began anew, and its new lines; a half-written one comes when it is whole."""
        try:
            with self._path.open("rb") as file:
                facts = os.fstat(file.fileno())
                anew = (facts.st_dev, facts.st_ino) != self._file or facts.st_size < self._position
                self._file, self._position = (facts.st_dev, facts.st_ino), 0 if anew else self._position
                file.seek(self._position)
                new = file.read()
        except OSError:  # not there yet, or removed by a run that begins anew
            anew, new, self._file, self._position = self._position > 0, b"", (0, 0), 0
        whole = new[: new.rfind(b"\n") + 1]
        self._position += len(whole)
        return anew, whole.split(b"\n")[:-1]


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass
class RunLog:
    """The events of a run as they come: `update` takes in what is new."""

    folder: Path
    milestones: list[Record] = field(default_factory=list)  # all but steps and phases
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    alarms: list[RaisedAlarm] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)  # when training began and each step ended, in this attempt
    step: int = 0
    _phase: bytes = b""

    def __post_init__(self) -> None:
        self._events = Tail(self.folder / "events.jsonl")

    def update(self) -> bool:
        """Take in what is new; say whether there was anything."""
        anew, lines = self._events.read()
        if anew:
            vars(self).update(vars(RunLog(self.folder)) | {"_events": self._events})
        for line in lines:
            if _PHASE in line[:_HEAD]:
                self._phase = line
            elif step := _STEP.match(line[:_HEAD]):
                self._end_step(float(step[1]), int(step[2]))
            elif (event := parse_record(line)) and "event" in event and "time" in event:
                self._take(event, line)
        self._mark_phase()
        return anew or bool(lines)

    @property
    def phase(self) -> Record | None:
        """Return the phase that the run is in, as its event; None between two."""
        return parse_record(self._phase)

    @property
    def planned_steps(self) -> int | None:
        return next((event["steps"] for event in reversed(self.milestones) if event["event"] == "ready"), None)

    @property
    def sources(self) -> list[str]:
        """Return the names of the run's rewards."""
        return next((event["sources"] for event in reversed(self.milestones) if event.get("sources")), [])

    @property
    def milestone(self) -> Record | None:
        """Return the last event of the present attempt that is no note, alarm, step or phase."""
        return next((event for event in reversed(self.milestones) if event["event"] not in SAID), None)

    @property
    def last_event(self) -> float | None:
        return self.attempts[-1].ended if self.attempts else None

    def _end_step(self, at: float, step: int) -> None:
        self._phase, self.step = b"", step
        self.moments.append(at)
        if self.attempts:
            self.attempts[-1].ended, self.attempts[-1].last_step = at, step

    def _mark_phase(self) -> None:
        """Let the attempt reach to the present phase."""
        if self.attempts and (phase := self.phase):
            self.attempts[-1].ended = phase["time"]

    def _take(self, event: Record, line: bytes) -> None:
        at: float = event["time"]
        name = event["event"]
        if name == "phase":  # in another form than records.event writes
            self._phase = line
            return
        if name == "step":
            self._end_step(at, event["step"])
            return
        self._mark_phase()
        if name == BEGAN or (name == "ready" and (self.milestone or {}).get("event") != BEGAN):
            self.step = resumed_at = event.get("resumed_at", 0)
            self.attempts.append(Attempt(event.get("since", at), at, resumed_at, resumed_at))
        if name in SAID:
            self._note_alarm(event)
            in_step: int = (self.phase or {}).get("step", self.step)
            self.notes.append(Note(event.get("step", in_step), at, event["text"]))
        else:
            self._phase = b""
        if name == "training":
            self.moments = [at]
        self.milestones.append(event)
        if self.attempts:
            self.attempts[-1].ended = at

    def _note_alarm(self, event: Record) -> None:
        if event["event"] == ALARM:
            facts = {each.name: event[each.name] for each in fields(RaisedAlarm) if each.name in event}
            self.alarms.append(RaisedAlarm(**facts))
        for raised in self.alarms if event["event"] == ALARM_CLEARED else ():
            if (raised.name, raised.metric, raised.cleared) == (event["name"], event["metric"], None):
                raised.cleared = event["step"]


def is_run(folder: Path) -> bool:
    """Say whether a run is in the folder, also one that has only just taken it, or one of an earlier version."""
    return (
        own_files.is_marked(folder) or own_files.is_of_earlier_version(folder) or attempt.is_held(folder) is not False
    )


def read_state(folder: Path) -> RunState:
    """Read the state of the run in the folder."""
    log = RunLog(folder)
    log.update()
    return state_of(log)


def state_of(log: RunLog) -> RunState:
    """Say what is known of the run by now; ``log`` has been updated."""
    folder = log.folder
    state, why = _state(log)
    scores = [score for event in kept_evaluations(log.milestones) if (score := _score(event))]
    attempts = [replace(each) for each in log.attempts]
    if attempts and state == "running" and (log.milestone or {}).get("event") != RESTARTING:
        attempts[-1].ended = None
    return RunState(
        folder=folder,
        state=state,
        why=why,
        resume_from=_resume_from(folder) if state == "ended" else None,
        recipe=_recipe(folder),
        step=log.step or _last_metrics_step(folder),
        planned_steps=log.planned_steps,
        seconds=sum((time.time() if each.ended is None else each.ended) - each.began for each in attempts),
        last_event=log.last_event,
        first=scores[0] if scores else None,
        last=scores[-1] if scores else None,
        best=max(scores, key=lambda score: score.value, default=None),
        attempts=tuple(attempts),
        notes=tuple(log.notes),
        alarms=tuple(replace(each) for each in log.alarms),
    )


def _state(log: RunLog) -> tuple[Literal["running", "finished", "ended"], str | None]:
    held = attempt.is_held(log.folder)
    last = log.milestone or {}
    if held:
        return "running", _restart(last) if last.get("event") == RESTARTING else None
    if last.get("event") == "finished" and read_record(log.folder / "summary.json").get("finished"):
        return "finished", None
    if last.get("event") == ENDED:
        return "ended", last["why"].strip().partition("\n")[0]
    seen = log.last_event or attempt.lock_taken(log.folder)
    if held is None and seen is not None and time.time() - seen < QUIET:
        host = attempt.holder(log.folder) or "another machine"
        return "running", f"by its last sign of life, {clock(max(time.time() - seen, 0))} ago: it runs on {host}"
    return "ended", _error(log) or _last_words(log, seen)


def _restart(event: Record) -> str:
    """Say when the next attempt begins, and why."""
    at = time.strftime("%H:%M:%S", time.localtime(event["time"] + event["seconds"]))
    return f"restart {event['restart']} of {event['of']} at {at}, as {event['why']}"


def _last_words(log: RunLog, seen: float | None) -> str:
    """Describe the end of a run that recorded no reason."""
    when = "" if seen is None else time.strftime(", last seen %Y-%m-%d %H:%M", time.localtime(seen))
    if not log.attempts:
        return f"before its first event{when}"
    if (log.milestone or {}).get("event") == "finished":
        return f"while saving the model{when}"
    return f"killed, or lost with its machine{when}"


def _error(log: RunLog) -> str | None:
    """Return the last line of the traceback that the present attempt left; an earlier version recorded no reason."""
    path = log.folder / "logs" / "error.log"
    with contextlib.suppress(OSError):
        if not log.attempts or path.stat().st_mtime >= log.attempts[-1].began:
            lines = path.read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), None)
    return None


def _score(event: Record) -> Score | None:
    """Return the main number of an evaluation."""
    benchmarks = event.get("benchmarks") or {"": event}  # an earlier version had no benchmarks
    name = "average" if "average" in benchmarks else next(iter(benchmarks))
    scores = benchmarks[name]
    metric = next((key for key in [*main_metrics(scores.get("n")), *scores] if key in scores and "avg_at_" in key), "")
    if scores.get(metric) is None:
        return None
    low_high = scores.get(f"{metric}_interval")
    return Score(event["step"], name, metric, scores[metric], tuple(low_high) if low_high else None)


def _resume_from(folder: Path) -> int | None:
    newest = checkpoints.newest_whole(checkpoints.found(_checkpoint_folder(folder)))
    return newest.step if newest else None


def _checkpoint_folder(folder: Path) -> Path:
    """Return where the run's checkpoints lie: in its folder, which may have been moved, or where ckpt.path says."""
    with contextlib.suppress(KeyError, TypeError):
        _, value = read_settings(folder)
        path = Path(value["ckpt.path"])
        if path != Path(value["oger.run_dir"]) / "checkpoints":
            return path
    return folder / "checkpoints"


def read_settings(folder: Path) -> tuple[str, Settings]:
    """Return recipe.yaml, and its settings; nothing of a file that is missing or damaged."""
    try:
        text = (folder / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
        document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError):
        return "", {}
    return text, by_flag(document) if isinstance(document, dict) else {}


def by_flag(section: Record, above: str = "") -> Settings:
    """Return the settings of nested sections by flag: ``{"train": {"seed": 1}}`` is ``{"train.seed": 1}``."""
    settings: Settings = {}
    for name, value in section.items():
        settings |= by_flag(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return settings


def _recipe(folder: Path) -> str | None:
    """Return the name of the recipe by the command that was typed."""
    with contextlib.suppress(OSError, ValueError):
        words = shlex.split((folder / own_files.COMMAND).read_text(), comments=True)
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, _, value = word.partition("=")
            if name == "--recipe":
                return Path(value or following).stem
    return None


def _last_metrics_step(folder: Path) -> int:
    """Return the last step of metrics.jsonl, for a run that has no events."""
    with contextlib.suppress(OSError), (folder / "metrics.jsonl").open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 200_000, 0))
        records = (parse_record(line) for line in reversed(file.read().split(b"\n")))
        return next((record["step"] for record in records if record and "step" in record), 0)
    return 0
