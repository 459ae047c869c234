"""Small multiples: panels of one unit each, in colours that everyone can tell apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oger_recipe.base.files import atomic_write

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # of Okabe and Ito
GREY = "#767676"
Line = Literal["-", "--", ":"]
# For the arms of a study: a colour and a marker that no other has, so that either alone tells them apart.
_OF_ARMS = tuple(zip((*COLOURS, "#332288", "#882255", "#999933", "#8C510A", "#44AA99"), "os^DvP*X<>hp", strict=True))
_LINES: tuple[Line, ...] = ("-", "-", "-", "-", "-", "-", "-", "--", "--", "--", ":", ":")
LETTER = 0.034  # of the axis of steps, for a letter of a label
LABEL_GAP = 0.075  # of a panel's height, between the middles of two labels


@dataclass(frozen=True)
class Style:
    """How an arm looks in every panel of a figure."""

    colour: str
    marker: str
    line: Line


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Give each name a style: solid lines first, then three dashed, then two dotted. Raises ValueError beyond 12."""
    names = list(names)
    if len(names) > len(_OF_ARMS):
        raise ValueError(f"{len(names)} arms, but {len(_OF_ARMS)} styles that can be told apart")
    known = zip(_OF_ARMS, _LINES, strict=True)
    return {name: Style(*look, line) for name, (look, line) in zip(names, known, strict=False)}


def sheet(count: int, *, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``count`` panels, row by row. It is no pyplot figure: those belong to the main thread."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.1 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for unused in grid[count:]:
        unused.remove()
    return figure, grid[:count]


def save(figure: Figure, path: Path, *, note: str = "") -> None:
    """Write the whole file or none; ``note`` stands below the panels."""
    if note:
        figure.supxlabel(note, fontsize=8, color=GREY)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=110, format="png")


def bare(panel: Axes) -> None:
    """Give a panel a faint grid, no frame above and on the right, and small numbers."""
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)


def dress(panel: Axes, title: str, *, legend: bool = True) -> None:
    """Set title, grid and whole steps; put the legend between title and curves, where it hides nothing."""
    bare(panel)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    panel.set_xlabel("step", fontsize=8)
    handles, labels = panel.get_legend_handles_labels()
    shown = legend and len(labels) > 1
    panel.set_title(title, loc="left", fontsize=9.5, pad=18 if shown else 6)
    if shown:
        panel.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(-0.02, 0.99),
            ncols=len(labels),
            fontsize=8,
            frameon=False,
            borderpad=0.2,
            handlelength=1.3,
            handletextpad=0.4,
            columnspacing=1.0,
        )


def steps_from_zero(panel: Axes, last: float, *, left: int = 0, right: int = 0) -> None:
    """Set the axis of steps from 0 to ``last``; leave room on each side for labels of so many letters."""
    span = max(last, 1)
    panel.set_xlim(-(0.03 + LETTER * left) * span, (1.03 + LETTER * right) * span)
    panel.set_xticks([tick for tick in MaxNLocator(5, integer=True).tick_values(0, span) if 0 <= tick <= span])


def from_zero(panel: Axes, least: float = 0.0) -> None:
    """Make the axis reach from 0 over all that is drawn, ``least`` long at least: noise must not look like news."""
    low, high = panel.dataLim.intervaly
    if not np.isfinite(high - low):
        return  # nothing is drawn
    low = min(low, 0.0)
    high = max(high, 0.0, low + least)
    span = high - low or 1.0
    panel.set_ylim(low - 0.02 * span, low + 1.04 * span)


def label_ends(panel: Axes, ends: Sequence[tuple[float, float, str, str]], side: str) -> None:
    """Write texts beside points (x, y, text, colour), moved apart where they would overlap."""
    low, high = panel.get_ylim()
    gap = LABEL_GAP * (high - low)
    heights = spread([y for _, y, _, _ in ends], gap, low + gap / 2, high - gap / 2)
    offset, align = (5, "left") if side == "right" else (-5, "right")
    for (x, _, text, colour), height in zip(ends, heights, strict=True):
        panel.annotate(
            text,
            (x, height),
            xytext=(offset, 0),
            textcoords="offset points",
            ha=align,
            va="center",
            fontsize=8,
            color=colour,
        )


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move values as little as possible (least squares) to be ``gap`` apart and, if that fits, in [low, high].

    Less its rank times the gap, each value has to be at least the one below it; neighbours that are not are pooled.
    """
    order = sorted(range(len(values)), key=lambda position: values[position])
    pools: list[list[float]] = []
    for rank, position in enumerate(order):
        pools.append([values[position] - rank * gap])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    bases = [_mean(pool) for pool in pools for _ in pool]
    top = max(high - gap * (len(values) - 1), low)
    placed = [0.0] * len(values)
    for rank, (position, base) in enumerate(zip(order, bases, strict=True)):
        placed[position] = min(max(base, low), top) + rank * gap
    return placed


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def band(panel: Axes, x: Sequence[float], low: Any, high: Any, colour: str) -> None:
    panel.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
