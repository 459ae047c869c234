"""The table of metrics: its rows can be looked up, its limits and flags are those of the code, and its page is new."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from oger_recipe.pipeline.controller.reward_watch import _WATCHED, FALL
from oger_recipe.report.metric_page import page
from oger_recipe.report.metric_table import FIRST, GROUPS, TABLE, lookup

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_table_says() -> None:
    path = ROOT / "docs" / "metrics.md"
    assert path.read_text() == page(), "python -m oger_recipe.report.metric_page > docs/metrics.md"


@pytest.mark.parametrize(
    ("written", "row"),
    [
        ("rollout/entropy", "rollout/entropy"),
        ("reward/judge.2/failed", "reward/{source}/failed"),
        ("reward/judge.2", "reward/{source}"),
        ("reward/judge.2/well said", "reward/{source}/{component}"),
        ("eval_math_500_avg_at_16", "eval_{benchmark}_avg_at_{n}"),
        ("eval_average_avg_at_n", "eval_{benchmark}_avg_at_{n}"),
        ("pass_at_8", "eval_{benchmark}_pass_at_{k}"),
        ("rollout/entropy2", None),
        ("avg_at_8_interval", None),
    ],
)
def test_a_written_name_finds_its_row(written: str, row: str | None) -> None:
    found = lookup(written)
    assert (found and found.name) == row


def test_rows_are_distinct_and_whole() -> None:
    names = [each.name for each in TABLE]
    assert len(set(names)) == len(names) and set(FIRST) <= set(names) and len(set(FIRST)) == 10
    assert list(dict.fromkeys(each.group for each in TABLE)) == list(GROUPS)
    for each in TABLE:
        assert each.title and each.rows and each.meaning.endswith("."), each.name
        assert not each.healthy or (each.healthy_text and each.healthy != (None, None)), each.name
        assert lookup(re.sub(r"\{[nk]\}", "8", each.name).replace("{", "").replace("}", "")) is each


def test_ranges_are_the_limits_that_the_run_checks() -> None:
    by_name = {each.name: each.healthy for each in TABLE}
    for end, watched in _WATCHED.items():
        low = -watched.limit if "correlation" in end else None
        assert by_name[f"reward/{{source}}/{end}"] == (low, watched.limit)
    assert by_name["oger/held_out_fall"] == (None, FALL)


def test_flags_that_the_table_names_exist(parser: argparse.ArgumentParser) -> None:
    known = {action.dest for action in parser._actions}
    sections = "|".join({flag.partition(".")[0] for flag in known if "." in flag})
    for each in TABLE:
        for text in (each.rows, each.meaning, each.healthy_text, each.advice):
            assert set(re.findall(rf"\b(?:{sections})(?:\.\w+)+", text)) <= known | {"algo.kl"}, each.name
