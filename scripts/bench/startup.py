"""Measures a start, from command to first rollouts: seconds by milestone, and processor time by process.

The default job's size, without warm start and evaluation. Sides take turns: the recipe with and without the encoder,
and plain OpenRLHF on the same machine patches, which has its data and its policy prepared.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

import psutil
from recipe_runs import SIDES, run, step_events
from step_overhead import side_command, take_turns

ROLES = {
    "RolloutActor": "rollout actor", "EngineCore": "engine", "PolicyModelActor": "policy", "PPOTrainer": "controller",
    "template": "template",
    "cli.train": "command", "plain_openrlhf": "command", "raylet": "Ray", "gcs_server": "Ray", "Agent": "Ray",
}  # fmt: skip


class Watch:
    """Returns seconds of processor time by role, up to the first step's end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.by_process = folder, {}

    def __call__(self, process: subprocess.Popen) -> dict[str, float]:
        while process.poll() is None:
            time.sleep(0.25)
            if len(step_events(self.folder)) < 2:
                self._read(process)
        totals: dict[str, float] = {}
        for role, seconds in self.by_process.values():
            totals[role] = totals.get(role, 0.0) + seconds
        return totals

    def _read(self, process: subprocess.Popen) -> None:
        try:
            parent = psutil.Process(process.pid)
            children = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for child in children:
            try:
                title, times = " ".join(child.cmdline()), child.cpu_times()
            except psutil.Error:
                continue
            role = next((role for part, role in ROLES.items() if part in title), "other")
            self.by_process[child.pid] = (role, times.user + times.system)


def measure(side: str, folder: Path, earlier: Path | None) -> dict:
    command, environment = side_command(side, "default", 2, folder, earlier)
    if side != SIDES[0]:
        command += ["--oger.task.warm_start_steps", "1"]
    started = time.time()
    processor = run(command, folder.with_suffix(".log"), environment, Watch(folder))
    ready, first = step_events(folder)[:2]
    after_rollouts = first["timing/step_total"] - first["timing/generation"]
    return {"ready": ready["time"] - started, "rollouts": first["time"] - after_rollouts - started} | processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = take_turns(args.rounds, measure)
    roles = list(dict.fromkeys([*ROLES.values(), "other"]))
    print("seconds: of the clock, then of the processor up to the first step's end\n")
    print(f"| side | first prompt sent | first rollouts (least to most) | {' | '.join(roles)} |")
    print("|---" * (3 + len(roles)) + "|")
    for side, runs in results.items():
        ready, rollouts = (sorted(one[name] for one in runs) for name in ("ready", "rollouts"))
        spread = f"{statistics.median(rollouts):.1f} ({rollouts[0]:.1f} to {rollouts[-1]:.1f})"
        parts = " | ".join(f"{statistics.median(one.get(role, 0.0) for one in runs):.1f}" for role in roles)
        print(f"| {side} | {statistics.median(ready):.1f} | {spread} | {parts} |")
    if args.out:
        args.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
