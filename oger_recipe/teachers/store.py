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

from oger_recipe.algorithm.prefix import prefix_length
from oger_recipe.base.files import atomic_write


@dataclass(frozen=True)
class Teacher:
    """One teacher trajectory: its text, its tokens and its verified reward.

    tokens: the end-of-sequence token last, unless the trajectory was cut; probs: the teacher's own probabilities of
    these tokens, as many, where the data has them. entropy: nats, the policy's mean over them where it has sampled
    them itself. likelihood: the policy's mean probability of the answer's tokens, where it was asked.
    """

    source: str
    text: str
    tokens: list[int]
    reward: float
    score: float
    probs: list[float] | None = None
    entropy: float | None = None
    likelihood: float | None = None


def beginning(text: str, share: float) -> str:
    """Return the first ``share`` (0 to 1) of a text's characters, without the word that this would cut in two."""
    cut = text[: prefix_length(len(text), share)]
    if not cut or cut[-1].isspace() or text[len(cut) : len(cut) + 1].strip() == "":
        return cut
    begun = cut.rsplit(maxsplit=1)[-1]
    return cut.removesuffix(begun) or cut


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
_SHOWN = pa.field("shown", pa.struct([("before", pa.large_string()), ("after", pa.large_string())]))


def _key(uid: str) -> int:
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")


@contextmanager
def teacher_store(path: Path, *, shows: bool = False) -> Iterator[Callable[..., None]]:
    """Give a function that adds the teachers of further prompts, by uid, to a store; it appears whole at the end.

    With ``shows`` it takes as its second argument, by uid, the texts before and after a teacher in the prompt that
    shows one. Prompts without teachers need no entry. What was added lies on disk, one call at most in memory.
    """
    schema = _SCHEMA.append(_SHOWN) if shows else _SCHEMA
    with atomic_write(path) as partial, pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as file:

        def add(teachers: Mapping[str, Sequence[Teacher]], shown: Mapping[str, tuple[str, str]] = {}) -> None:
            rows = [
                {"key": _key(uid), "uid": uid, "teachers": [vars(teacher) for teacher in group]}
                | ({"shown": dict(zip(("before", "after"), shown[uid], strict=True))} if shows else {})
                for uid, group in teachers.items()
                if group
            ]
            if rows:
                file.write_batch(pa.RecordBatch.from_pylist(rows, schema))

        yield add


def write_teacher_store(
    teachers: Mapping[str, Sequence[Teacher]], path: Path, shown: Mapping[str, tuple[str, str]] | None = None
) -> None:
    """Write the store of all these teachers, by uid; ``shown`` as in `teacher_store`, None: no prompt shows one."""
    with teacher_store(path, shows=shown is not None) as add:
        add(teachers, shown or {})


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

    def shown_prompt(self, uid: str, demonstration: str) -> str:
        """Return the text of a prompt that shows a demonstration, the chat template included.

        Raises:
            KeyError: the prompt has no teachers, or the run's settings show none.
        """
        position = self._position(uid)
        if position is None or _SHOWN.name not in self._table.column_names:
            raise KeyError(uid)
        pieces = self._table[_SHOWN.name][position].as_py()
        return f"{pieces['before']}{demonstration}{pieces['after']}"

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
