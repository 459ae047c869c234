"""A list that lies on disk."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

from oger_recipe.base.errors import RecipeError

_T = TypeVar("_T")


class DiskList(Sequence[_T]):
    """Items in a file without a name, in the folder for temporary files: the texts of a training set need not fit into
    memory.

    What is read is a copy, as pickle makes it; a part (``[1:9]``) reads the same file. Raises RecipeError where the
    disk has no room.
    """

    def __init__(self, items: Iterable[_T] = ()) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)
        self._starts, self._sizes = array("q"), array("q")
        for item in items:
            self.append(item)

    def append(self, item: _T) -> None:
        content = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        start = self._file.seek(0, os.SEEK_END)
        try:
            written = self._file.write(content)
            while written < len(content):  # on a full disk a part is written, and the next call says why
                written += self._file.write(content[written:])
        except OSError as error:
            raise RecipeError(
                f"{tempfile.gettempdir()} has no room for a dataset's rows while they are prepared "
                f"({error.strerror}): set TMPDIR to a folder with room for twice the dataset"
            ) from None
        self._starts.append(start)
        self._sizes.append(len(content))

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> _T: ...
    @overload
    def __getitem__(self, place: slice) -> DiskList[_T]: ...
    def __getitem__(self, place: int | slice) -> _T | DiskList[_T]:
        if isinstance(place, slice):
            part = copy.copy(self)
            part._starts, part._sizes = self._starts[place], self._sizes[place]
            return part
        item: _T = pickle.loads(os.pread(self._file.fileno(), self._sizes[place], self._starts[place]))
        return item
