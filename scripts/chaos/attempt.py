"""One attempt at a run: the command, its events, and its end."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from plan import phase_of
from processes import MARK, Tree, send, shared_files, wait

from oger_recipe.run_folder import checkpoints

START_LIMIT_S = 900.0  # until a step is trained, on a busy machine


class Ended(Exception):
    """The attempt ended before it came where a trial wanted it."""


class Attempt:
    """``oger train`` in a run folder, from the newest checkpoint where there is one; ended with the block.

    temporary: a folder with a short path, which is empty once the attempt has ended.
    """

    def __init__(
        self, recipe: Path, run_dir: Path, temporary: Path, *flags: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.run_dir, self.temporary = run_dir, temporary
        newest = checkpoints.newest_whole(checkpoints.found(run_dir / "checkpoints"))
        self.resumed_at = newest.step if newest else 0
        again = ["--ckpt.load_enable"] if newest else ["--overwrite"]
        command = [sys.executable, "-m", "oger_recipe.cli.train", "--recipe", str(recipe)]
        for folder in (temporary, run_dir.parent):
            folder.mkdir(parents=True, exist_ok=True)
        mark = uuid.uuid4().hex
        own = {"RAY_TMPDIR": str(temporary), "TMPDIR": str(temporary), MARK: mark}
        own["TORCHINDUCTOR_CACHE_DIR"] = str(run_dir.parent / "inductor")  # a cache: it may stay
        self.shared_before = shared_files()
        self.began = time.time()
        self._terminal = run_dir.with_suffix(".terminal")
        with self._terminal.open("w") as terminal:
            self._process = subprocess.Popen(
                [*command, "--oger.run_dir", str(run_dir), *again, *flags],
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=terminal,
                env=os.environ | own | dict(environment or {}),
                start_new_session=True,
            )
        self.tree = Tree(self._process.pid, mark)
        self._changed, self._events = 0, list[dict[str, Any]]()

    def events(self) -> list[dict[str, Any]]:
        """Return the events of this attempt so far."""
        path = self.run_dir / "events.jsonl"
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return []
        if changed != self._changed:
            lines = path.read_text().split("\n")[:-1]  # the last one may still be written
            read = [json.loads(line) for line in lines]
            self._changed, self._events = changed, [each for each in read if each["time"] >= self.began]
        return self._events

    def where(self, at: float) -> tuple[str, int]:
        """Return phase and step at a time, by the events."""
        phase, step = "start", self.resumed_at + 1
        for event in self.events():
            if event["time"] <= at:
                phase, step = phase_of(event) or phase, event.get("step") or step
        return phase, step

    def until_phase(self, phase: str, step: int) -> None:
        """Raises Ended."""
        self._until(lambda: any(phase_of(each) == phase and each.get("step") == step for each in self.events()))

    def until_saved(self, step: int) -> None:
        """Raises Ended."""
        manifest = self.run_dir / "checkpoints" / f"global_step{step}.json"
        self._until(lambda: manifest.exists() and "facts" in json.loads(manifest.read_text()))

    def _until(self, condition: Callable[[], bool]) -> None:
        wait(lambda: condition() or self.code is not None, START_LIMIT_S)
        if not condition():
            raise Ended(f"exit code {self.code} after {time.time() - self.began:.0f} s:\n{self.text()[-2000:]}")

    def steps_after(self, at: float) -> int:
        return sum(event["event"] == "step" for event in self.events() if event["time"] > at)

    def ended(self, limit_s: float) -> bool:
        """Wait for its end, and say whether it came within the limit."""
        return wait(lambda: self.code is not None, limit_s)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def text(self) -> str:
        return self._terminal.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tree.look()
        send(self.tree.alive(), [signal.SIGKILL])
        self._process.wait()
