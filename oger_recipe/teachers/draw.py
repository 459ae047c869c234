"""The teachers that enter a prompt's group, and the policy's own correct rollouts as references for later ones."""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from typing import Protocol

import torch

from oger_recipe.algorithm.hybrid_group import draw_teachers
from oger_recipe.base.files import append_json, atomic_write, read_jsonl, write_jsonl
from oger_recipe.teachers.store import Teacher


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

    Each is appended to a file as it comes; a resumed run reads back what was there at its step.
    """

    def __init__(self, path: Path, size: int, step: int) -> None:
        self._path, self._size = path, size
        self._texts: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=size))
        if not path.exists():
            return
        records = read_jsonl(path)
        records = [record for record in records if record["step"] <= step]
        for record in records:
            self._texts[record["uid"]].append(record["text"])
        with atomic_write(path) as partial:  # what came after the step that is resumed from will come again
            write_jsonl(records, partial)

    def __getitem__(self, uid: str) -> list[str]:
        return list(self._texts.get(uid, ()))

    def add(self, step: int, uid: str, text: str) -> None:
        if text not in self._texts[uid]:
            self._texts[uid].append(text)
            append_json(self._path, {"step": step, "uid": uid, "text": text})
