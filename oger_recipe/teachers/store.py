"""Teacher trajectories by the uid of their prompt, in a memory-mapped Arrow file.

They do not travel with the rollouts: whoever needs them opens the store and looks them up.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from oger_recipe.files import atomic_write


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


def write_teacher_store(teachers: Mapping[str, Sequence[Teacher]], path: Path) -> None:
    """Write the store atomically; prompts without teachers need no entry."""
    taught = sorted((_key(uid), uid) for uid, group in teachers.items() if group)
    rows = [{"key": key, "uid": uid, "teachers": [vars(teacher) for teacher in teachers[uid]]} for key, uid in taught]
    with atomic_write(path) as partial:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))


class TeacherStore:
    """Reads a store, which stays on disk and is mapped, whatever its size."""

    def __init__(self, path: Path) -> None:
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks()
        chunks = self._table["key"].chunks
        self._keys = chunks[0].to_numpy(zero_copy_only=True) if chunks else np.empty(0, np.uint64)

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
        position = int(np.searchsorted(self._keys, key))
        while position < len(self) and self._keys[position] == key:
            if self._table["uid"][position].as_py() == uid:
                return position
            position += 1
        return None
