"""Recipe files: nested YAML whose paths are the flags of the command line, checked as a whole."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hang import HANG_S

import oger_recipe
from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.settings import check_run
from oger_recipe.cli.train_ppo_ray import build_parser
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.oger import SETTINGS
from oger_recipe.settings.openrlhf_parser import openrlhf_parser
from oger_recipe.settings.recipe_file import nested, read_recipe, write_resolved
from oger_recipe.settings.run import EvalSettings
from oger_recipe.settings.upstream import METHOD_DEFAULTS

Read = Callable[..., dict[str, Any]]
CONFIGS = sorted((Path(oger_recipe.__file__).parents[1] / "configs").rglob("*.yaml"))


@pytest.fixture()
def refused(read: Read, tmp_path: Path) -> Callable[[str], str]:
    """The message about a recipe text, with the file's path shortened to its name."""

    def message(text: str) -> str:
        with pytest.raises(RecipeError) as error:
            read(text)
        return str(error.value).replace(f"{tmp_path}/", "")

    return message


def test_nested_keys_become_flags(read: Read) -> None:
    settings = read(
        "oger:\n  task: {name: countdown, max_target: 50}\n  bonus_weight: 0.5\n"
        "actor:\n  adam:\n    lr: 0.001\n    betas: [0.8, 0.99]\n"
        "ds: {packing_samples: true}\nuse_ms: false\n"
    )
    assert settings["oger.task.name"] == "countdown"
    assert settings["oger.task.max_target"] == 50
    assert settings["oger.bonus_weight"] == 0.5
    assert settings["actor.adam.lr"] == 0.001
    assert settings["actor.adam.betas"] == [0.8, 0.99]
    assert settings["ds.packing_samples"] is True
    assert settings["use_ms"] is False


def test_dotted_keys_are_the_same_settings(read: Read) -> None:
    assert read("actor.adam.lr: 0.25\n")["actor.adam.lr"] == 0.25
    assert read("actor: {adam.lr: 0.25}\n")["actor.adam.lr"] == 0.25


def test_what_the_file_leaves_out_keeps_its_default(read: Read) -> None:
    settings = read("oger: {bonus_weight: 2}\nactor: {max_norm: null}\nckpt:\n  # save_steps: 4\n")
    assert settings["oger.max_replace_num"] == 1
    assert settings["actor.max_norm"] == 1.0
    assert settings["ckpt.save_steps"] == -1
    assert settings["algo.advantage.estimator"] == METHOD_DEFAULTS["algo.advantage.estimator"] == "dr_grpo"


def test_an_empty_file_is_a_recipe_of_defaults(read: Read, parser: argparse.ArgumentParser) -> None:
    assert read("# nothing yet\n") == vars(parser.parse_args([]))


def test_flags_on_the_command_line_win_over_the_file(read: Read) -> None:
    text = "actor: {adam: {lr: 0.25}}\noger: {similarity_reverse: true, replace_mode: random}\n"
    settings = read(text, "--actor.adam.lr", "0.5", "--no-oger.similarity_reverse")
    assert settings["actor.adam.lr"] == 0.5
    assert settings["oger.similarity_reverse"] is False
    assert settings["oger.replace_mode"] == "random"


@pytest.mark.parametrize("number", ["1e-6", "1.0e-6", "0.000001", "1E-06"])
def test_small_numbers_are_numbers_in_every_notation(read: Read, number: str) -> None:
    assert read(f"actor: {{adam: {{lr: {number}}}}}\n")["actor.adam.lr"] == 1e-6


def test_switches_are_true_or_false(read: Read) -> None:
    settings = read("oger: {val_before_train: false, verbose: true}\nckpt: {save_hf: true, disable_ds: false}\n")
    assert settings["oger.val_before_train"] is False
    assert settings["oger.verbose"] is True
    assert settings["ckpt.save_hf"] is True
    assert settings["ckpt.disable_ds"] is False


