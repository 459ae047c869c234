"""Earlier names of modules."""

import importlib

import pytest

from oger_recipe.base.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_importing_a_module_by_its_earlier_name_says_the_new_one_which_is_there(old: str) -> None:
    importlib.import_module(f"oger_recipe.{MOVED[old]}")
    with pytest.raises(ModuleNotFoundError, match=f"import oger_recipe.{MOVED[old]} instead"):
        importlib.import_module(f"oger_recipe.{old}")


def test_an_unknown_module_is_an_unknown_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'oger_recipe.unheard_of'"):
        importlib.import_module("oger_recipe.unheard_of")
