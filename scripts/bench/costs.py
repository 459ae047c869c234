"""Measures the table of docs/costs.md, one bench after another, and writes it there. See all.sh.

What is found (runs/bench/NAME.json; NAME.txt has what was printed) is not measured again: remove it to have it anew.
Rows of the page that are not measured stay.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from recipe_runs import HERE, ROLES, ROOT, SIDES

PLAIN, WITHOUT, WITH = SIDES
BEGIN, END = "<!-- the rows that scripts/bench/all.sh writes -->", "<!-- their end -->"


def spread(values: Sequence[float], unit: str = "s", digits: int = 1) -> str:
    """Writes a median, and least and most if there are several."""
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} {unit}" if len(values) == 1 else f"{middle} {unit}, {least} to {most}"


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Writes the median of the ratios in each round: the machine's speed changes between rounds."""
    return f"{statistics.median(a / b for a, b in zip(mine, theirs, strict=True)):.2f}"


def step(found: dict[str, Any]) -> str:
    seconds = {side: [statistics.median(run["steps"]) for run in runs] for side, runs in found["results"].items()}
    parts = [f"{side} {ratio(seconds[side], seconds[PLAIN])} ({spread(seconds[side])})" for side in (WITHOUT, WITH)]
    return f"{'; '.join(parts)}; plain {spread(seconds[PLAIN])}"


def memory(found: dict[str, Any]) -> str:
    def peaks(side: str, role: str) -> list[float]:
        return [run["peaks"][role] for run in found["results"][side]]

    return "; ".join(
        f"{role} {' and '.join(ratio(peaks(side, role), peaks(PLAIN, role)) for side in (WITHOUT, WITH))}"
        for role in ROLES.values()
    )


def startup(found: dict[str, Any]) -> str:
    return "; ".join(f"{side} {spread([one['rollouts'] for one in found[side]])}" for side in (WITHOUT, WITH, PLAIN))


def rewards(found: dict[str, Any]) -> str:
    rule, *others = found
    parts = [f"{side} {ratio(found[side], found[rule])} ({spread(found[side])})" for side in others]
    return f"{'; '.join(parts)}; {rule} {spread(found[rule])}"


def throughput(found: dict[str, Any]) -> str:
    parts = []
    for size, sides in found.items():
        rates = {side.removeprefix("recipe, "): [rate for _, rate in runs] for side, runs in sides.items()}
        trl = rates.pop("TRL")
        parts.append(f"{size}: {', '.join(f'{name} {ratio(mine, trl)}' for name, mine in rates.items())}")
    return "; ".join(parts)


def token_stats(found: dict[str, Any]) -> str:
    ours, theirs = (
        {name: [run[name] for run in found["results"][side]] for name in ("bytes", "seconds")}
        for side in ("recipe", "openrlhf")
    )
    less = ratio(theirs["bytes"], ours["bytes"])
    return f"{less} times less memory; {spread(ours['seconds'])}; OpenRLHF's {spread(theirs['seconds'])}"


def encoder(found: dict[str, Any]) -> str:
    return "; ".join(f"{each['ratio']:.2f} on {each['name']}" for each in found["rates"])


def cache(found: dict[str, Any]) -> str:
    facts = found["cache"]
    return f"{facts['until_kill_s'] + facts['rest_s']:.0f} s, killed in between; then {facts['warm_s']:.2f} s"


def grading(found: dict[str, Any]) -> str:
    sides = {name: (found[name]["pool"], found[name]["bare processes"]) for name in ("short", "8k tokens")}
    return "; ".join(f"{name} {ratio(*both)} ({spread(both[0], 'answers/s', 0)})" for name, both in sides.items())


def hostile(found: dict[str, Any]) -> str:
    facts = (found[f"{name}, hostile"] for name in ("short", "8k tokens"))
    return "; ".join(f"{each['hostile_s']:.1f} s where {each['allowed_s']:.1f} s are allowed" for each in facts)


def quickstart(found: dict[str, float]) -> str:
    return "; ".join(f"{name} {seconds:.0f} s" for name, seconds in found.items())


@dataclass(frozen=True)
class Bench:
    """rows: what each is about, its goal, and its figures in what the bench wrote."""

    arguments: str
    rows: tuple[tuple[str, str, Callable[[Any], str]], ...]


