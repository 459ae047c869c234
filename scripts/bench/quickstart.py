"""Measures the quickstart as a newcomer has it: a fresh clone with an empty home, installed and trained.

Without the downloads that pip has kept, and without cached problems and policy. Prints seconds of the three parts.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from recipe_runs import ROOT, step_events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        clone, home = Path(base) / "clone", Path(base) / "home"
        home.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OGER_", "VIRTUAL_"))}
        environment |= {"HOME": str(home)}
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        began = time.time()
        subprocess.run(["bash", "scripts/setup.sh", "--cpu"], cwd=clone, env=environment, check=True)
        installed = time.time()
        subprocess.run(["bash", "scripts/quickstart.sh"], cwd=clone, env=environment, check=True)
        ended = time.time()
        first = next(event for event in step_events(clone / "runs" / "countdown_cpu") if event["event"] == "step")
    found = {
        "installation": installed - began,
        "then until the first step's end": first["time"] - installed,
        "whole": ended - began,
    }
    print("\n".join(f"{part}: {seconds:.0f} s" for part, seconds in found.items()))
    if args.out:
        args.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
