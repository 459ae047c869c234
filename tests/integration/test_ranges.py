"""Every number of the command line has a range, and what lies outside is refused."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import FINITE
from oger_recipe.checks.settings import RANGES, out_of_range
from oger_recipe.cli import data, eval, prm, score, serve_judge, serve_reward
from oger_recipe.cli.train_ppo_ray import parse
from oger_recipe.settings.oger import SETTINGS
from oger_recipe.settings.parser import ListAction


def _numeric(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    own = {each.flag for each in SETTINGS if each.read in (int, float)}
    numbers = {action.dest: action for action in parser._actions if action.type in (int, float)}
    return numbers | {action.dest: action for action in parser._actions if action.dest in own}


def test_every_number_has_a_range_and_nothing_else_has(parser: argparse.ArgumentParser) -> None:
    assert len(_numeric(parser)) > 120
    assert _numeric(parser).keys() == RANGES.keys()


def test_every_default_is_in_its_range(parser: argparse.ArgumentParser) -> None:
    assert list(out_of_range(vars(parser.parse_args([])))) == []


@pytest.mark.parametrize("name", sorted(RANGES))
def test_the_bounds_are_where_the_range_says(parser: argparse.ArgumentParser, name: str) -> None:
    """The bounds themselves are in (where they are closed), the next numbers outside and nan are not."""
    allowed, action = RANGES[name], _numeric(parser)[name]
    whole = _item_type(action) is int
    defaults = vars(parser.parse_args([]))

    def is_refused(number: float) -> bool:
        given = [number] * action.nargs if isinstance(action.nargs, int) else number
        return any(said.startswith(f"{name} is ") for said in out_of_range(defaults | {name: given}))

    assert is_refused(-2) is (allowed is not FINITE)
    step = 1 if whole else 1e-9
    for bound, is_open, outside in ((allowed.low, allowed.low_open, -step), (allowed.high, allowed.high_open, step)):
        if math.isfinite(bound):
            assert is_refused(bound) is is_open
            assert is_refused(bound + outside) is (bound + outside not in allowed.also)
    for number in allowed.also:
        assert not is_refused(number)
    if not whole:
        assert is_refused(math.nan)
        assert is_refused(math.inf) is (math.inf not in allowed.also)


NEGATIVE = ("-1", "-.5", "-1.", "-1e-6", "-2.5E+3", "-inf", "-Infinity", "-nan")


@pytest.mark.parametrize("joined", [True, False], ids=["--flag=value", "--flag value"])
@pytest.mark.parametrize("name", sorted(RANGES))
def test_a_negative_number_is_a_value_in_every_notation(
    parser: argparse.ArgumentParser, name: str, joined: bool
) -> None:
    """It is read, or refused as the value that it is: never taken for a flag, or for none."""
    action = _numeric(parser)[name]
    count = action.nargs if isinstance(action.nargs, int) else 2 if isinstance(action, ListAction) else 1
    for text in NEGATIVE:
        if joined and count != 1:
            continue  # argparse takes one value so
        words = [f"--{name}={text}"] if joined else [f"--{name}", *[text] * count]
        try:
            expected = [_item_type(action)(text)] * count
        except ValueError:
            with pytest.raises(RecipeError, match=rf"^argument --{re.escape(name)}: .*'{re.escape(text)}'"):
                parse(parser, words)
            continue
        found = parse(parser, words)[name]
        assert repr([*found] if isinstance(found, list | tuple) else [found]) == repr(expected)  # nan too


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (eval.main, ["m", "--temperature"], "--temperature is -1e-06: it must be 0 (greedy) or more"),
        (eval.main, ["m", "--n"], "argument --n: invalid int value: '-1e-6'"),
        (score.main, ["--recipe", "grpo", "--responses", "r", "--out", "o", "--train.seed"],
         "argument --train.seed: invalid int value: '-1e-6'"),
        (data.main, ["validate", "rows.jsonl", "--actor.adam.lr"], "rows.jsonl: no such dataset file"),
        (prm.main, ["label", "m", "--recipe", "r", "--responses", "r", "--out", "o", "--n"],
         "argument --n: invalid int value: '-1e-6'"),
        (serve_reward.main, ["--time_limit"], "argument --time_limit: "),
        (serve_judge.main, ["m", "--port"], "argument --port: invalid int value: '-1e-6'"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else None,
)  # fmt: skip
def test_the_other_commands_read_negative_numbers_too(main: Any, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*words, "-1e-6"])
    assert said in str(stop.value.code) and "expected" not in str(stop.value.code)


def _item_type(action: argparse.Action) -> Any:
    return action.setting.read if isinstance(action, ListAction) else action.type


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("reward.clip_range", [5.0, -5.0], "reward.clip_range is 5.0 -5.0: the first must be the smaller one"),
        ("oger.stop_token_ids", (5, -1), "oger.stop_token_ids is -1: it must be 0 or more"),
        ("oger.task.eval_numbers", (3, 7), "oger.task.eval_numbers is 7: it must be 2 to 6"),
        ("actor.adam.betas", [0.9, 1.0], "actor.adam.betas is 1.0: it must be 0 or more and below 1"),
        ("oger.non_stop_penalty", math.inf, "oger.non_stop_penalty is inf: it must be a finite number"),
        ("oger.embedding_max_tokens", 0, "oger.embedding_max_tokens is 0: it must be 1 or more"),
        ("eval.temperature", -0.1, "eval.temperature is -0.1: it must be 0 (greedy) to 10"),
        ("oger.bonus_weight", -0.5, "oger.bonus_weight is -0.5: it must be 0 or more"),
        ("oger.bonus_weight", math.nan, "oger.bonus_weight is nan: it must be a finite number"),
        ("oger.sft.lr", 1.5, "oger.sft.lr is 1.5: it must be 0 to 1"),
        ("oger.n_prefix", -2, "oger.n_prefix is -2: it must be -1 (all) or 0 or more"),
        ("ds.zero_stage", 4, "ds.zero_stage is 4: it must be 0, 1, 2 or 3"),
    ],
)
def test_what_is_said(parser: argparse.ArgumentParser, name: str, values: Any, sentence: str) -> None:
    assert list(out_of_range(vars(parser.parse_args([])) | {name: values})) == [sentence]
