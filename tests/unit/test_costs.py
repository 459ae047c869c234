"""The table of docs/costs.md, from what benches write."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
costs = pytest.importorskip("costs")


def test_sides_are_compared_within_a_round() -> None:
    """The second round ran on a machine half as fast."""
    sides = {"plain OpenRLHF": (2.0, 4.0), "recipe, no encoder": (1.8, 3.2), "recipe": (3.0, 6.0)}
    peaks = {"plain OpenRLHF": (100, 200, 50), "recipe, no encoder": (110, 100, 50), "recipe": (100, 100, 75)}
    results = {
        side: [
            {"steps": [each, each, 9 * each], "peaks": dict(zip(costs.ROLES.values(), peaks[side], strict=True))}
            for each in rounds
        ]
        for side, rounds in sides.items()
    }
    assert costs.step({"results": results}) == (
        "recipe, no encoder 0.85 (2.5 s, 1.8 to 3.2); recipe 1.50 (4.5 s, 3.0 to 6.0); plain 3.0 s, 2.0 to 4.0"
    )
    assert costs.memory({"results": results}) == (
        "controller 1.10 and 1.00; policy 0.50 and 0.50; engine 1.00 and 1.50"
    )


def test_memory_is_said_as_how_much_less_and_speed_as_how_much_more() -> None:
    ours, theirs = [{"bytes": 10, "seconds": 2.0}], [{"bytes": 85, "seconds": 8.0}]
    found = {"results": {"recipe": ours, "openrlhf": theirs}}
    assert costs.token_stats(found) == "8.50 times less memory; 2.0 s; OpenRLHF's 8.0 s"
    assert costs.throughput({"5M": {"TRL": [[3, 10.0]], "recipe, GRPO": [[5, 12.0]]}}) == "5M: GRPO 1.20"
    pool = {"pool": [100.0, 60.0], "bare processes": [50.0, 40.0]}
    assert costs.grading({"short": pool, "8k tokens": pool}).startswith("short 1.75 (80 answers/s, 60 to 100); ")


def test_what_is_measured_is_written_between_the_marks_and_other_benches_rows_stay(tmp_path: Path) -> None:
    page = tmp_path / "costs.md"
    (last, *_), (first, *_) = costs.BENCHES["grading"].rows, costs.BENCHES["quickstart"].rows
    stays = f"| {last[0]} | as it was | 1.00 | `x.py` | 2025-01-01 |"
    old = f"{stays}\n| {first[0]} | old |\n| of no bench | old |"
    page.write_text(f"before\n{costs.BEGIN}\n{old}\n{costs.END}\nafter\n")
    facts = {
        "date": "2026-01-02",
        "commit": "abc",
        "machine": "2 cores",
        "found": {"installation": 61.4, "whole": 500.0},
    }
    (tmp_path / "quickstart.json").write_text(json.dumps(facts))
    for _ in range(2):  # the second time changes nothing
        costs.write(page, tmp_path)
        text = page.read_text()
        assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
        assert [line for line in text.splitlines() if line.startswith("| ")][1:] == [
            f"| {first[0]} | installation 61 s; whole 500 s |  | `quickstart.py` | 2026-01-02, abc, 2 cores |",
            stays,
        ]
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the marks"):
        costs.write(page, tmp_path)


def test_the_page_has_the_marks_and_every_script_is_there() -> None:
    page = (ROOT / "docs" / "costs.md").read_text()
    assert page.count(costs.BEGIN) == page.count(costs.END) == 1
    for bench in costs.BENCHES.values():
        script, *arguments = bench.arguments.split()
        text = (ROOT / "scripts" / "bench" / script).read_text()
        assert all(f'"{each}"' in text for each in [*arguments, "--out"] if each.startswith("--")), bench