STEP = "a step relative to plain OpenRLHF's, default job; MiniLM is forty times the policy"
PRM = "a step with a PRM of the policy's size relative to one with the rule alone"
BENCHES = {
    "quickstart": Bench("quickstart.py", (("the quickstart in a fresh clone, nothing cached", "", quickstart),)),
    "startup": Bench("startup.py --rounds 3", (("from the command to the first rollouts", "15 s", startup),)),
    "step": Bench(
        "step_overhead.py --rounds 2 --steps 8",
        (
            (STEP, "1.00", step),
            ("peak memory relative to plain's, without and with the encoder", "1.03; controller 1.05", memory),
        ),
    ),
    "step_100M": Bench(
        "step_overhead.py --size 100M --rounds 2 --steps 5",
        (("the same with a policy of 100 M parameters", "1.00, 1.03 with MiniLM", step),),
    ),
    "throughput": Bench(
        "throughput.py --trl {trl} --rounds 2 --steps 4",
        (("samples per second relative to TRL's GRPOTrainer", "1.00", throughput),),
    ),
    "step_rewards": Bench(
        "step_rewards.py --steps 5 --rounds 2",
        ((PRM, "1.1; 1.5 in an engine", rewards),),
    ),
    "token_stats": Bench(
        "token_stats.py --tokens 4096",  # with 8,192 OpenRLHF's path does not fit into 24 GB
        (("log-probabilities, entropies, gradients, 4,096 tokens x 151,936", "8 times less memory", token_stats),),
    ),
    "encoder": Bench(
        "encoder.py --data {data}",
        (
            ("encoder speed relative to `SentenceTransformer.encode`", "1.5", encoder),
            ("cache of 10,000 teachers; a warm start", "1 s", cache),
        ),
    ),
    "grading": Bench(
        "grading.py --data {data} --rounds 3",
        (
            ("grading relative to bare processes without limits, 2 workers", "1.00", grading),
            ("1,000 answers with ten endless ones", "limit x share", hostile),
        ),
    ),
}  # fmt: skip


def measure(name: str, folder: Path, places: dict[str, Path]) -> None:
    """Runs a bench, unless what it found is there."""
    out, printed = folder / f"{name}.json", folder / f"{name}.txt"
    if out.exists():
        return
    script, *arguments = BENCHES[name].arguments.format(**places).split()
    print(f"{name}: {printed} has what it prints", flush=True)
    part = out.with_suffix(".part")
    with printed.open("w") as text:
        done = subprocess.run(
            [sys.executable, str(HERE / script), *arguments, "--out", str(part)], stdout=text, stderr=text, cwd=ROOT
        )
    if done.returncode:
        sys.exit(f"{name} failed:\n{printed.read_text()[-3000:]}")
    facts = {
        "date": f"{datetime.date.today()}",
        "commit": commit(),
        "machine": f"{len(os.sched_getaffinity(0))} cores, {torch.backends.cpu.get_cpu_capability()}",
        "found": json.loads(part.read_text()),
    }
    out.write_text(json.dumps(facts, indent=2))
    part.unlink()


def commit() -> str:
    """Names the commit, and says whether anything was changed since, but for the page that is written here."""
    changed = ["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs/costs.md"]
    name = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    return f"{name}-dirty" if subprocess.run(changed, cwd=ROOT).returncode else name


def write(page: Path, folder: Path) -> None:
    """Puts a row for all that was measured between the page's two marks; keeps the other rows as they are."""
    before, _, rest = page.read_text().partition(BEGIN)
    rows, mark, after = rest.partition(END)
    if not mark:
        sys.exit(f"{page} lacks the marks {BEGIN} and {END}")
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in rows.splitlines() if line.startswith("| ")}
    lines = [
        "| what | measured: median, least to most of the runs | goal | command | when, commit, on |",
        "|---|---|---|---|---|",
    ]
    for name, bench in BENCHES.items():
        out = folder / f"{name}.json"
        facts = json.loads(out.read_text()) if out.exists() else None
        command = bench.arguments.replace("{trl}", "DIR").replace("{data}", "DIR")
        for what, goal, figures in bench.rows:
            if facts:
                when = f"{facts['date']}, {facts['commit']}, {facts['machine']}"
                lines.append(f"| {what} | {figures(facts['found'])} | {goal} | `{command}` | {when} |")
            elif what in kept:
                lines.append(kept[what])
    page.write_text("\n".join((f"{before}{BEGIN}", "", *lines, "", f"{END}{after}")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="see README.md; without it, what needs it is left out")
    parser.add_argument("--trl", type=Path, help="see throughput.py; without it, that is left out")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench", help="folder of what benches write")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "costs.md")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    places = {name: path for name in ("data", "trl") if (path := getattr(args, name))}
    for name in args.only:
        if missing := [
            place for place in ("data", "trl") if f"{{{place}}}" in BENCHES[name].arguments and place not in places
        ]:
            print(f"{name}: left out, for want of --{missing[0]}", flush=True)
            continue
        measure(name, args.out, places)
        write(args.page, args.out)


if __name__ == "__main__":
    main()
