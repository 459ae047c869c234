"""Where reward models run, as the sources see it: a place is opened, asked about many prompts at once, and closed.

Replies are kept on disk (`VerdictCache`), so that a resumed or repeated run, or one with another plugin, pays once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from oger_recipe.base.seeds import stable_seed


@dataclass(frozen=True)
class Sampling:
    """How a judge writes. With a seed, a reply depends on nothing but its prompt, which has its own `seed_of`."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 1024
    seed: int | None = None

    def seed_of(self, prompt: str) -> int | None:
        """Return the seed that a place samples this prompt's reply with, whatever is asked beside it."""
        return None if self.seed is None else stable_seed(self.seed, prompt)


@dataclass(frozen=True)
class Reply:
    """What a place returns to one prompt: a text, the number of a head, a number for each step of reasoning, or how
    likely the model finds each token of a response; ``error``, also of what never got to a place, says why there is
    none of these.

    cut: the text ended at its longest; cached: it was not asked again; cause: OVERFLOW or ANSWER of sources.py where
    what was asked about may have brought the error about.
    """

    text: str = ""
    value: float = float("nan")
    error: str | None = None
    steps: tuple[float, ...] = ()
    log_probs: tuple[float, ...] = ()
    cut: bool = False
    cached: bool = False
    cause: str | None = None


@dataclass(frozen=True)
class StepPrompt:
    """A text as tokens, and the positions among them where a model says how good the steps of reasoning are."""

    tokens: tuple[int, ...]
    ends: tuple[int, ...]


Told = Callable[[str, int, int], None]  # model, replies so far, prompts; 0 prompts: the model is being loaded


class Place(Protocol):
    """A model in its place. Replies come in the order of the prompts, one for each; a prompt that fails, or a model
    that died, is a reply with an error: only a configuration that cannot work raises (RecipeError, from `open`)."""

    def open(self) -> None:
        """Load the model, wake it up, or look whether its server is there."""

    def close(self) -> None:
        """Give its memory back until it is opened again."""

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        """Write a text for each prompt, which is complete as it is: chat templates are the plugin's."""

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        """Give the head's number for each prompt: raw, before any sigmoid."""

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        """Give the probability that a step is good for each position that a prompt names, as the model's ProcessKeys
        say."""


@runtime_checkable
class Likelihoods(Protocol):
    """A place of a model that writes, which says how likely it finds a text: this process, or an engine."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def log_probs(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        """Give the log-probability of each token behind the first of a prompt's ends, in float32."""


_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_FILE = "verdicts.sqlite"
_LARGEST = 2**30  # bytes of the file: some 200 000 replies of a thousand tokens
_LOCK_S = 30.0  # of waiting for another process
_LOST = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class VerdictCache:
    """An SQLite file in a folder that runs share. A failure of it is said once, and costs only what it would have
    saved.

    Its journal is the rollback kind: a write-ahead log may not lie on a network's file system.
    """

    def __init__(self, folder: Path, largest: int = _LARGEST) -> None:
        self._path, self._largest = folder.expanduser() / _FILE, largest
        self._said = False

    def get(self, keys: Collection[str]) -> dict[str, Reply]:
        """Return the replies that are kept under some of the keys."""

        def read(database: sqlite3.Connection) -> dict[str, Reply]:
            query = "SELECT reply FROM replies WHERE key = ?"
            rows = {key: database.execute(query, (key,)).fetchone() for key in keys}
            return {key: reply for key, row in rows.items() if row and (reply := _unpacked(row[0]))}

        return self._with_database(read) or {}

    def put(self, replies: Mapping[str, Reply]) -> None:
        """Keep replies, all or none of them, and drop the oldest quarter where the file gets too large."""

        def write(database: sqlite3.Connection) -> None:
            rows = [(key, _packed(reply)) for key, reply in replies.items()]
            database.executemany("INSERT OR REPLACE INTO replies (key, reply) VALUES (?, ?)", rows)
            if _bytes_in_use(database) > self._largest:
                database.execute(
                    "DELETE FROM replies WHERE rowid IN "
                    "(SELECT rowid FROM replies ORDER BY rowid LIMIT (SELECT count(*) / 4 FROM replies))"
                )

        self._with_database(write)

    def _with_database(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Work in one transaction on a new connection, as threads and forked processes need; None where it fails."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_LOCK_S)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply BLOB)")
                return work(database)
        except (sqlite3.Error, OSError) as error:
            self._give_way(error)
            return None

    def _give_way(self, error: Exception) -> None:
        """Say what is wrong; move a file that is no longer SQLite's aside, for a new one."""
        if getattr(error, "sqlite_errorcode", None) in _LOST:
            aside = self._path.with_name(f"{_FILE}.broken-{time.time_ns()}")
            with contextlib.suppress(OSError):  # another run may have moved it
                os.replace(self._path, aside)
            logger.warning(
                "the cache of verdicts was corrupt (%s): moved it to %s and started a new one", error, aside
            )
        elif not self._said:
            self._said = True
            logger.warning("the cache of verdicts, %s, cannot be used: %s; models are asked again", self._path, error)


def _bytes_in_use(database: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def _packed(reply: Reply) -> bytes:
    return zlib.compress(json.dumps([reply.text, reply.value, reply.cut, reply.steps]).encode())


def _unpacked(data: Any) -> Reply | None:
    """Unpack a reply; None if it is none."""
    try:
        text, value, is_cut, *steps = json.loads(zlib.decompress(data))  # steps came with a later version
        scores = tuple(float(score) for each in steps for score in each)
        return Reply(str(text), float(value), steps=scores, cut=bool(is_cut), cached=True)
    except (TypeError, ValueError, zlib.error):
        return None
