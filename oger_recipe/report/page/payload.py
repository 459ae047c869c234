"""What the page shows of a run, read from its folder."""

import json
from pathlib import Path
from typing import Any

from oger_recipe.base.files import read_jsonl
from oger_recipe.report.summary import kept_evaluations, last_attempts

Record = dict[str, Any]


def of_run(run_dir: Path, block: str) -> Record:
    """Return the run's part of the page but its samples, which lie in the data block named ``block``."""
    steps = last_attempts(read_jsonl(run_dir / "metrics.jsonl"))
    names = dict.fromkeys(name for record in steps for name in record if name != "step")
    events = read_jsonl(run_dir / "events.jsonl")
    return {
        "name": run_dir.resolve().name,
        "folder": str(run_dir),
        "command": (run_dir / "command.sh").read_text(),
        "environment": json.loads((run_dir / "environment.json").read_text()),
        "steps": [record["step"] for record in steps],
        "metrics": {name: [record.get(name) for record in steps] for name in names},
        "evaluations": [event for event in kept_evaluations(events)],
        "notes": [event for event in events if event["event"] == "note"],
        "samples": {"block": block},
    }


def samples_of_run(run_dir: Path) -> Record:
    """Return the run's samples: its groups and its evaluated answers."""
    groups: list[Record] = []
    for path in sorted((run_dir / "samples").glob("step_*.jsonl")):
        step = int(path.stem.removeprefix("step_"))
        for line in read_jsonl(path):
            shared = {"step": step} | {key: line.pop(key) for key in ("uid", "prompt", "task", "answer")}
            if not groups or (groups[-1]["step"], groups[-1]["uid"]) != (step, shared["uid"]):
                groups.append(shared | {"rows": []})
            groups[-1]["rows"].append(line)
    return {"groups": groups, "evaluations": []}
