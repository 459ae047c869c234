"""Follows events.jsonl of a run and shows it: a bar, one line a step, what a step is at, and the evaluations."""

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tqdm import tqdm

from oger_recipe.report.page.write import write_page
from oger_recipe.report.summary import Report, clock
from oger_recipe.run_folder.own_files import PAGE

LONG_WAIT = 60.0  # seconds without a line after which one says what goes on, if there is no bar
REPORT_PAUSE = 10.0  # least seconds between two reports, which also take at most a twentieth of the time
RECENT_STEPS = 10  # the time left is estimated from these
PHASES = {
    "rollouts": "{done} of {of} rollouts",
    "experience": "computing log-probabilities and similarities",
    "loading": "loading {model}",
    "judges": "{done} of {of} replies of {model}",
    "training": "training",
    "weights": "sending weights to the engine",
    "saving": "saving",
    "answers": "{done} answers",
    "results": "writing the answers",
}
STARTING = "starting Ray, the engine and the policy"


class Console:
    """A run's events, shown on the console while it goes on in the main thread; its report is kept up to date."""

    def __init__(self, report: Report) -> None:
        self._events = report.run_dir / "events.jsonl"
        self._position = self._events.stat().st_size if self._events.exists() else 0  # a resumed run goes on from here
        self._report, self._news, self._next_report = report, False, math.inf
        self._console = sys.stdout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._bar: tqdm | None = None
        self._ready, self._steps, self._resumed_at = False, 0, 0
        self._sources: list[str] = []
        self._moments: list[float] = []  # when training began and each step ended, by the run's own clock
        self._doing, self._phase, self._since = STARTING, "", time.monotonic()
        self._said = self._since  # when a line was written

    def __enter__(self) -> None:
        self._say(f"{self._doing} ...")
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._show_new()
        self._close_bar()
        if self._ready:
            self._report.finish(self._say, finished=kind is None)

    def _follow(self) -> None:
        while not self._stop.wait(0.3):
            self._show_new()
            self._show_time()
            self._report_news()

    def _show_new(self) -> None:
        if not self._events.exists():
            return
        with self._events.open(encoding="utf-8") as file:
            file.seek(self._position)
            while (line := file.readline()).endswith("\n"):
                self._position = file.tell()
                self._show(json.loads(line))

    def _show(self, event: dict[str, Any]) -> None:
        """Call the method of the event's name; skip events without one."""
        show = getattr(self, f"_on_{event['event']}", None)
        if show is not None:
            show(event)

    def _on_ready(self, event: dict[str, Any]) -> None:
        self._ready, self._steps, self._resumed_at = True, event["steps"], event["resumed_at"]
        self._sources = event.get("sources", [])
        resumed = f", resuming after step {event['resumed_at']}" if event["resumed_at"] else ""
        asked = event.get("asked") or 0
        fewer = f" (train.num_episodes is over before the {asked} asked for)" if asked > event["steps"] else ""
        self._say(f"ready after {time.monotonic() - self._since:.0f} s: {event['steps']} steps{fewer}{resumed}")

    def _on_training(self, event: dict[str, Any]) -> None:
        self._moments = [event["time"]]
        self._next_report = time.monotonic() + REPORT_PAUSE
        self._open_bar()
        self._begin_step(self._resumed_at + 1)

    def _on_phase(self, event: dict[str, Any]) -> None:
        self._phase = PHASES.get(event["phase"], event["phase"]).format(**event)
        if self._bar is not None:
            self._bar.set_postfix_str(self._phase)

    def _on_step(self, event: dict[str, Any]) -> None:
        self._moments.append(event["time"])
        self._say(self._line(event))
        self._begin_step(event["step"] + 1)
        self._news = True
        if self._bar is not None:
            self._bar.update(event["step"] - self._bar.n)

    def _on_note(self, event: dict[str, Any]) -> None:
        self._say(event["text"])

    _on_alarm = _on_alarm_cleared = _on_note

    def _on_trained(self, event: dict[str, Any]) -> None:
        self._close_bar()

    def _on_evaluating(self, event: dict[str, Any]) -> None:
        self._begin(f"evaluating {moment(event)}")
        self._say(f"{self._doing} ...")

    def _on_evaluated(self, event: dict[str, Any]) -> None:
        self._news = True
        self._say(evaluation_text(event))
        self._begin_step(event["step"] + 1)

    def _on_finished(self, event: dict[str, Any]) -> None:
        self._begin("saving the model")

    def _begin(self, what: str) -> None:
        self._doing, self._phase, self._since = what, "", time.monotonic()

    def _begin_step(self, step: int) -> None:
        self._begin(f"step {step:>4}/{self._steps}" if step <= self._steps else "after the last step")

    def _open_bar(self) -> None:
        self._bar = tqdm(
            total=self._steps,
            initial=self._resumed_at,
            desc="training",
            file=self._console,
            disable=None,
            unit="step",
        )

    def _line(self, event: dict[str, Any]) -> str:
        """Write a step's line, with the times if no bar has them."""
        line = step_line(event, self._steps, self._sources)
        return line if self._has_bar() else f"{line} | {pace(self._moments, self._steps - event['step'])}"

    def _has_bar(self) -> bool:
        return self._bar is not None and not self._bar.disable

    def _show_time(self) -> None:
        if self._has_bar():
            self._bar.refresh()  # type: ignore[union-attr]  # for its clock
        elif time.monotonic() - self._said >= LONG_WAIT:
            self._say(waiting_line(self._doing, self._phase, time.monotonic() - self._since))

    def _report_news(self) -> None:
        began = time.monotonic()
        if not self._news or began < self._next_report:
            return
        self._news = False
        run_dir = self._report.run_dir
        with contextlib.suppress(Exception):  # the last report says what is wrong
            self._report.write()
            write_page([run_dir], run_dir / PAGE)
        now = time.monotonic()
        self._next_report = now + max(REPORT_PAUSE, 20 * (now - began))

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _say(self, text: str) -> None:
        tqdm.write(text, file=self._console)
        self._console.flush()
        self._said = time.monotonic()


