"""Follows events.jsonl of a run and shows it: a bar, one line a step, and the evaluations."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm


class Progress:
    """Shows a run's events on the console while the run goes on in the main thread."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._position = events.stat().st_size if events.exists() else 0  # a resumed run goes on from here
        self._console = sys.stdout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._bar: tqdm | None = None
        self._started = time.time()
        self._steps = 0

    def __enter__(self) -> None:
        self._say("starting Ray, the engine and the policy ...")
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._show_new()
        if self._bar is not None:
            self._bar.close()

    def _follow(self) -> None:
        while not self._stop.wait(0.3):
            self._show_new()

    def _show_new(self) -> None:
        if not self._events.exists():
            return
        with self._events.open(encoding="utf-8") as file:
            file.seek(self._position)
            while (line := file.readline()).endswith("\n"):
                self._position = file.tell()
                self._show(json.loads(line))

    def _show(self, event: dict[str, Any]) -> None:
        name = event["event"]
        if name == "ready":
            self._steps = event["steps"]
            resumed = f", resuming after step {event['resumed_at']}" if event["resumed_at"] else ""
            self._say(f"ready after {time.time() - self._started:.0f} s: {event['steps']} steps{resumed}")
        elif name == "training":
            self._bar = tqdm(total=self._steps, desc="training", file=self._console, disable=None, unit="step")
        elif name == "step":
            self._say(step_line(event, self._steps))
            if self._bar is not None:
                self._bar.update(event["step"] - self._bar.n)
        elif name == "note":
            self._say(event["text"])
        elif name == "trained" and self._bar is not None:
            self._bar.close()
            self._bar = None
        elif name == "evaluating":
            self._say(f"evaluating {_moment(event)} ...")
        elif name == "evaluated":
            figures = (f"{key} {value:.3f}" for key, value in event.items() if "_at_" in key)
            self._say(f"{_moment(event)}: {', '.join(figures)} on {event['n_problems']} problems")

    def _say(self, text: str) -> None:
        tqdm.write(text, file=self._console)
        self._console.flush()


def _moment(event: dict[str, Any]) -> str:
    return f"after step {event['step']}" if event["when"] == "during" else f"{event['when']} training"


def step_line(figures: dict[str, Any], steps: int) -> str:
    """One line for one step's figures; those that its method lacks, or that are 0 in this step, are left out."""
    bonus = _if_any(figures, " + bonus {:.3f}", "oger/bonus")
    of_policy = _if_any(figures, "policy entropy {:.3f}", "entropy_loss")  # known where actor.entropy_coef is set
    replaced = _if_any(figures, "replaced {:.0f}", "oger/replaced")
    parts = [
        f"step {figures['step']:>4}/{steps}",
        f"solved {figures['rollout/solve_rate']:.3f}",
        f"reward {figures['rollout/reward']:.3f}{bonus}",
        of_policy if of_policy and not bonus else f"entropy {figures['oger/entropy']:.3f}",
        _if_any(figures, "divergence {:.3f}", "oger/divergence"),
        replaced or _if_any(figures, "teachers' share {:.3f}", "oger/prefix_ratio"),
        _if_any(figures, "kl {:.4f}", "hybrid_batch/kl"),
        _if_any(figures, "critic loss {:.4f}", "critic_loss"),
        _if_any(figures, "explained variance {:.3f}", "explained_variance"),
        f"length {figures['rollout/response_length']:.0f}",
        f"{figures['tokens_per_second']:.0f} tokens/s",
        _if_any(figures, "{:.0f} NOT GRADED", "rollout/reward_error"),
        _if_any(figures, "{:.0f} UPDATES SKIPPED", "skipped_updates"),
    ]
    return " | ".join(part for part in parts if part)


def _if_any(figures: dict[str, Any], text: str, key: str) -> str:
    return text.format(figures[key]) if figures.get(key) else ""
