"""The settings as dataclasses: the same from flags and from OpenRLHF's namespace, frozen, and read back as written."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openrlhf.utils.config import hierarchize

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.settings.credit import BonusSettings
from oger_recipe.settings.derived import in_folder, in_prompts, with_template
from oger_recipe.settings.encoder import EmbeddingSettings
from oger_recipe.settings.flags import defaults, flags_of
from oger_recipe.settings.grading import VerifierSettings
from oger_recipe.settings.oger import SECTIONS, SETTINGS, OgerSettings
from oger_recipe.settings.page import page
from oger_recipe.settings.parser import ListAction, build_parser
from oger_recipe.settings.recipe_file import read_recipe, write_resolved
from oger_recipe.settings.rewards import RewardSettings
from oger_recipe.settings.run import EvalSettings, SftSettings
from oger_recipe.settings.task import TaskSettings

FLAGS = [
    "--oger.bonus_weight=0.5", "--oger.sft.lr=0.25", "--oger.sft.epochs=3", "--oger.eval.top_k=7", "--oger.top_k=9",
    "--oger.task.name=countdown", "--oger.task.eval_numbers", "3", "4", "--no-oger.similarity_reverse",
    "--oger.math_extract=boxed",
]  # fmt: skip


def test_a_section_is_the_same_from_flags_and_from_openrlhfs_namespace(parser: argparse.ArgumentParser) -> None:
    args = parser.parse_args(FLAGS)
    for settings in (vars(args), hierarchize(args).oger):
        assert BonusSettings.of(settings) == BonusSettings(bonus_weight=0.5, similarity_reverse=False)
        assert SftSettings.of(settings) == SftSettings(epochs=3, lr=0.25)
        assert EvalSettings.of(settings) == EvalSettings(top_k=7)
        assert TaskSettings.of(settings) == TaskSettings(name="countdown", eval_numbers=(3, 4))
        assert VerifierSettings.of(settings) == VerifierSettings(math_extract=("boxed",))
        assert OgerSettings.of(settings).rollouts.top_k == 9
    assert OgerSettings.of(vars(parser.parse_args([]))) == OgerSettings()


def test_settings_are_frozen_and_hashable() -> None:
    assert len({OgerSettings(), OgerSettings(sft=SftSettings(epochs=1)), OgerSettings()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        BonusSettings().bonus_weight = 2.0  # type: ignore[misc]


def test_every_field_is_one_flag_and_every_flag_of_the_recipe_is_one_field(parser: argparse.ArgumentParser) -> None:
    flags = [action.dest for action in parser._actions if action.dest.startswith("oger.")]
    assert flags == [each.flag for each in SETTINGS]
    assert len({section.title for section in SECTIONS}) == len(SECTIONS)


def test_the_page_of_all_settings_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "settings.md"
    assert path.read_text() == page(), "python -m oger_recipe.settings.page > docs/settings.md"


def test_the_page_says_default_choices_range_and_meaning() -> None:
    rows = page().splitlines()
    for row in (
        "| `--oger.sft.lr` | `1e-05` | 0 to 1 | fixed | peak learning rate; needs oger.sft.epochs |",
        "| `--oger.eval.top_p` | rollout.top_p | above 0 and at most 1 | free | top-p (nucleus) of the evaluation |",
        "| `--oger.stop` | the prompt template's | several: text | noted | texts that end a response |",
        "| `--oger.verbose` | off | on or off | free | show the logs of all workers, not only the progress |",
        "| `--oger.steps.sample_by_step` | off | on or off | noted | "
        "sample each step as its own request to the engine |",
        "| `--oger.math_rule` | `math_verify` | `deepscaler`, `deepscaler_format`, `deepscaler_no_think`, "
        "`math_verify_think`, `math_verify` | noted | form that a right answer to a math problem must have |",
        "| `--oger.task.num_numbers` | `3` | integer, 2 to 6 | fixed | how many numbers a Countdown problem has |",
    ):
        assert row in rows
    cells = {row.replace(r"\|", "").count("|") for row in rows if row.startswith("| `--oger.")}
    assert cells == {6} and all(row.count("|") == 5 for row in rows if row.startswith("| `") and "--oger." not in row)
    assert sum(row.startswith("| `--oger.") for row in rows) == len(SETTINGS)


def test_what_follows_from_other_settings(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    value = defaults(parser) | {"rollout.n_samples_per_prompt": 8, "train.batch_size": 5}
    assert in_prompts(value) == value
    assert in_prompts(value | {"oger.prompts_per_update": 4})["train.batch_size"] == 32
    placed = in_folder(value | {"ckpt.output_dir": "elsewhere"}, tmp_path)
    assert placed["oger.run_dir"] == str(tmp_path) and placed["ckpt.path"] == str(tmp_path / "checkpoints")
    assert placed["ckpt.output_dir"] == "elsewhere"
    assert with_template(value) == value | {"data.apply_chat_template": False}
    assert with_template(value | {"oger.prompt_template": "r1"})["oger.stop"] == ("</answer>",)
    assert with_template(value | {"oger.prompt_template": "r1", "oger.stop": ("x",)})["oger.stop"] == ("x",)


def test_a_run_with_the_chat_template_by_name_can_be_repeated_from_its_resolved_recipe(
    parser: argparse.ArgumentParser,
) -> None:
    """There both are said, the name and what follows from it."""
    value = with_template(defaults(parser) | {"oger.prompt_template": "chat"})
    assert value["data.apply_chat_template"] is True and not list(combination_problems(value))
    (problem,) = combination_problems(value | {"oger.prompt_template": "r1"})
    assert problem.startswith("choose one of oger.prompt_template r1")


def test_an_evaluation_samples_as_the_rollouts_where_nothing_else_is_said() -> None:
    assert EvalSettings().sampling(0.9, 64) == {"top_p": 0.9, "top_k": -1, "max_new_tokens": 64}
    assert EvalSettings(0.5, 7, 32).sampling(0.9, 64) == {"top_p": 0.5, "top_k": 7, "max_new_tokens": 32}


def test_an_encoder_reads_as_many_texts_at_a_time_as_their_lengths_let_it() -> None:
    found = [EmbeddingSettings(embedding_max_tokens=tokens).embedding_batch_size for tokens in (64, 256, 512, 9000)]
    assert found == [32, 32, 16, 1]


SOURCES = (
    {"name": "rule", "kind": "verifier"},
    {"name": "style", "kind": "my.module:score", "weight": 0.25, "gate": "rule_nonzero", "options": {"a": [1, "x y"]}},
)


def test_reward_sources_are_a_list_of_mappings_in_a_file_and_json_among_flags(
    read: Callable[..., dict[str, Any]], parser: argparse.ArgumentParser
) -> None:
    text = (
        "oger:\n  reward:\n    on_error: stop\n    sources:\n      - {name: rule, kind: verifier}\n"
        "      - name: style\n        kind: my.module:score\n        weight: 0.25\n        gate: rule_nonzero\n"
        "        options: {a: [1, x y]}\n"
    )
    assert RewardSettings.of(read(text)) == RewardSettings(SOURCES, "stop")
    for flags in ([f"--oger.reward.sources={json.dumps(SOURCES)}"], ["--oger.reward.sources", json.dumps(SOURCES)]):
        assert RewardSettings.of(hierarchize(parser.parse_args(flags)).oger).sources == SOURCES


@pytest.mark.parametrize(("written", "weight"), [("1e-3", 0.001), ("2", 2), ("'0.5'", 0.5), ("much", "much")])
def test_a_weight_of_a_source_is_read_as_a_number_where_it_is_one(
    read: Callable[..., dict[str, Any]], written: str, weight: object
) -> None:
    text = f"oger:\n  reward:\n    sources:\n      - {{name: rule, kind: verifier, weight: {written}}}\n"
    (source,) = RewardSettings.of(read(text)).sources
    assert source["weight"] == weight


def test_reward_sources_are_written_into_the_run_folder_as_they_are(
    tmp_path: Path, parser: argparse.ArgumentParser
) -> None:
    settings = vars(parser.parse_args([f"--oger.reward.sources={json.dumps(SOURCES)}"]))
    path = tmp_path / "resolved.yaml"
    write_resolved(settings, path)
    assert defaults(parser) | read_recipe(path, parser) == settings


def _another(action: argparse.Action, default: Any) -> Any:
    """A value that the default is not, awkward to write on a command line."""
    own = action.setting if isinstance(action, ListAction) else None
    kind, choices = (own.read, own.choices) if own else (action.type, action.choices)
    if action.nargs == 0:
        return not default
    if own and own.flag == "oger.reward.sources":
        return SOURCES
    if own and own.flag == "oger.grade_model":
        return ({"model": "-x 'y'"},)
    one = (
        {int: -7, float: -1e-05}.get(kind, "-x 'y'\n[z]=é")
        if not choices
        else next(c for c in choices if c != default)
    )
    if own:
        return (one, one)
    return [one] * action.nargs if isinstance(action.nargs, int) else [one] if action.nargs else one


def test_flags_and_a_resolved_recipe_say_every_setting_exactly(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    unsaid = defaults(parser)
    assert flags_of(unsaid, parser) == []
    actions = {action.dest: action for action in parser._actions if action.dest in unsaid}
    several = "ds.lora.target_modules"  # its items are words, which OpenRLHF's parser takes without a dash alone
    every = {name: _another(action, unsaid[name]) for name, action in actions.items()} | {several: ["q", "v"]}
    for name, value in every.items():
        changed = unsaid | {name: value}
        assert repr(vars(parser.parse_args(flags_of(changed, parser)))) == repr(changed), name
    assert repr(vars(parser.parse_args(flags_of(every, parser)))) == repr(every)
    every = dict(in_prompts(every))  # as a run has them: other sizes of a step are refused
    write_resolved(every, tmp_path / "resolved.yaml")
    assert repr(unsaid | read_recipe(tmp_path / "resolved.yaml", parser)) == repr(every)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e-05, 0.1 + 0.2, 1.0, 12345678901234567.0])
def test_a_number_comes_back_as_it_was(parser: argparse.ArgumentParser, value: float) -> None:
    settings = defaults(parser) | {"oger.bonus_weight": value, "reward.clip_range": [-value, value]}
    assert repr(vars(parser.parse_args(flags_of(settings, parser)))) == repr(settings)


@pytest.mark.parametrize("item", ["rule", 5, None, {"name": "rule"}, {"kind": "verifier"}, {"name": 1, "kind": "a"}])
def test_a_source_without_name_or_kind_is_refused(read: Callable[..., Any], item: Any) -> None:
    said = r"a list of mappings with a name and a kind, such as \[\{name: rule, kind: verifier\}\]"
    with pytest.raises(RecipeError, match=rf"recipe\.yaml:1: 'oger\.reward\.sources' takes {said}, found "):
        read(f"oger: {{reward: {{sources: [{json.dumps(item)}]}}}}")
    with pytest.raises(RecipeError, match=rf"argument --oger\.reward\.sources: takes {said}, found "):
        build_parser(cpu=True).parse_args([f"--oger.reward.sources={json.dumps([item])}"])


@pytest.mark.parametrize("text", ["rule", "'[1'", "{name: rule, kind: verifier}"])
def test_sources_that_are_no_list_are_refused(read: Callable[..., Any], text: str) -> None:
    with pytest.raises(RecipeError, match=r"^\S*recipe\.yaml:1: .*oger\.reward\.sources.* mappings"):
        read(f"oger: {{reward: {{sources: {text}}}}}")


def test_hints_need_a_length_of_responses_that_is_not_what_the_prompt_leaves(parser: argparse.ArgumentParser) -> None:
    value = defaults(parser) | {"oger.hint_share": 0.5}
    said = "oger.hint_share makes prompts longer and would shorten their responses: set rollout.max_new_tokens"
    assert list(combination_problems(value)) == [said]
    assert list(combination_problems(value | {"rollout.max_new_tokens": 64})) == []
    moving = {"oger.hint_schedule": "linear", "oger.hint_share_end": 0.75}
    shares = [OgerSettings.of(each).shown_share for each in (defaults(parser), value, value | moving)]
    assert shares == [0.0, 0.5, 0.75]
    assert OgerSettings.of(defaults(parser) | moving).shown_share == 0.0
