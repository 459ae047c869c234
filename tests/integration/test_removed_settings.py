"""Settings that are gone: each is answered wherever it can be written, and an old run that never set it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.train_ppo_ray import parse
from oger_recipe.run.resume import check_settings
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe, write_resolved
from oger_recipe.settings.removed import REMOVED


@pytest.mark.parametrize("flag", REMOVED)
def test_a_setting_that_is_gone_is_answered_by_what_holds_now(parser, tmp_path: Path, flag: str) -> None:
    assert flag not in defaults(parser)
    was, now = REMOVED[flag]
    sentence = f"'{flag}' is no longer a setting: {now}; leave it out"
    for given in ([f"--{flag}", str(was)], [f"--{flag}={was}"], ["--oger.bonus_weight=0.5", f"--{flag}", "7"]):
        with pytest.raises(RecipeError) as refused:
            parse(parser, given)
        assert str(refused.value) == sentence
    recipe = tmp_path / "recipe.yaml"
    write_resolved({flag: 7}, recipe)
    line = len(recipe.read_text().splitlines())
    with pytest.raises(RecipeError) as refused:
        read_recipe(recipe, parser)
    assert str(refused.value) == f"{recipe}:{line}: {sentence}"


def test_a_run_that_never_set_what_is_gone_goes_on(parser, tmp_path: Path) -> None:
    now, recipe = defaults(parser), tmp_path / "recipe.yaml"
    write_resolved(now | {flag: was for flag, (was, _) in REMOVED.items()}, recipe)
    assert all(flag.rpartition(".")[2] in recipe.read_text() for flag in REMOVED)
    assert list(check_settings(now, parser, recipe)) == []
    assert not REMOVED.keys() & read_recipe(recipe, parser).keys()
