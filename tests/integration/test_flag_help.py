"""`oger train --help`: every flag is in one section, has a sentence, and a section can be read alone."""

from __future__ import annotations

import argparse

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.flag_help import OPENRLHF_SECTIONS, overview, section, sections_of, sentence
from oger_recipe.cli.openrlhf_help import SENTENCES
from oger_recipe.settings.openrlhf_parser import openrlhf_parser


def test_the_overview_fits_a_screen_and_counts_every_flag_once(parser: argparse.ArgumentParser) -> None:
    page = overview(parser)
    assert len(page.splitlines()) <= 45 and max(map(len, page.splitlines())) <= 100
    sections = sections_of(parser)
    placed = [action for actions in sections.values() for action in actions]
    shown = [action for action in parser._actions if action.dest != "help" and action.help != argparse.SUPPRESS]
    assert len(placed) == len(set(map(id, placed))) == len(shown) and set(map(id, placed)) == set(map(id, shown))
    for name, actions in sections.items():
        assert actions, f"{name} is empty"
        assert any(line.split()[:2] == [name, str(len(actions))] for line in page.splitlines())


def test_every_flag_has_a_sentence_and_says_its_default(parser: argparse.ArgumentParser) -> None:
    for actions in sections_of(parser).values():
        for action in actions:
            said, *default = sentence(action).split("(default")
            assert len(said.split()) >= 2 and len(default) == 1, action.option_strings


def test_our_sentences_are_for_flags_that_openrlhf_leaves_without_one() -> None:
    silent = {action.option_strings[0][2:] for action in openrlhf_parser()._actions if not action.help}
    assert silent == SENTENCES.keys()


@pytest.mark.parametrize(
    ("asked", "there", "not_there"),
    [
        (
            "rollout",
            ["--rollout.temperature float: above 0 and at most 10\n", "temperature of the rollouts (default: 1.0)"],
            ["--oger."],
        ),
        ("oger.bonus", ["--oger.bonus_weight float", "{none,group_minmax,group_rank,ratio"], ["--oger.n_prefix"]),
        ("oger.teachers", ["--oger.teacher_draw {uniform,", "--no-oger.replace_after_rm"], ["--oger.bonus_weight "]),
        ("actor.adam", ["--actor.adam.betas float x 2", "(default: 0.9 0.95)"], ["muon", "critic"]),
        ("ds", ["--ds.lora.rank int: 0 or more\n", "--ds.packing_samples\n", "(default: off)"], ["--actor"]),
        ("--oger.math_rule", ["--oger.math_rule {deepscaler,"], ["math_extract"]),
        ("oger.reward", ["--oger.reward.sources mapping ...\n", "{zero,neutral,drop_group,stop}"], ["--oger.run_dir"]),
        ("oger", ["--oger.bonus_weight", "--oger.task.name"], ["--actor"]),
    ],
)
def test_a_section_or_a_beginning_shows_these_flags_alone(parser, asked: str, there: list, not_there: list) -> None:
    page = section(parser, asked)
    assert all(text in page for text in there) and not any(text in page for text in not_there)
    assert max(map(len, page.splitlines())) <= 100


def test_an_unknown_section_names_the_nearest(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(
        RecipeError, match=r"^--help rolout: no section or flag begins like this; did you mean 'rollout'\?"
    ):
        section(parser, "rolout")
    assert "rollout" in OPENRLHF_SECTIONS
