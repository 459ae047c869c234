"""A run as a screen that is drawn again and again: progress, trends, evaluations, warnings and one rollout."""

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oger_recipe.base.errors import cut
from oger_recipe.base.files import parse_record, read_record
from oger_recipe.report.console import PHASES, STARTING, evaluation_text, moment, pace, waiting_line
from oger_recipe.report.groups import first_row, sampled_steps
from oger_recipe.report.metric_table import FIRST, Metric, lookup
from oger_recipe.report.run_state import Note, Record, RunLog, RunState, Tail, is_number, state_of
from oger_recipe.report.runs import state_text
from oger_recipe.report.summary import add_step, clock, kept_evaluations, result
from oger_recipe.report.terminal import figure, plain, sparkline, verdict_text
from oger_recipe.run_folder.records import RESTARTING

_OF_SOURCE = "reward/{source}"
# The trends, in this order, of metrics that are known and not 0 throughout.
TRENDS = (
    *FIRST, "hybrid_batch/kl", _OF_SOURCE, "oger/divergence", "rollout/steps", "critic_loss",
    "explained_variance", "tokens_per_second",
)  # fmt: skip
_WHOLE = 1000  # lines of a screen that leaves out nothing
_ROOMY = 30  # lines of a screen with more than one evaluation and one warning
_LAST = 3  # evaluations and warnings
_NOTE = 160  # letters of a warning on a screen
_BAR = 60  # columns at most
_PROMPT, _TEXT = 300, 1500  # letters of the rollout that are shown
_ALONE = {
    "began": STARTING, "ready": "ready", "trained": "after the last step", "finished": "saving the model",
}  # fmt: skip


