"""Writes the page: its markup, styles and scripts, and the data that they show."""

import base64
import gzip
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import oger_recipe
from oger_recipe.base.files import atomic_write, to_json
from oger_recipe.report.page.payload import of_run, samples_of_run

STYLES = ("vendor/uPlot.min.css", "page.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "base.js")


def write_page(run_dirs: Sequence[Path], path: Path) -> None:
    """Write one HTML file about the runs, which opens from disk and loads nothing."""
    blocks = {f"samples-{number}": samples_of_run(run_dir) for number, run_dir in enumerate(run_dirs)}
    runs = [of_run(run_dir, block) for run_dir, block in zip(run_dirs, blocks, strict=True)]
    report = {"version": 1, "written": time.time(), "oger": oger_recipe.__version__, "runs": runs}
    assets = files("oger_recipe.report.page") / "assets"
    text = (assets / "page.html").read_text(encoding="utf-8")
    parts = {
        "styles": "\n".join((assets / name).read_text(encoding="utf-8") for name in STYLES),
        "data": "\n".join(_block(name, data) for name, data in ({"report": report} | blocks).items()),
        "scripts": "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _block(name: str, data: Any) -> str:
    """Pack data so that nothing in it can end the script, whatever a model wrote."""
    packed = base64.b64encode(gzip.compress(to_json(data).encode())).decode()
    return f'<script type="application/octet-stream" id="{name}">{packed}</script>'