@pytest.mark.parametrize(
    ("text", "nesterov"),
    [("no_nesterov: true", False), ("no_nesterov: false", True), ("nesterov: false", False), ("nesterov: true", True)],
)
def test_a_flag_that_turns_something_off_means_what_it_says(read: Read, text: str, nesterov: bool) -> None:
    assert read(f"actor: {{muon: {{{text}}}}}\n")["actor.muon.nesterov"] is nesterov


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0123456", "0123456"),  # a hash of digits: octal to YAML
        ("12:30", "12:30"),  # base sixty to YAML
        ("1.10", "1.10"),
        ("'-x'", "-x"),  # would look like a flag
        ("''", ""),
        ("'null'", "null"),
    ],
)
def test_text_settings_are_read_as_they_are_written(read: Read, written: str, expected: str) -> None:
    assert read(f"oger: {{embedding_revision: {written}}}\n")["oger.embedding_revision"] == expected


def test_a_switch_that_this_machine_sets_can_be_switched_off(read: Read) -> None:
    assert read("vllm: {enforce_eager: false}\n")["vllm.enforce_eager"] is False


@pytest.mark.parametrize("switch", ["data.apply_chat_template", "ds.packing_samples", "ckpt.save_hf"])
def test_a_flag_switches_off_what_the_recipe_switches_on(read: Read, switch: str) -> None:
    assert read(f"{switch}: true\n")[switch] is True
    assert read(f"{switch}: true\n", f"--no-{switch}")[switch] is False
    assert read(f"{switch}: true\n", f"--no-{switch}", f"--{switch}")[switch] is True


def test_every_switch_of_openrlhf_has_an_opposite_and_keeps_its_default(parser: argparse.ArgumentParser) -> None:
    for action in openrlhf_parser()._actions:
        if isinstance(action, argparse._StoreTrueAction):
            assert vars(parser.parse_args([f"--no-{action.dest}"]))[action.dest] is False
            ours = {"vllm.enforce_eager": True, "data.apply_chat_template": None}  # of a CPU; of nobody
            assert defaults(parser)[action.dest] is ours.get(action.dest, action.default), action.dest


def test_off_without_quotes_is_a_choice_named_off(read: Read) -> None:
    assert read("algo: {advantage: {is_correction_level: off}}\n")["algo.advantage.is_correction_level"] == "off"


def test_a_value_may_begin_with_a_dash(read: Read) -> None:
    settings = read("oger: {task: {operators: -+}}\neval: {steps: -1}\nreward: {clip_range: [-5, 5]}\n")
    assert settings["oger.task.operators"] == "-+"
    assert settings["eval.steps"] == -1
    assert settings["reward.clip_range"] == [-5.0, 5.0]


ANCHORS = """
x-rate: &rate 1.0e-3
_shared:
  adam: &adam {betas: [0.8, 0.9], lr: 0.5}
  batches: &batches
    micro_batch_size: 2
    batch_size: 64
train:
  <<: *batches
  batch_size: 32
actor: {adam: {<<: *adam, lr: *rate}}
critic: {adam: {<<: [*adam, *batches]}}
"""


def test_anchors_may_be_held_by_keys_of_their_own(read: Read) -> None:
    """What is merged lies under the section's own keys."""
    found = read(ANCHORS.replace("[*adam, *batches]", "[*adam]"))
    assert (found["train.micro_batch_size"], found["train.batch_size"]) == (2, 32)
    assert (found["actor.adam.lr"], found["actor.adam.betas"]) == (1e-3, [0.8, 0.9])
    assert (found["critic.adam.lr"], found["critic.adam.betas"]) == (0.5, [0.8, 0.9])


def test_another_holder_of_anchors_is_told_how_to_be_named(refused: Callable[[str], str]) -> None:
    said = refused("shared: {rate: &rate 1.0e-3}\nactor: {adam: {lr: *rate}}\n")
    assert "1: unknown setting 'shared.rate'" in said and said.endswith(
        "; a key that only holds anchors begins with x- or _"
    )
    assert "x-" not in refused("actor: {rate: 1.0}\n")
    assert "unknown setting 'critic.adam.batch_size'" in refused(ANCHORS)
    assert "actor.x-rate" in refused("actor: {x-rate: &rate 1.0}\n")  # settings stand below sections


