"""Teacher trajectories by the uid of their prompt, in a memory-mapped Arrow file.

They do not travel with the rollouts: whoever needs them opens the store and looks them up.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from oger_recipe.base.files import atomic_write


@dataclass(frozen=True)
class Teacher:
    """One teacher trajectory: its text, its tokens and its verified reward.

    tokens: the end-of-sequence token last, unless the trajectory was cut; probs: the teacher's own probabilities of
    these tokens, as many, where the data has them.
    """

    source: str
    text: str
    tokens: list[int]
    reward: float
    score: float
    probs: list[float] | None = None


# "large": offsets of 64 bits; the texts of a full training set pass the 2 GiB that 32 bits can address.
_TEACHER = pa.struct(
    [
        ("source", pa.string()),
        ("text", pa.large_string()),
        ("tokens", pa.large_list(pa.int32())),
        ("reward", pa.float64()),
        ("score", pa.float64()),
        ("probs", pa.large_list(pa.float32())),
    ]
)
_SCHEMA = pa.schema([("key", pa.uint64()), ("uid", pa.string()), ("teachers", pa.list_(_TEACHER))])


def _key(uid: str) -> int:
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")


@contextmanager
def teacher_store(path: Path) -> Iterator[Callable[[Mapping[str, Sequence[Teacher]]], None]]:
    """Give a function that adds the teachers of further prompts, by uid, to a store; it appears whole at the end.

    Prompts without teachers need no entry. What was added lies on disk: no more than one call's is in memory.
    """
    with atomic_write(path) as partial, pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as file:

        def add(teachers: Mapping[str, Sequence[Teacher]]) -> None:
            rows = [
                {"key": _key(uid), "uid": uid, "teachers": [vars(teacher) for teacher in group]}
                for uid, group in teachers.items()
                if group
            ]
            if rows:
                file.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))

        yield add


def write_teacher_store(teachers: Mapping[str, Sequence[Teacher]], path: Path) -> None:
    """Write the store of all these teachers, by uid."""
    with teacher_store(path) as add:
        add(teachers)


class TeacherStore:
    """A store that stays on disk and is mapped, whatever its size."""

    def __init__(self, path: Path) -> None:
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        keys = self._table["key"].to_numpy()
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, uid: str) -> list[Teacher]:
        """Return the teachers of one prompt, an empty list for a prompt without any."""
        position = self._position(uid)
        if position is None:
            return []
        return [Teacher(**fields) for fields in self._table["teachers"][position].as_py()]

    def __contains__(self, uid: str) -> bool:
        return self._position(uid) is not None

    def _position(self, uid: str) -> int | None:
        key = np.uint64(_key(uid))
        for place in range(int(np.searchsorted(self._keys, key)), len(self)):
            if self._keys[place] != key:
                break
            if self._table["uid"][self._order[place]].as_py() == uid:
                return int(self._order[place])
        return None
