"""The policy's own earlier correct rollouts, kept as further references for its later ones."""

from collections import defaultdict, deque
from pathlib import Path

from oger_recipe.files import append_json, atomic_write, read_jsonl, write_jsonl


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
