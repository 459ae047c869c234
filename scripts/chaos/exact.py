"""Compares a run that was struck with one that never was: every step once, and equal to the last bit."""

import hashlib
import json
import re
import statistics
from pathlib import Path
from typing import Any

from plan import phase_of

from oger_recipe.base.files import read_jsonl
from oger_recipe.run_folder import checkpoints

# Of time, of which rollouts an engine decodes together, or of what an earlier run has left in the cache of verdicts.
MAY_DIFFER = re.compile(r"(timing/|tokens_per_second|vllm_).*|reward/.*/(seconds|cached)")
_LATEST = 5  # times that a phase was taken: the machine may be busier than before
_SHOWN = 3  # differences in a sentence

Reference = dict[str, Any]


def reference_of(run_dir: Path) -> Reference:
    """Read what a run that ended by itself did in each step, and how long its phases took."""
    steps = {str(row["step"]): _parts(run_dir, row) for row in read_jsonl(run_dir / "metrics.jsonl")}
    return {"steps": steps, "seconds": phase_seconds(run_dir)}


def differences(run_dir: Path, reference: Reference) -> list[str]:
    """List in what a run differs up to its newest checkpoint: in nothing, where each resume was exact."""
    newest = checkpoints.newest_whole(checkpoints.found(run_dir / "checkpoints"))
    last = newest.step if newest else 0
    rows = [row for row in read_jsonl(run_dir / "metrics.jsonl") if row["step"] <= last]
    events = [each for each in read_jsonl(run_dir / "events.jsonl") if each.get("step", 0) <= last]
    expected, found = list(range(1, last + 1)), []
    for name, steps in (("metrics", rows), ("events", [each for each in events if each["event"] == "step"])):
        if [each["step"] for each in steps] != expected:
            found.append(f"{name} of steps {[each['step'] for each in steps]}, not 1 to {last}")
    for row in rows:
        ours, theirs = _parts(run_dir, row), reference["steps"][str(row["step"])]
        if row["step"] == last:  # its evaluation may come later
            ours["evaluation"] = ours["evaluation"] or theirs["evaluation"]
        found += [f"{name} of step {row['step']}{words}" for name, words in _unequal(ours, theirs)]
    return found


def _unequal(ours: dict[str, Any], theirs: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, value in ours.items():
        if value is None and theirs[name] is not None and name != "weights":
            found.append((name, " is missing"))
        elif name == "metrics" and value != theirs[name]:
            keys = sorted(key for key in value.keys() | theirs[name] if value.get(key) != theirs[name].get(key))
            found.append((name, f" differ: {', '.join(keys[:_SHOWN])}{' ...' if len(keys) > _SHOWN else ''}"))
        elif value is not None and value != theirs[name]:
            found.append((name, " differ"))
    return found


def _parts(run_dir: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Return the step's metrics but for times, and hashes of the rest; of weights where the checkpoint is kept."""
    step = row["step"]
    return {
        "metrics": {key: value for key, value in row.items() if not MAY_DIFFER.fullmatch(key)},
        "samples": _hash(run_dir / "samples" / f"step_{step:05d}.jsonl"),
        "evaluation": _hash(run_dir / "eval" / f"step_{step:05d}.jsonl"),
        "weights": _hash(run_dir / "checkpoints" / f"global_step{step}_hf" / "model.safetensors"),
    }


def _hash(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def phase_seconds(run_dir: Path) -> dict[str, float]:
    """Return the median of each phase's latest seconds, by the events of a run."""
    seconds: dict[str, list[float]] = {}
    phase, since = None, 0.0
    for event in read_jsonl(run_dir / "events.jsonl"):
        begins = phase_of(event)
        if event["event"] == "began":  # another attempt: the one before may have ended in its phase
            phase, since = begins, event["time"]
        elif begins != phase:
            if phase:
                seconds.setdefault(phase, []).append(event["time"] - since)
            phase, since = begins, event["time"]
    return {name: statistics.median(values[-_LATEST:]) for name, values in seconds.items()}


def read(path: Path) -> Reference | None:
    return json.loads(path.read_text()) if path.exists() else None
