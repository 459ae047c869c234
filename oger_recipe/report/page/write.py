"""Writes the page: its markup, styles and scripts, and the data that they show."""

import base64
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import oger_recipe
from oger_recipe.base.files import atomic_write
from oger_recipe.report.metric_table import lookup
from oger_recipe.report.page.comparing import comparisons, names_of
from oger_recipe.report.page.payload import ends, of_run, rounded
from oger_recipe.report.page.recipe import differences
from oger_recipe.report.page.rollouts import Reading
from oger_recipe.report.page.samples import Samples, pack, samples_of_run
from oger_recipe.report.run_state import read_settings

Record = dict[str, Any]

STYLES = ("vendor/uPlot.min.css", "page.css", "samples.css")
SCRIPTS = (  # in the order of the page's sections
    "vendor/uPlot.iife.min.js", "base.js", "charts.js", "heat.js", "panels.js",
    "learning.js", "health.js", "rewards.js",
    "browse.js", "texts.js", "rows.js", "group.js", "rollouts.js", "evaluations.js", "samples.js",
    "recipe.js", "metrics.js",
)  # fmt: skip
# Of a page: what a mail takes and a browser opens at once. All runs of a page share it.
MOST_BYTES = 5_000_000
_PACKED = 3 / 4  # bytes of a character of base64


def write_page(run_dirs: Sequence[Path], path: Path, read: Callable[[], None] = lambda: None) -> None:
    """Write one HTML file about the runs, which opens from disk and loads nothing.

    read: is called after every file of samples, of which there may be hundreds.
    """
    runs = [of_run(run_dir, name, len(run_dirs)) for run_dir, name in zip(run_dirs, names_of(run_dirs), strict=True)]
    evaluated = [[each["step"] for each in ends(run["evaluations"])] for run in runs]
    for run, run_dir, steps in zip(runs, run_dirs, evaluated, strict=True):
        run["gains"] = rounded(comparisons([run_dir, run_dir], steps)) if len(steps) > 1 else []
    report = _report(runs, run_dirs, evaluated)
    parts = _assets()
    left = MOST_BYTES - sum(map(len, parts.values())) - len(pack(report)) / _PACKED
    samples = _samples(run_dirs, evaluated, int(left * _PACKED), read)
    for number, (run, shown) in enumerate(zip(runs, samples, strict=True)):
        run |= _of_samples(shown, f"samples-{number}")
    blocks = {"report": pack(report)} | {f"samples-{number}": each.packed for number, each in enumerate(samples)}
    text = parts.pop("page")
    for name, part in (parts | {"data": "\n".join(_block(*block) for block in blocks.items())}).items():
        text = text.replace(f"<!-- {name} -->", part)
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _samples(
    run_dirs: Sequence[Path], evaluated: Sequence[Sequence[int]], room: int, read: Callable[[], None]
) -> list[Samples]:
    """Pack the samples of all runs into ``room`` bytes in equal parts; what a small run leaves goes to larger ones."""
    found: dict[int, Samples] = {}
    for number in sorted(range(len(run_dirs)), key=lambda number: Reading.of(run_dirs[number]).written):
        part = max(room // (len(run_dirs) - len(found)), 0)
        found[number] = samples_of_run(run_dirs[number], evaluated[number], part, read)
        room -= len(found[number].packed)
    return [found[number] for number in range(len(run_dirs))]


def _report(runs: list[Record], run_dirs: Sequence[Path], evaluated: Sequence[Sequence[int]]) -> Record:
    """Make what the page loads at once; what is known of samples only is added later."""
    names = dict.fromkeys(name for run in runs for name in run["metrics"])
    return {
        "written": time.time(),
        "oger": oger_recipe.__version__,
        "metrics": {name: vars(row) for name in names if (row := lookup(name)) is not None},
        "runs": runs,
        "comparisons": rounded(comparisons(run_dirs, [steps[-1] if steps else None for steps in evaluated])),
        "recipe_differences": differences([read_settings(run_dir)[1] for run_dir in run_dirs]),
    }


def _of_samples(samples: Samples, block: str) -> Record:
    numbers = samples.numbers
    return {
        "distributions": rounded(numbers.distributions()),
        "steps_of_reasoning": rounded(numbers.steps_of_reasoning()),
        "samples": {"block": block} | samples.about,
    }


def _assets() -> dict[str, str]:
    """Return the page's markup, its styles and its scripts."""
    folder = files("oger_recipe.report.page") / "assets"
    named = {"page": ("page.html",), "styles": STYLES, "scripts": SCRIPTS}
    return {
        part: "\n".join((folder / name).read_text(encoding="utf-8") for name in names) for part, names in named.items()
    }


def _block(name: str, packed: bytes) -> str:
    """Write data so that nothing in it can end the script, whatever a model wrote."""
    return f'<script type="application/octet-stream" id="{name}">{base64.b64encode(packed).decode()}</script>'
