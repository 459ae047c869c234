"""Sources of reward: each looks at the groups of a step and says one value for every row, with named components."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from oger_recipe.base.ranges import REWARD, reward_fault
from oger_recipe.base.secrets import said_by
from oger_recipe.grading.verdict import Graded

# Why a row has no value, where what its response says may have brought that about: its text is longer than the model
# reads, or anything else.
OVERFLOW, ANSWER = "overflow", "answer"


@dataclass(frozen=True)
class Group:
    """The rows of one prompt as they are trained: rollouts, some replaced by teachers. Lists have an entry a row.

    prompt: as the policy reads it; question: the user's last turn, before any template; row: the data's further
    columns (both are empty where no source reads them, see Keys.reads_rows); teachers: texts of all teachers of the
    prompt; may_earn: the policy's own rows that a bonus is for; similarity (to the teachers) and entropy (nats) are
    nan where they are not known; steps: the responses' steps of reasoning, where a source reads them; tokens: how many
    a response has; messages: the prompt as the data has it, where it has chat messages; log_prob: of the whole
    response by the policy that sampled it, nan where it is not known.
    """

    uid: str
    prompt: str
    question: str
    task: str
    answer: str
    row: Mapping[str, Any]
    teachers: list[str]
    responses: list[str]
    graded: list[Graded]
    is_teacher: list[bool]
    truncated: list[bool]
    may_earn: list[bool]
    similarity: list[float]
    entropy: list[float]
    steps: list[list[str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Scores:
    """What a source says: tensors are [groups, n]; a component is nan where a row has none.

    errors: (group, row) -> why there is no value; values there are read only with a cause; metrics: numbers about the
    step, logged as ``reward/<source>/<name>``; steps: rewards of the rows' steps of reasoning, [groups, n, S], nan
    where a row has no such step or there is no value; causes: (group, row) -> OVERFLOW or ANSWER, for those of errors
    that the response may have caused. Such a row is worth the worst verdict: values, and steps, may have it there;
    silent (bool [groups, n]): rows that, the source says, do not concern it: they go without it and have not failed;
    criteria: (group, row) -> verdicts on the criteria of a rubric, None where there is none.
    """

    values: Tensor
    components: Mapping[str, Tensor] = field(default_factory=dict)
    errors: Mapping[tuple[int, int], str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: Tensor | None = None
    causes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    silent: Tensor | None = None
    criteria: Mapping[tuple[int, int], Mapping[str, float | None]] = field(default_factory=dict)


class Source(Protocol):
    """Scores all groups of a step in one call, so that a slow source can take them together.

    ``wanted`` (bool [groups, n]): the rows whose gate is open. What a source says of others is left out: one that pays
    for every row need not ask about them. A source with a true attribute ``overlaps``, which waits for a server, is
    asked in a thread, while others are asked.
    """

    def score(self, groups: Sequence[Group], wanted: Tensor) -> Scores: ...


@runtime_checkable
class Learning(Source, Protocol):
    """A source that learns from the groups that it scores: what it knows is kept with a run's checkpoints."""

    def save(self, folder: Path) -> None:
        """Write its state into a folder that is not there yet."""

    def load(self, folder: Path) -> None:
        """Resume from what `save` wrote. Raises RecipeError if it cannot."""


def of_rows(groups: Sequence[Group], value: Callable[[Group], Sequence[float | bool]], **settings: Any) -> Tensor:
    """Make a tensor [groups, n] of the rows' values."""
    return torch.tensor([list(value(group)) for group in groups], **settings)


def own_right_rows(groups: Sequence[Group]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the policy's right rows, those of them that may earn a bonus, and all of its rows, bool [groups, n]."""
    own = ~of_rows(groups, lambda group: group.is_teacher)
    right = own & of_rows(groups, lambda group: [each.verdict.score > 0 for each in group.graded])
    return right, right & of_rows(groups, lambda group: group.may_earn), own


def components_of(rows: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, Tensor]:
    """Make tensors [groups, n] of components, nan if missing."""
    names = dict.fromkeys(name for group in rows for row in group for name in row)
    return {name: torch.tensor([[row.get(name, math.nan) for row in group] for group in rows]) for name in names}


def unfit_values(values: Tensor, counted: Tensor) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield (group, row) and why, for each counted value (bool [groups, n]) that cannot be a reward."""
    for group, row in (counted & ~is_reward(values)).nonzero().tolist():
        value = values[group, row].item()
        yield (group, row), f"its value is {value:g}, which is {reward_fault(value)}"


def is_reward(values: Tensor) -> Tensor:
    """Say of each number whether it can be a reward; nan and inf cannot."""
    return (values >= REWARD.low) & (values <= REWARD.high)


def reason(error: Exception) -> str:
    """Say what was raised, and where if not in this room."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(__file__).parent in Path(place.filename).parents
    at = "" if ours else f" ({place.filename}:{place.lineno})"
    return f"{said_by(error)}{at}"
