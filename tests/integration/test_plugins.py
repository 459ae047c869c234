"""Judges' plugins in their own processes: what they can import, and what their mistakes cost. No model is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oger_recipe.rewards.models.plugin import Plugin

Make = Callable[..., Plugin]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """A plugin of a text, with what lies beside it; all end with the test."""
    plugins = []

    def make(text: str, limit_s: float = 60.0, **beside: str) -> Plugin:
        for name, other in {"own": text, **beside}.items():
            (tmp_path / f"{name}.py").write_text(other)
        plugins.append(Plugin(tmp_path / "own.py", limit_s=limit_s))
        return plugins[-1]

    yield make
    for plugin in plugins:
        plugin.close()


# ---- what a plugin imports

IMPORTS = """
import shared
from . import shared as beside
from verl.workers import reward_function
from verl.workers.reward_function import shared as of_package
from verl.workers.reward_function.shared import WORD
import verl.workers.reward_function.shared as by_name
{more}

def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    words = [shared.WORD, beside.WORD, of_package.WORD, WORD, by_name.WORD, reward_function.shared.WORD]
    return [" ".join([*words, more]) for _ in text_responses]

def rm_postprocess(results):
    return [1.0 for _ in results]
"""


STOCK = {"__init__": "", "workers/__init__": "", "utils/__init__": "", "utils/score": "WORD = 'stock'"}
FORK = STOCK | {
    "workers/reward_function/shared": "WORD = 'not beside'",
    "workers/reward_function/more": "WORD = 'fork'",
}


@pytest.mark.parametrize(
    ("installed", "more", "said"),
    [
        ({}, "", "none"),
        (STOCK, "from verl.utils.score import WORD as more", "stock"),
        (FORK, "from verl.workers.reward_function.more import WORD as more", "fork"),
    ],
    ids=["no verl", "stock verl", "the fork"],
)
def test_a_plugin_imports_what_lies_beside_it_by_each_of_its_names(
    installed: dict[str, str], more: str, said: str, made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As VeRL-with-RMs' plugins do, whose folder is verl/workers/reward_function, with any verl installed or none."""
    for name, text in installed.items():
        path = tmp_path / "site" / "verl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    plugin = made(IMPORTS.format(more=more or "more = 'none'"), shared="WORD = 'beside'")
    assert plugin.preprocess(["?"], ["a"]) == [" ".join(["beside"] * 6 + [said])]
