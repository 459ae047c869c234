"""What a bonus does in the groups of a run: how much of what is trained it is, and which right rollouts earn more."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import combinations
from pathlib import Path

import numpy as np

from oger_recipe.base.files import read_jsonl
from oger_recipe.grading.verifiers.countdown import verify_countdown
from oger_recipe.lab.arms import Record
from oger_recipe.teachers.store import TeacherStore

# Of one rollout: the reward that it is trained with, and the class of its solution; None: it is not right.
Rollout = tuple[float, str | None]
# The rollouts of a group, and the classes that the prompt's teachers show.
Group = tuple[list[Rollout], Set[str]]


def bonus_ranks(groups: Iterable[Group]) -> Record:
    """Measure how far the rewards of a group's right rollouts differ, and which of them earn more.

    ``share``: sum over groups of (r - mean of the group's right rollouts)^2 over these, by the sum of
    (r - mean of the group)^2 over all its rollouts. A verdict of right or wrong alone has 0.
    ``rarer``: of pairs of right rollouts with classes of which one is rarer in their group, how often that one earns
    more (an equal reward is half a time), and how many such pairs there are.
    ``new``: the same, of pairs of which one has a class that a teacher shows and the other has not.
    ``several``: the share of groups whose right rollouts have more than one class.
    """
    ranked = whole = 0.0
    number = several = 0
    won, pairs = defaultdict[str, float](float), Counter[str]()
    for rollouts, shown in groups:
        right = [(reward, name) for reward, name in rollouts if name is not None]
        whole += _squares([reward for reward, _ in rollouts])
        ranked += _squares([reward for reward, _ in right])
        count = Counter(name for _, name in right)
        number, several = number + 1, several + (len(count) > 1)
        for (first, one), (second, other) in combinations(right, 2):
            earned = 0.5 if first == second else float(first > second)
            for kind, more in (("rarer", count[other] - count[one]), ("new", (other in shown) - (one in shown))):
                if more:
                    pairs[kind] += 1
                    won[kind] += earned if more > 0 else 1 - earned
    shares = {"share": ranked / whole if whole else 0.0, "several": several / number if number else 0.0}
    return shares | {kind: [won[kind], pairs[kind]] for kind in ("rarer", "new")}


def _squares(values: list[float]) -> float:
    return float(np.sum((np.array(values) - np.mean(values)) ** 2)) if values else 0.0


def countdown_class(text: str, answer: str) -> str | None:
    """Return the class of a Countdown response's solution; None if it is not right."""
    verdict = verify_countdown(text, answer)
    return verdict.solution if verdict.score == 1 else None


def groups_of(folder: Path, class_of: Callable[[str, str], str | None] = countdown_class) -> Iterator[Group]:
    """Yield the groups of a run's recorded samples, of all its steps. A group has the policy's rollouts that were
    trained: no teacher's rows, and no rollout that a teacher replaced.

    ``class_of`` takes a response and the problem's answer, and returns the solution's class; None if it is not right.
    """
    teachers = TeacherStore(folder / "data" / "teachers.arrow")
    for path in sorted((folder / "samples").glob("step_*.jsonl")):
        groups: dict[str, list[Record]] = {}
        for row in read_jsonl(path):
            groups.setdefault(row["uid"], []).append(row)
        for uid, rows in groups.items():
            answer = rows[0]["answer"]
            own = [row for row in rows if not row["off_policy"] and not row.get("replaced")]
            found = [(row["total_reward"], class_of(row["text"], answer)) for row in own]
            yield found, set(filter(None, (class_of(teacher.text, answer) for teacher in teachers[uid])))