class Watch:
    """Follows a run; `update` reads what is new, `screen` draws it."""

    def __init__(self, folder: Path) -> None:
        self._log, self._metrics = RunLog(folder), Tail(folder / "metrics.jsonl")
        self._steps: list[Record] = []  # the metrics of TRENDS, by step
        self._rollout: tuple[int, Record] | None = None
        self.state: RunState

    def update(self) -> RunState:
        """Read what is new, and return the state of the run."""
        anew, lines = self._metrics.read()
        if anew:
            self._steps = []
        for line in lines:
            self._remember(parse_record(line) or {})
        if self._log.update() or self._rollout is None:
            self._rollout = self._newest_rollout() or self._rollout
        self.state = state_of(self._log)
        return self.state

    def _remember(self, record: Record) -> None:
        if record.get("step") is not None:
            kept = {name: value for name, value in record.items() if is_number(value) and _trend(name)}
            add_step(self._steps, kept | {"step": record["step"]})

    def _newest_rollout(self) -> tuple[int, Record] | None:
        steps = sampled_steps(self._log.folder)
        row = first_row(self._log.folder, steps[-1]) if steps else None
        return (steps[-1], row) if row else None

    def screen(self, console: Console, *, height: int = _WHOLE) -> RenderableType:
        """Draw the run for so many lines; what matters least comes last, where a small terminal cuts it off."""
        blocks = console.encoding.startswith("utf")
        rows, last = max(4, (height - 12) // 2), _LAST if height >= _ROOMY else 1
        note = _NOTE if height < _WHOLE else _WHOLE
        parts = [
            self._header() + plain("  q quits, the run continues" if height < _WHOLE else "", "dim"),
            self._progress(console.width),
            self._trends(rows, console.width, blocks=blocks),
            self._said("evaluations", [evaluation_text(each) for each in self._evaluations()[-last:]]),
            self._said("warnings and notes", [_note_text(each, note) for each in self.state.notes[-last:]]),
            self._rollout_text(),
        ]
        return Group(*(part for part in parts if part is not None))

    def result(self) -> RenderableType | None:
        """Say how a finished run did: its scores before and after training. None for others, or without a summary."""
        summary = read_record(self._log.folder / "summary.json")
        if self.state.state != "finished" or not summary:
            return None
        return Group(Text(), plain(result(summary, self._log.folder)))

    def _evaluations(self) -> list[Record]:
        return kept_evaluations(self._log.milestones)

    def _header(self) -> Text:
        state = self.state
        text = plain(state.folder, "bold") + plain(f"  recipe {state.recipe}  " if state.recipe else "  ")
        text += state_text(state)
        if len(state.attempts) > 1:
            text += plain(f"  attempt {len(state.attempts)}, resumed from step {state.attempts[-1].resumed_at}")
        return text

    def _progress(self, width: int) -> RenderableType:
        log, planned = self._log, self.state.planned_steps
        bar = Table.grid(padding=(0, 1))
        steps = f"step {self.state.step}/{planned or '?'}"
        bar.add_row(
            plain(steps),
            ProgressBar(planned or 1, self.state.step, width=min(max(width - 50, 10), _BAR)),
            self._times(),
        )
        if self.state.state != "running":
            return bar
        since = max([*log.moments[-1:], (log.milestone or {}).get("time", 0.0)])
        said = waiting_line(doing(log), phase_text(log), max(time.time() - since, 0) if since else 0)
        return Group(bar, plain(said, "cyan"))

    def _times(self) -> Text:
        moments, planned = self._log.moments, self.state.planned_steps
        if self.state.state == "running" and planned and len(moments) > 1:
            return plain(pace(moments, planned - self.state.step))
        return plain(f"{clock(self.state.seconds)} in total")

    def _trends(self, rows: int, width: int, *, blocks: bool) -> RenderableType | None:
        series = self._series()
        if not series:
            return None
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=True, header_style="dim")
        table.add_column("metric", no_wrap=True)
        table.add_column("last", justify="right", no_wrap=True)
        table.add_column(f"steps {self._steps[0]['step']} to {self._steps[-1]['step']}", no_wrap=True)
        table.add_column("range", no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis", style="yellow")
        for name, values in list(series.items())[:rows]:
            known = [value for value in values if value is not None]
            line = sparkline(values, min(max(width // 4, 10), 40), blocks=blocks)
            span = f"{figure(min(known))} to {figure(max(known))}"
            metric = lookup(name)
            title = metric.title if metric and "{" not in metric.name else name
            table.add_row(plain(title), plain(figure(known[-1])), line, span, concern(metric, known[-1]))
        return Group(Text(), table)

    def _series(self) -> dict[str, list[float | None]]:
        """Return the values by step of each trend that is known and not 0 throughout."""
        names = dict.fromkeys(name for record in self._steps for name in record if name != "step")
        ordered = sorted(names, key=lambda name: TRENDS.index(_trend(name) or ""))
        series = {name: [record.get(name) for record in self._steps] for name in ordered}
        series = {name: values for name, values in series.items() if any(values)}
        of_sources = [name for name in series if _trend(name) == _OF_SOURCE]
        for name in of_sources if len(of_sources) == 1 else ():
            del series[name]  # it is the reward itself
        return series

    def _said(self, title: str, lines: list[str]) -> RenderableType | None:
        if not lines:
            return None
        return Group(Text(), Text(title, "dim"), *(plain(line) for line in lines))

    def _rollout_text(self) -> RenderableType | None:
        if self._rollout is None:
            return None
        step, row = self._rollout
        title = Text(f"a rollout of step {step}: ", "dim") + verdict_text(row)
        prompt, text = (
            shortened(str(row[name]).strip(), most) for name, most in (("prompt", _PROMPT), ("text", _TEXT))
        )
        return Group(Text(), title, plain(prompt, "dim"), plain(text))


def doing(log: RunLog) -> str:
    """Say what the run is at, as the console of the run says it."""
    last = log.milestone
    if last is None:
        return "preparing task and data"
    if last["event"] == "evaluating":
        return f"evaluating {moment(last)}"
    if last["event"] == RESTARTING:
        return f"waiting for restart {last['restart']} of {last['of']}"
    if last["event"] in _ALONE:
        return _ALONE[last["event"]]
    planned = log.planned_steps
    return "after the last step" if planned is not None and log.step >= planned else f"step {log.step + 1}"


def phase_text(log: RunLog) -> str:
    phase = log.phase or {}
    name = str(phase.get("phase", ""))
    try:
        return PHASES.get(name, name).format(**phase)
    except KeyError:  # of another version
        return name


def _note_text(note: Note, most: int) -> str:
    return f"step {note.step}: {cut(note.text, most)}"


def concern(metric: Metric | None, value: float) -> str:
    """Say which range a value has left; empty for one within it, or without a range."""
    if metric is None or metric.healthy is None:
        return ""
    low, high = metric.healthy
    within = (low is None or value >= low) and (high is None or value <= high)
    return "" if within else f"! {metric.healthy_text.partition(';')[0]}"


def shortened(text: str, most: int) -> str:
    """Cut the middle out of a long text: questions and answers stand at the ends."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[len(text) - most // 2 :]}"


def _trend(name: str) -> str | None:
    metric = lookup(name)
    return metric.name if metric and metric.name in TRENDS else None