def test_a_misspelt_key_is_named_with_file_line_and_the_nearest_name(refused: Callable[[str], str]) -> None:
    message = refused("oger:\n  # the bonus\n  bonus_wieght: 2\n")
    assert message == "recipe.yaml:3: unknown setting 'oger.bonus_wieght'; did you mean 'oger.bonus_weight'?"


def test_a_misspelt_section_is_named_too(refused: Callable[[str], str]) -> None:
    message = refused("actor:\n  max_norm: 1\nrolout:\n  batch_size: 4\n")
    assert message == "recipe.yaml:4: unknown setting 'rolout.batch_size'; did you mean 'rollout.batch_size'?"


def test_a_key_like_no_other_gets_no_suggestion(refused: Callable[[str], str]) -> None:
    assert refused("\nqqqq: 1\n") == "recipe.yaml:2: unknown setting 'qqqq'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {batch_size: many}", "'train.batch_size' takes int, found 'many'"),
        ("train: {batch_size: 8.0}", "'train.batch_size' takes int, found 8.0"),
        ("train: {batch_size: true}", "'train.batch_size' takes int, found True"),
        ("actor: {adam: {lr: false}}", "'actor.adam.lr' takes float, found False"),
        ("oger: {run_dir: true}", "'oger.run_dir' takes str, found True"),
        ("train: {batch_size: [8, 16]}", "'train.batch_size' takes one value, found the list [8, 16]"),
        ("oger: {task: {name: [countdown]}}", "'oger.task.name' takes one value, found the list ['countdown']"),
        ("actor: {adam: {betas: [0.9]}}", "'actor.adam.betas' takes 2 values, found [0.9]"),
        ("actor: {adam: {betas: 0.9}}", "'actor.adam.betas' takes 2 values, found [0.9]"),
        ("actor: {adam: {betas: [0.9, 0.95, 1]}}", "'actor.adam.betas' takes 2 values, found [0.9, 0.95, 1]"),
        ("actor: {adam: {betas: [0.9, high]}}", "'actor.adam.betas' takes float, found 'high'"),
        ("actor: {adam: {betas: [0.9, true]}}", "'actor.adam.betas' takes float, found True"),
        ("ckpt: {save_hf: 1}", "'ckpt.save_hf' is true or false, found 1"),
        ("oger: {verbose: 'no'}", "'oger.verbose' is true or false, found 'no'"),
        ("oger: {verbose: [true]}", "'oger.verbose' is true or false, found [True]"),
        (
            "oger: {all_correct_group: kepe}",
            "'oger.all_correct_group' is one of keep, clip, online, skip, found 'kepe'; did you mean 'keep'?",
        ),
        ("ds: {param_dtype: int3}", "'ds.param_dtype' is one of bf16, fp16, found 'int3'"),
        (
            "train: {batch_size: {rows: 8}}",
            "unknown setting 'train.batch_size.rows'; did you mean 'train.batch_size'?",
        ),
        ("oger: 5", "'oger' is a section: write its settings below it, one per line"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_line(
    refused: Callable[[str], str], text: str, message: str
) -> None:
    assert refused(f"# first line\n{text}\n") == f"recipe.yaml:2: {message}"


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("oger:\n  verbose: true\n  bonus_weight: 1\n  verbose: false\n", 4, "oger.verbose"),
        ("oger:\n  verbose: true\ntrain: {}\noger:\n  bonus_weight: 1\n", 4, "oger"),
        ("oger:\n  verbose: true\noger.verbose: false\n", 3, "oger.verbose"),
    ],
)
def test_a_setting_given_twice_is_refused(refused: Callable[[str], str], text: str, line: int, key: str) -> None:
    assert refused(text) == f"recipe.yaml:{line}: '{key}' is set twice"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("actor: {adam: {lr: 1}\noger: 1\n", "recipe.yaml:2: not valid YAML: "),
        ("actor:\n\tadam: 1\n", "recipe.yaml:2: not valid YAML: "),
        ("a: 1\n---\na: 2\n", "recipe.yaml:2: not valid YAML: expected a single document"),
        ("a: \x00\n", "recipe.yaml: not valid YAML: "),
        ("actor: {adam: {lr: !secret 1}}\n", "recipe.yaml:1: 'actor.adam.lr' has a value that YAML cannot read: "),
        ("\noger: {run_dir: 2026-13-45}\n", "recipe.yaml:2: 'oger.run_dir' has a value that YAML cannot read: "),
        ("? [actor, lr]\n: 1\n", "recipe.yaml:1: the name of a setting must be plain text"),
        ("- actor\n- oger\n", "recipe.yaml:1: expected a mapping of settings, found a list"),
        ("actor.adam.lr 1e-6\n", "recipe.yaml:1: expected a mapping of settings, found 'actor.adam.lr 1e-6'"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(refused: Callable[[str], str], text: str, start: str) -> None:
    assert refused(text).startswith(start)


def test_a_missing_file_is_named(tmp_path: Path, parser: argparse.ArgumentParser) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.yaml: no such recipe file$"):
        read_recipe(tmp_path / "nowhere.yaml", parser)


def test_a_folder_or_binary_file_is_refused(tmp_path: Path, parser: argparse.ArgumentParser) -> None:
    binary = tmp_path / "model.yaml"
    binary.write_bytes(b"\xff\xfe\x80\x81")
    for path in (tmp_path, binary):
        with pytest.raises(RecipeError, match="cannot be read as a recipe file"):
            read_recipe(path, parser)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--actor.adam.lr", "3e-7", "--actor.adam.betas", "0.8", "0.9", "--oger.run_dir", "runs/off"],
        ["--no-oger.similarity_reverse", "--oger.verbose", "--ckpt.save_hf", "--actor.muon.no_nesterov"],
        ["--oger.task.operators=-+", "--oger.embedding_revision", "0123", "--data.input_template", "Q: {}\nA: 'yes'"],
        ["--ds.lora.target_modules", "q_proj", "v_proj", "--algo.advantage.is_correction_threshold", "2"],
        ["--oger.task.name", "countdown", "--reward.clip_range", "-1", "1", "--eval.dataset", ""],
        [
            '--oger.stop=["-x", "\\nUser:", "0123", "off"]',
            "--oger.stop_token_ids",
            "5",
            "6",
            "--oger.math_extract",
            "boxed",
        ],
        ["--oger.stop=[]", "--oger.math_extract", "--reward.clip_range", " -1e-05", "1", "--oger.eval.top_p", "0.9"],
    ],
)
def test_the_resolved_recipe_reads_back_to_the_same_run(
    tmp_path: Path, parser: argparse.ArgumentParser, flags: list[str]
) -> None:
    settings = vars(parser.parse_args(flags))
    path = tmp_path / "resolved.yaml"
    write_resolved(settings, path)
    assert defaults(parser) | read_recipe(path, parser) == settings


