"""A group of rollouts for a terminal, in the words of its samples file: prompt, texts, verdicts, rewards, teachers."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oger_recipe.base.errors import RecipeError
from oger_recipe.report.groups import Row, SampledGroup, read_groups, sampled_steps
from oger_recipe.report.terminal import figure, plain, verdict_text

WORST, BEST = "worst", "best"
_NUMBERS = (
    "reward", "score", "total_reward", "similarity", "divergence", "bonus", "entropy", "entropy_weight",
    "off_policy_tokens", "response_length",
)  # fmt: skip
_BESIDE = 110  # columns from which a teacher stands beside the rollout that it replaced
_NEAR = 3  # steps or uids that a message names


def choose(folder: Path, *, step: int | None, which: str | None, uid: str | None) -> tuple[SampledGroup, int, int]:
    """Choose a group, and say which one of how many of its step it is.

    Without a wish it is the first one of the step whose rollouts are not all worth the same: it teaches the policy.

    Raises:
        RecipeError: no samples are written of that step, or of that prompt.
    """
    steps = sampled_steps(folder)
    if not steps:
        raise RecipeError(f"{folder} has no samples yet: a run writes them with its first step")
    if step is not None and step not in steps:
        near = ", ".join(str(each) for each in sorted(sorted(steps, key=lambda each: abs(each - step))[:_NEAR]))
        raise RecipeError(f"there are no samples of step {step} in {folder / 'samples'}; the nearest steps: {near}")
    if uid is not None:
        return _of_prompt(folder, reversed(steps) if step is None else [step], uid)
    shown = steps[-1] if step is None else step
    groups = read_groups(folder, shown)
    if not groups:  # its first line is being written
        raise RecipeError(f"the samples of step {shown} are being written: try again, or --step an earlier one")
    place = _place(groups, which)
    return groups[place], place + 1, len(groups)


def _of_prompt(folder: Path, steps: Iterator[int] | Sequence[int], uid: str) -> tuple[SampledGroup, int, int]:
    known: dict[str, None] = {}
    for step in steps:
        groups = read_groups(folder, step)
        for place, group in enumerate(groups):
            if group.uid == uid:
                return group, place + 1, len(groups)
        known |= dict.fromkeys(group.uid for group in groups)
    near = difflib.get_close_matches(uid, known, n=_NEAR, cutoff=0.0)
    raise RecipeError(f"no group of uid {uid} was sampled; the nearest uids: {', '.join(near)}")


def _place(groups: Sequence[SampledGroup], which: str | None) -> int:
    worth = [mean_reward(group) for group in groups]
    if which is not None:
        return worth.index((min if which == WORST else max)(worth))
    return next((place for place, group in enumerate(groups) if len(set(_rewards(group))) > 1), 0)


def _rewards(group: SampledGroup) -> list[float]:
    """List what the rollouts' verdicts are worth, of those too that made room for teachers."""
    return [row.get("reward") or 0.0 for row in group.rows if not row.get("source")]


def mean_reward(group: SampledGroup) -> float:
    rewards = _rewards(group)
    return sum(rewards) / max(len(rewards), 1)


def group_view(group: SampledGroup, place: int, of: int, console: Console) -> RenderableType:
    """Draw a group: its prompt, then its rows; a teacher beside the rollout that it replaced where there is room."""
    rewards, right = _rewards(group), sum((row.get("score") or 0) > 0 for row in group.rows if not row.get("source"))
    head = [
        plain(f"group {place} of {of} of step {group.step}, uid {group.uid}", "bold"),
        fact_line("rollouts", f"{right} of {len(rewards)} right, mean reward {figure(mean_reward(group))}"),
        fact_line("task", group.task),
        fact_line("answer", group.answer),
        Text("prompt", "dim"),
        plain(group.prompt.strip()),
    ]
    beside = console.is_terminal and console.width >= _BESIDE
    return Group(*head, *_rows(group.rows, beside=beside))


def _rows(rows: Sequence[Row], *, beside: bool) -> Iterator[RenderableType]:
    number, waiting = 0, None
    for row in rows:
        teacher = row.get("source")
        number += not teacher
        view = row_view(row, f"teacher {teacher}" if teacher else f"rollout {number}")
        if row.get("replaced") and beside:
            waiting = view
        elif waiting is not None:
            pair = Table.grid(padding=(0, 2), expand=True)
            pair.add_column(ratio=1, overflow="fold")
            pair.add_column(ratio=1, overflow="fold")
            pair.add_row(waiting, view)
            waiting = None
            yield pair
        else:
            yield view
    if waiting is not None:  # the teacher's line is not written yet
        yield waiting


def row_view(row: Row, name: str) -> RenderableType:
    """Draw a row: verdict, text, and every number that its line has."""
    title = plain(f"{name}: ", "bold") + verdict_text(row)
    if row.get("replaced"):
        title += plain("  replaced by the teacher that follows", "magenta")
    if row.get("truncated"):
        title += plain("  truncated", "yellow")
    parts: list[RenderableType] = [Text(), title, plain(str(row.get("text", "")).strip())]
    parts += [Padding(fact_line(label, fact), (0, 0, 0, 2), expand=False) for label, fact in row_facts(row)]
    if steps := row.get("steps_of_reasoning"):
        parts.append(Padding(_steps(steps), (0, 0, 0, 2), expand=False))
    return Group(*parts)


def fact_line(label: str, fact: str) -> Text:
    return Text(f"{label}  ", "dim") + plain(fact)


def row_facts(row: Row) -> Iterator[tuple[str, str]]:
    """Yield what is known of a row as (name, text), by the names of its line."""
    for name in ("extracted", "solution"):
        if row.get(name) is not None:
            yield name, str(row[name])
    if row.get("advantage") is not None:
        yield "advantage", f"{row['advantage']:+.3f}"
    if numbers := {name: row[name] for name in _NUMBERS if row.get(name) is not None}:
        yield "numbers", _listed(numbers)
    of_rule = "sources" if row.get("sources") else "components"  # the sources have the rule's components as well
    if row.get(of_rule):
        yield of_rule, _listed(row[of_rule])
    for name in ("errors", "criteria"):
        for source, said in (row.get(name) or {}).items():
            yield name, f"{source}: {said}"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in values.items())


def _steps(steps: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("step", "reward", "advantage", "sources"):
        table.add_column(name, justify="left" if name == "sources" else "right", overflow="fold")
    table.add_column("text", overflow="fold", ratio=1)
    for number, step in enumerate(steps, 1):
        given = (figure(step.get(name)) for name in ("reward", "advantage"))
        said = _listed(step.get("sources") or {})
        table.add_row(*map(plain, (number, *given, said, str(step.get("text", "")).strip())))
    return table
