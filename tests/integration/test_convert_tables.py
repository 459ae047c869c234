"""The tables of all dialects of `oger convert`."""

from __future__ import annotations

import argparse

import pytest

from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.engine import DIALECTS


@pytest.mark.parametrize("dialect", [*DIALECTS.values()], ids=[*DIALECTS])
def test_every_setting_of_the_table_exists(gpu_parser: argparse.ArgumentParser, dialect: Dialect) -> None:
    known = {name[2:] for action in gpu_parser._actions for name in action.option_strings}
    for flag in (*dialect.flags.values(), *dialect.environment):
        assert {name.strip() for name in flag.ours.split(",") if flag.ours} <= known, flag.name
        assert flag.ours or flag.remark, f"{flag.name} has no reason"