def test_a_resolved_recipe_is_nested_yaml_that_says_what_was_chosen(tmp_path: Path) -> None:
    path = tmp_path / "resolved.yaml"
    write_resolved({"oger.task.name": "countdown", "oger.verbose": False, "actor.adam.betas": (0.9, 0.95)}, path)
    assert yaml.safe_load(path.read_text()) == {
        "oger": {"task": {"name": "countdown"}, "verbose": False},
        "actor": {"adam": {"betas": [0.9, 0.95]}},
    }


def test_dotted_names_share_their_sections() -> None:
    assert nested({"a.b.c": 1, "a.b.d": 2, "a.e": 3, "f": 4}) == {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_file_of_the_repository_is_accepted(path: Path) -> None:
    for cpu in {False, "cpu" in path.stem}:
        parser = build_parser(cpu=cpu)
        read_recipe(path, parser)
    assert path.read_text().startswith("#"), "a recipe opens with what it reproduces"


def test_every_setting_is_explained_and_its_default_fits() -> None:
    for each in SETTINGS:
        assert each.help, each.flag
        items = each.default if each.many else [] if each.default is None else [each.default]
        assert all(type(item) is each.read for item in items), each.flag
        assert each.choices is None or set(items) <= set(each.choices), each.flag
    assert len({each.flag for each in SETTINGS}) == len(SETTINGS) > 120


def test_the_help_page_lists_the_section_of_the_recipe(parser: argparse.ArgumentParser) -> None:
    page = parser.format_help()
    assert "OGER recipe" in page
    for each in SETTINGS:
        assert f"--{each.flag}" in page


def test_the_parser_has_what_openrlhf_declares() -> None:
    flags = {action.dest: action for action in openrlhf_parser()._actions}
    assert len(flags) > 140
    assert flags["actor.model_name_or_path"].default is None
    assert flags["rollout.n_samples_per_prompt"].type is int
    assert flags["actor.adam.lr"].default == 1e-6
    assert flags["vllm.sync_backend"].default == "nccl"
    assert "dr_grpo" in (flags["algo.advantage.estimator"].choices or ())
    assert isinstance(flags["ds.packing_samples"], argparse._StoreTrueAction)
    assert not any(name.startswith("oger") for name in flags)


def test_every_flag_of_openrlhfs_source_is_on_the_parser() -> None:
    spec = importlib.util.find_spec("openrlhf")
    assert spec and spec.submodule_search_locations
    source = (Path(spec.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py").read_text()
    written = set(re.findall(r"""add_argument\(\s*["'](--[\w.]+)""", source))
    known = {flag for action in openrlhf_parser()._actions for flag in action.option_strings}
    assert len(written) > 100  # some are written in loops over the roles
    assert written <= known


def test_reading_openrlhfs_flags_imports_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys; from oger_recipe.settings.openrlhf_parser import openrlhf_parser; openrlhf_parser();"
        "print(sorted({'torch', 'ray', 'vllm', 'deepspeed', 'transformers', 'openrlhf'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


# ---- lists, and files that build on others


@pytest.mark.parametrize("items", [[], ["</answer>"], ["-x", "--y", "\nUser:", "[z", "a b", "0123", "off"], ["é漢"]])
def test_a_list_of_any_texts_survives(read: Callable[..., dict[str, Any]], items: list[str]) -> None:
    assert read("oger: {stop: " + json.dumps(items) + "}")["oger.stop"] == tuple(items)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[0123, 12:30, 1.10, 2026-11-21]", ("0123", "12:30", "1.10", "2026-11-21")),  # numbers and a date to YAML
        ("12:30", ("12:30",)),  # one item needs no brackets
        ("['null', 'true', '[a]']", ("null", "true", "[a]")),
    ],
)
def test_items_are_read_as_they_are_written(read: Read, written: str, expected: tuple[str, ...]) -> None:
    assert read(f"oger: {{stop: {written}}}")["oger.stop"] == expected


@pytest.mark.parametrize("item", ["null", "true", "[a]", "{a: 1}"])
def test_an_item_that_is_no_text_is_refused(refused: Callable[[str], str], item: str) -> None:
    assert refused(f"oger:\n  stop: [a, {item}]\n").startswith("recipe.yaml:2: 'oger.stop' takes str, found ")


def test_small_negative_numbers_are_items_not_flags(read: Read) -> None:
    assert read("reward: {clip_range: [-1e-5, -1.0e-06]}")["reward.clip_range"] == [-1e-5, -1e-6]


def test_lists_on_the_command_line_are_words_or_json(parser: argparse.ArgumentParser) -> None:
    parsed = vars(parser.parse_args(["--oger.stop", "a", "b", "--oger.stop_token_ids", "5", "6"]))
    assert (parsed["oger.stop"], parsed["oger.stop_token_ids"]) == (("a", "b"), (5, 6))
    assert vars(parser.parse_args(['--oger.stop=["-a"]']))["oger.stop"] == ("-a",)


@pytest.mark.parametrize("text", ["{stop_token_ids: [x]}", "{math_extract: [boxed, box]}", "{stop: [{a: 1}]}"])
def test_items_of_the_wrong_kind_are_refused_with_their_line(read: Callable[..., Any], text: str) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.yaml:1: 'oger\.(stop|stop_token_ids|math_extract)' "):
        read(f"oger: {text}")


def test_a_file_lies_over_the_one_it_extends(read: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "grand.yaml").write_text("rollout: {batch_size: 4, top_p: 0.9}\ntrain: {colocate_all: true}\n")
    (tmp_path / "base.yaml").write_text(
        "extends: grand.yaml\nactor: {adam: {lr: 1.0e-4}}\noger: {stop: [a, b]}\ndata.prompt_dataset: x.jsonl\n"
    )
    child = "extends: base.yaml\nrollout.batch_size: 8\noger: {stop: [c]}\ntrain: {colocate_all: false}\n"
    settings = read(child + "data: {prompt_dataset: null}\n")
    assert settings["rollout.batch_size"] == 8 and settings["rollout.top_p"] == 0.9
    assert settings["actor.adam.lr"] == 1e-4 and settings["oger.stop"] == ("c",)
    assert settings["train.colocate_all"] is False and settings["data.prompt_dataset"] is None


@pytest.mark.parametrize(
    ("parent", "child", "nesterov"),
    [
        ("nesterov: false", "nesterov: true", True),
        ("nesterov: false", "no_nesterov: false", True),
        ("no_nesterov: true", "nesterov: true", True),
        ("no_nesterov: true", "no_nesterov: null", True),
        ("nesterov: true", "no_nesterov: true", False),
    ],
)
def test_a_setting_with_two_names_is_what_the_child_says(
    read: Read, tmp_path: Path, parent: str, child: str, nesterov: bool
) -> None:
    (tmp_path / "base.yaml").write_text(f"actor: {{muon: {{{parent}}}}}\n")
    assert read(f"actor: {{muon: {{{child}}}}}\nextends: base.yaml\n")["actor.muon.nesterov"] is nesterov


def test_null_brings_the_default_back_and_an_empty_section_changes_nothing(read: Read, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("oger: {stop: [a], math_extract: []}\nckpt: {save_steps: 4}\n")
    settings = read("extends: base.yaml\noger: {stop: [], math_extract: null}\nckpt:\n")
    assert settings["oger.stop"] == () and settings["oger.math_extract"] == ("boxed", "answer_tag", "anywhere")
    assert settings["ckpt.save_steps"] == 4


def test_files_that_extend_each_other_are_refused(refused: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("# the other one\nextends: recipe.yaml\n")
    assert refused("extends: base.yaml").startswith(
        "base.yaml:2: 'extends: recipe.yaml' is circular: it leads back to this file"
    )


def test_all_mistakes_are_said_at_once_each_with_its_file_and_line(
    refused: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text("rollout:\n  batch_sise: 4\n  top_p: high\n")
    text = "extends: base.yaml\noger: {bonus_wieght: 1, verbose: 3}\nactor:\n  adam: {lr: [1, 2]}\n? [a]\n: 1\n"
    assert refused(text).split("\n  - ") == [
        "6 mistakes in the recipe:",
        "recipe.yaml:5: the name of a setting must be plain text, not a list or mapping",
        "base.yaml:2: unknown setting 'rollout.batch_sise'; did you mean 'rollout.batch_size'?",
        "base.yaml:3: 'rollout.top_p' takes float, found 'high'",
        "recipe.yaml:2: unknown setting 'oger.bonus_wieght'; did you mean 'oger.bonus_weight'?",
        "recipe.yaml:2: 'oger.verbose' is true or false, found 3",
        "recipe.yaml:4: 'actor.adam.lr' takes one value, found the list [1, 2]",
    ]


def test_a_parent_that_is_no_yaml_does_not_hide_what_is_wrong_in_the_child(
    refused: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text("a: {\n")
    first, *rest = refused("extends: base.yaml\nqqqq: 1\n").split("\n  - ")
    assert first == "2 mistakes in the recipe:"
    assert rest[0].startswith("base.yaml:2: not valid YAML: ")
    assert rest[1] == "recipe.yaml:2: unknown setting 'qqqq'"


def test_a_path_is_relative_to_the_file_that_extends(read: Read, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text("extends: grand.yaml\n")
    (tmp_path / "shared" / "grand.yaml").write_text("rollout: {batch_size: 4}\n")
    assert read("extends: shared/base.yaml")["rollout.batch_size"] == 4


def test_an_error_in_an_extended_file_names_that_file(read: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("\nrollout: {batch_sise: 4}\n")
    with pytest.raises(RecipeError, match=r"base\.yaml:2: unknown setting 'rollout.batch_sise'"):
        read("extends: base.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: none.yaml", r"recipe\.yaml:1: 'extends' names a recipe file that does not exist: .*none\.yaml"),
        ("extends: recipe.yaml", r"recipe\.yaml:1: 'extends: recipe\.yaml' is circular: it leads back to this file"),
        ("extends: [a, b]", r"recipe\.yaml:1: 'extends' names a recipe file"),
    ],
)
def test_a_file_that_extends_nothing_or_itself_is_refused(read: Callable[..., Any], text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read(text)


LEFT_TO_THE_USER = {  # and nothing else
    "own_data": ["  - actor.model_name_or_path", "  - data.prompt_dataset"],
    "own_data_cpu": ["  - actor.model_name_or_path", "  - data.prompt_dataset"],
    "process_rloo": ["  - data.prompt_dataset"],
    "rlep": ["  - data.prompt_dataset"],
    "distillation_cpu": ["  - oger.grade_model: runs/grpo_cpu/model"],
    "grm_multi_rm": [
        "  - oger.reward.sources, entry 3: plugin 'rider_reward.py'",
        "  - oger.reward.sources, entry 4: plugin 'consistency_reward.py'",
        "  - data.prompt_dataset",
    ],
}


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_file_reads_and_would_start_on_its_machine(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = path.stem.partition("_cpu")[1] == "_cpu"
    parser = build_parser(cpu=cpu)
    settings = defaults(parser) | read_recipe(path, parser)
    gpus = None if cpu else 8 * settings["actor.num_nodes"]
    if left := LEFT_TO_THE_USER.get(path.stem.removesuffix("_multinode")):
        with pytest.raises(RecipeError) as error:
            check_run(settings, cpu=cpu, gpus_here=gpus)
        assert [re.split(" is not set|: no such", line)[0] for line in str(error.value).splitlines()[1:]] == left
        settings |= {key: settings[key] or "my/own" for key in ("actor.model_name_or_path", "data.prompt_dataset")}
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs" / "grpo_cpu" / "model").mkdir(parents=True)
        (tmp_path / "runs" / "grpo_cpu" / "model" / "config.json").write_text("{}")
        for plugin in ("rider_reward.py", "consistency_reward.py"):
            Path(plugin).write_text("def rm_preprocess(*_):\n    ...\n\n\ndef rm_postprocess(results):\n    ...\n")
    check_run(settings, cpu=cpu, gpus_here=gpus)
    assert path.read_text().startswith("#"), "a recipe file opens with what it reproduces"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recipe_whose_evaluation_is_greedy_draws_one_sample(path: Path, parser: argparse.ArgumentParser) -> None:
    settings = defaults(parser) | read_recipe(path, parser)
    greedy = EvalSettings.of(settings).is_greedy(settings["eval.temperature"])
    assert not greedy or settings["eval.n_samples_per_prompt"] == 1


@pytest.mark.parametrize("null", ["null", "~"])
def test_a_section_that_is_null_goes_back_to_its_defaults(read: Read, tmp_path: Path, null: str) -> None:
    """`task: null` in a file that extends a recipe of the built-in task; what the file itself sets of it counts."""
    (tmp_path / "base.yaml").write_text(
        "oger: {task: {name: countdown, num_numbers: 4}, task_name: math}\noger.task.max_number: 30\n"
    )
    settings = read(f"extends: base.yaml\noger: {{task: {null}}}\noger.task.max_target: 50\n")
    assert settings["oger.task.name"] is None and settings["oger.task_name"] == "math"
    assert [settings[f"oger.task.{key}"] for key in ("num_numbers", "max_number", "max_target")] == [3, 20, 50]
