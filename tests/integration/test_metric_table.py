"""The table of metrics: its rows can be looked up, its limits and flags are those of the code, and its page is new."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from oger_recipe.algorithm import alarms
from oger_recipe.report.metric_page import page
from oger_recipe.report.metric_table import FIRST, GROUPS, TABLE, lookup
from oger_recipe.settings import alarm_page

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
    length, form = alarms.LENGTH_PAID, alarms.FORM_PAID
    assert by_name["reward/{source}/length_correlation"] == (-length, length)
    assert by_name["reward/{source}/format_correlation"] == (-form, form)
    assert by_name["reward/{source}/rule_disagreement"] == (None, alarms.DISAGREEMENT)
    assert by_name["oger/held_out_fall"] == (None, alarms.FALL)
    assert by_name["oger/equal_groups"] == (None, alarms.EQUAL)
    assert by_name["oger/embedding_share_read"] == (alarms.READ, None)


def test_alarms_read_metrics_of_the_table() -> None:
    names = {each.name for each in TABLE}
    assert {metric for alarm in alarms.ALARMS.values() for metric in alarm.reads} <= names


def test_the_page_of_alarms_is_what_the_registry_says() -> None:
    path = ROOT / "docs" / "alarms.md"
    assert path.read_text() == alarm_page.page(), "python -m oger_recipe.settings.alarm_page > docs/alarms.md"


def test_flags_that_the_table_names_exist(parser: argparse.ArgumentParser) -> None:
    known = {action.dest for action in parser._actions}
    sections = "|".join({flag.partition(".")[0] for flag in known if "." in flag})
    for each in TABLE:
        for text in (each.rows, each.meaning, each.healthy_text, each.advice):
            assert set(re.findall(rf"\b(?:{sections})(?:\.\w+)+", text)) <= known | {"algo.kl"}, each.name
    for name, alarm in alarms.ALARMS.items():
        for text in (alarm.when, alarm.why, alarm.advice):
            assert set(re.findall(rf"\b(?:{sections})(?:\.\w+)+", text)) <= known, name
