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
        "0.85 (2.5 (1.8 to 3.2) s) recipe, no encoder; 1.50 (4.5 (3.0 to 6.0) s) recipe; plain 3.0 (2.0 to 4.0) s"
    )
    assert costs.memory({"results": results}) == (
        "controller 1.10 and 1.00; policy 0.50 and 0.50; engine 1.00 and 1.50"
    )


def test_memory_is_said_as_how_much_less_and_speed_as_how_much_more() -> None:
    ours, theirs = [{"bytes": 10, "seconds": 2.0}], [{"bytes": 85, "seconds": 8.0}]
    found = {"results": {"recipe": ours, "openrlhf": theirs}}
    assert costs.token_stats(found) == "memory 8.50 times less, 2.0 s; OpenRLHF's 8.0 s"
    assert costs.throughput({"5M": {"TRL": [[3, 10.0]], "recipe, GRPO": [[5, 12.0]]}}) == "5M: 1.20 recipe, GRPO"
    pool = {"pool": [100.0, 60.0], "bare processes": [50.0, 40.0]}
    assert costs.grading({"short": pool, "8k tokens": pool}).startswith("1.75 (80 (60 to 100) answers/s) short; ")


def test_only_what_is_between_the_marks_is_written_and_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    page = tmp_path / "costs.md"
    page.write_text(f"before\n{costs.BEGIN}\nold\n{costs.END}\nafter\n")
    found = {"installation": 61.4, "whole": 500.0}
    (tmp_path / "quickstart.json").write_text(json.dumps({"date": "2026-01-02", "commit": "abc", "found": found}))
    costs.write(page, costs.table(tmp_path))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| the quickstart in a fresh clone, nothing cached | installation 61 s; whole 500 s |  | `quickstart.py` | "
        "2026-01-02, abc |"
    ]
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the marks"):
        costs.write(page, "rows")


def test_the_page_has_the_marks_and_every_script_is_there() -> None:
    page = (ROOT / "docs" / "costs.md").read_text()
    assert page.count(costs.BEGIN) == page.count(costs.END) == 1
    for bench in costs.BENCHES.values():
        script, *arguments = bench.arguments.split()
        text = (ROOT / "scripts" / "bench" / script).read_text()
        assert all(f'"{each}"' in text for each in [*arguments, "--out"] if each.startswith("--")), bench
