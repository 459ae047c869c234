"""The teachers that enter a prompt's group, and the policy's own correct rollouts as references for later ones."""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from oger_recipe.algorithm.hybrid_group import draw_teachers
from oger_recipe.base.files import atomic_write, parse_record, to_json
from oger_recipe.teachers.store import Teacher

HISTORY = "history"  # the source of the policy's own earlier rollouts
_NUMBERS = {"tokens": "<i4", "probs": "<f4"}  # in the file, as base64: a fifth of what JSON takes to write and read


class Draw(Protocol):
    """How teachers are drawn, as a run's settings say (settings/teachers.py)."""

    @property
    def teacher_draw(self) -> str: ...

    @property
    def teacher_source_weights(self) -> tuple[str, ...]: ...


def draw(teachers: list[Teacher], count: int, settings: Draw, generator: torch.Generator, turn: int) -> list[Teacher]:
    """Draw at most ``count`` distinct teachers as ``oger.teacher_draw`` says; ``turn`` moves round_robin on."""
    chosen = draw_teachers(
        [teacher.source for teacher in teachers],
        [len(teacher.tokens) for teacher in teachers],
        entropies=[teacher.entropy for teacher in teachers],
        likelihoods=[teacher.likelihood for teacher in teachers],
        count=count,
        mode=settings.teacher_draw,
        generator=generator,
        weights=weights(settings.teacher_source_weights),
        turn=turn,
    )
    return [teachers[index] for index in chosen]


def may_enter(teachers: list[Teacher], settings: Draw) -> list[Teacher]:
    """Return those that a draw can choose: all but sources of weight 0 under ``oger.teacher_draw`` source_weights."""
    if settings.teacher_draw != "source_weights":
        return teachers
    chances = weights(settings.teacher_source_weights)
    return [teacher for teacher in teachers if chances.get(teacher.source, 1.0) > 0]


def weights(entries: tuple[str, ...] | list[str]) -> dict[str, float]:
    """Read ``name=weight`` entries as a mapping.

    Raises:
        ValueError: an entry is not of that form, or its weight is negative or not finite.
    """
    found = {}
    for entry in entries:
        name, _, text = entry.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = -1.0
        if not name or not 0 <= weight < float("inf"):
            raise ValueError(f"{entry!r} is not name=weight with a weight of 0 or more")
        found[name] = weight
    return found


class History:
    """The newest ``size`` correct rollouts of every prompt, each text once.

    Each is appended to a file as it comes; a resumed run reads back what was there at its step. What a rollout needs
    to enter a group stays in the file until it is asked for.
    """

    def __init__(self, path: Path, size: int, step: int) -> None:
        self._path, self._size = path, size
        self._kept: dict[str, deque[tuple[str, int]]] = defaultdict(
            lambda: deque(maxlen=size)
        )  # text, its line's place
        if not path.exists():
            return
        with atomic_write(path) as partial, path.open("rb") as old, partial.open("wb") as new:
            for line in old:
                record = parse_record(line) if line.endswith(b"\n") else None
                if record is not None and record["step"] <= step:  # what came after that step will come again
                    self._kept[record["uid"]].append((record["text"], new.tell()))
                    new.write(line)

    def __getitem__(self, uid: str) -> list[str]:
        return [text for text, _ in self._kept.get(uid, ())]

    def teachers(self, uid: str) -> list[Teacher]:
        """Return those of a prompt's that may enter its group, as teachers of the source ``history``."""
        kept = self._kept.get(uid)
        if not kept:
            return []
        with self._path.open("rb") as file:
            records = [_line_at(file, place) for _, place in kept]
        return [_teacher(record) for record in records if "tokens" in record]

    def add(self, step: int, uid: str, text: str, enters: Teacher | None = None) -> None:
        """Keep a rollout, unless its text is kept already; ``enters``: itself as a teacher, if it may enter groups."""
        if text in self[uid]:
            return
        record = {"step": step, "uid": uid, "text": text} | (_record(enters) if enters is not None else {})
        with self._path.open("ab") as file:
            self._kept[uid].append((text, file.tell()))
            file.write(to_json(record).encode() + b"\n")


def _line_at(file: Any, place: int) -> dict[str, Any]:
    file.seek(place)
    record: dict[str, Any] = json.loads(file.readline())
    return record


def _record(teacher: Teacher) -> dict[str, Any]:
    known = vars(teacher)
    packed = {name: np.asarray(known[name], kind).tobytes() for name, kind in _NUMBERS.items()}
    numbers = {name: base64.b64encode(each).decode() for name, each in packed.items()}
    return {name: known[name] for name in ("reward", "score", "entropy")} | numbers


def _teacher(record: dict[str, Any]) -> Teacher:
    numbers = {name: np.frombuffer(base64.b64decode(record[name]), kind).tolist() for name, kind in _NUMBERS.items()}
    return Teacher(
        HISTORY, record["text"], reward=record["reward"], score=record["score"], entropy=record["entropy"], **numbers
    )
