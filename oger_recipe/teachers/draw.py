"""Draw the teachers that enter a prompt's group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from oger_recipe.algorithm.hybrid_group import draw_teachers
from oger_recipe.teachers.store import Teacher

if TYPE_CHECKING:
    from oger_recipe.settings.teachers import TeacherSettings


def draw(
    teachers: list[Teacher], count: int, settings: TeacherSettings, generator: torch.Generator, turn: int
) -> list[Teacher]:
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


def may_enter(teachers: list[Teacher], settings: TeacherSettings) -> list[Teacher]:
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
