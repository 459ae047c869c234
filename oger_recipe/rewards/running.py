"""What a run knows of its sources' earlier values, for those with ``normalize: running``; kept beside the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from oger_recipe.algorithm.normalize import Running
from oger_recipe.files import append_json, read_jsonl

NAME = "reward_statistics.jsonl"


def read_running(run_dir: Path, step: int) -> dict[str, Running]:
    """Read each source's statistics after ``step``."""
    records = [record for record in read_jsonl(run_dir / NAME) if record["step"] <= step]
    return {name: Running(**known) for name, known in records[-1]["sources"].items()} if records else {}


def keep_running(run_dir: Path, step: int, running: Mapping[str, Running]) -> None:
    """Append the statistics after ``step``."""
    if running:
        known = {name: asdict(each) for name, each in running.items()}
        append_json(run_dir / NAME, {"step": step, "sources": known})