def moment(event: dict[str, Any]) -> str:
    return f"after step {event['step']}" if event["when"] == "during" else f"{event['when']} training"


def evaluation_text(event: dict[str, Any]) -> str:
    """Write one line for an evaluation; with several benchmarks one for each, and their average above."""
    benchmarks = event.get("benchmarks", {})
    several = len(benchmarks) > 1
    text = f"{moment(event)}: {'average ' if several else ''}{_scores(event)} on {event['n_problems']} problems"
    rows = [name for name in benchmarks if name != "average"] if several else []
    width = max(map(len, rows), default=0)
    return "\n".join(
        [text, *(f"  {name:<{width}}  {_scores(benchmarks[name])} on {benchmarks[name]['problems']}" for name in rows)]
    )


def _scores(metrics: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.3f}" for key, value in metrics.items() if "_at_" in key and isinstance(value, float)
    )


def waiting_line(doing: str, phase: str, seconds: float) -> str:
    """Say what goes on while nothing ends, and since when."""
    return " | ".join(part for part in (doing, phase, f"for {clock(seconds)}") if part)


def pace(moments: Sequence[float], steps_left: int) -> str:
    """Say how long it took since the first moment, and how long the steps left take at the latest pace."""
    recent = moments[-RECENT_STEPS - 1 :]
    left = steps_left * (recent[-1] - recent[0]) / max(len(recent) - 1, 1)
    return f"{clock(moments[-1] - moments[0])} elapsed, {clock(left)} left"


def step_line(metrics: dict[str, Any], steps: int, sources: Sequence[str] = ()) -> str:
    """Write one line for one step's metrics, without those that its method lacks or that are 0 in this step.

    The reward is the one that is trained on; with several sources, each one's mean before its weight follows.
    """
    said = ", ".join(_said_by(source, metrics) for source in sources) if len(sources) > 1 else ""
    parts = [
        f"step {metrics['step']:>4}/{steps}",
        f"solved {metrics['rollout/solve_rate']:.3f}",
        f"reward {metrics['oger/on_reward']:.3f}" + (f" ({said})" if said else ""),
        _if_any(metrics, "{:.1f} steps of reasoning", "rollout/steps"),
        _if_any(metrics, "entropy {:.3f}", "rollout/entropy"),
        _if_any(metrics, "divergence {:.3f}", "oger/divergence"),
        _if_any(metrics, "replaced {:.0f}", "oger/replaced")
        or _if_any(metrics, "teachers' share {:.3f}", "oger/prefix_ratio"),
        _if_any(metrics, "kl {:.4f}", "hybrid_batch/kl"),
        _if_any(metrics, "critic loss {:.4f}", "critic_loss"),
        _if_any(metrics, "explained variance {:.3f}", "explained_variance"),
        f"length {metrics['rollout/response_length']:.0f}",
        f"{metrics['tokens_per_second']:.0f} tokens/s",
        _if_any(metrics, "{:.0f} NOT GRADED", "rollout/reward_error"),
        _if_any(metrics, "updates left out by kl_stop: {:.0f}", "kl_stopped_updates"),
        _if_any(metrics, "{:.0f} UPDATES SKIPPED", "skipped_updates"),
    ]
    return " | ".join(part for part in parts if part)


def _said_by(source: str, metrics: dict[str, Any]) -> str:
    """Write a source's mean, and on how many rows it failed; a dash where it has no value."""
    value = metrics.get(f"reward/{source}")
    text = f"{source} -" if value is None or math.isnan(value) else f"{source} {value:.3f}"
    return text + _if_any(metrics, " [{:.0f} FAILED]", f"reward/{source}/failed")


def _if_any(metrics: dict[str, Any], text: str, key: str) -> str:
    return text.format(metrics[key]) if metrics.get(key) else ""
