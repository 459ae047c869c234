"""Datasets in: Hub names, folders, files of others. Out to OpenRLHF: prompts, labels, stop rules, grading settings."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from forks import Forks
from hang import HANG_S

from oger_recipe.base.errors import RecipeError
from oger_recipe.cli import train
from oger_recipe.data.sources import Columns, read_dataset

GSM8K = Columns(prompt="question", task="gsm8k")

# ---- the Hub


HUB = """
import json, os, sys
from pathlib import Path
from oger_recipe.data.sources import Columns, read_dataset
from oger_recipe.base.errors import RecipeError
for source, split in json.loads(sys.argv[1]):
    try:
        rows = read_dataset(source, Columns(prompt="question", task="gsm8k"), split=split)
        print(json.dumps([row["prompt"] for row in rows]))
    except RecipeError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Callable[..., list[Any]]:
    """Reads (source, split) pairs in a process that is offline and has two configurations of a dataset in its cache,
    as a download leaves them."""
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    for config in ("main", "socratic"):
        cached = folder / "cache" / "openai___gsm8k" / config / "0.0.0" / ("a" * 40)
        files = {}
        for split in ("train", "test"):
            files[split] = str(folder / f"{config}-{split}.jsonl")
            Path(files[split]).write_text(json.dumps({"question": f"{config} {split}?", "answer": "#### 1"}) + "\n")
        builder = datasets.load_dataset_builder("json", data_files=files, cache_dir=str(folder / "json"))
        builder.download_and_prepare(output_dir=str(cached))
        for path in cached.glob("json-*"):
            path.rename(path.with_name(path.name.replace("json-", "gsm8k-")))
        info = json.loads((cached / "dataset_info.json").read_text())
        info |= {"builder_name": "gsm8k", "dataset_name": "gsm8k", "config_name": config}
        (cached / "dataset_info.json").write_text(json.dumps(info))

    def read(*pairs: tuple[str, str]) -> list[Any]:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        done = forks.run("-c", HUB, json.dumps(pairs), env=environment, cwd=folder, timeout=HANG_S)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return read


def test_a_hub_dataset_is_read_by_configuration_and_split(hub: Callable[..., list[Any]]) -> None:
    both = "main@openai/gsm8k, socratic@openai/gsm8k"
    assert hub(("main@openai/gsm8k", "test"), ("socratic@openai/gsm8k", "train"), (both, "test")) == [
        ["main test?"], ["socratic train?"], ["main test?", "socratic test?"],
    ]  # fmt: skip


def test_what_the_hub_does_not_have_is_one_sentence_that_says_what_to_do(hub: Callable[..., list[Any]]) -> None:
    split, config, absent = hub(("main@openai/gsm8k", "val"), ("openai/gsm8k", "test"), ("own/data", "train"))
    assert "'train', 'test'" in split and split.endswith("The flags are data.prompt_split and eval.split")
    assert "socratic" in config and config.endswith("A configuration goes in front: CONFIG@openai/gsm8k")
    assert absent.startswith("own/data: not a file here, and it cannot be loaded from the Hub (split 'train'): ")
    assert absent.endswith("Without the Hub, give a .jsonl or .parquet file")
    assert not any("\n" in message for message in (split, config, absent))


# ---- files and folders


def _write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("answer", "text"),
    [(18, "18"), (27.0, "27"), (-2.0, "-2"), (0.5, "0.5"), ("7.0", "7.0"), ({"target": 5}, '{"target": 5}')],
)
def test_numbers_become_the_text_that_a_response_would_have(tmp_path: Path, answer: Any, text: str) -> None:
    path = _write(tmp_path / "rows.jsonl", {"question": "1+1?", "answer": answer})
    assert read_dataset(str(path), GSM8K, split="train")[0]["answer"] == text


def test_repetitions_without_uid_are_left_out_and_counted_over_all_files(tmp_path: Path) -> None:
    one, two = {"question": "1?", "answer": "1"}, {"question": "2?", "answer": "2"}
    first = _write(tmp_path / "a.jsonl", one, two, one)
    second = _write(tmp_path / "b.jsonl", two, {"question": "2?", "answer": "3"})
    counts: Counter[str] = Counter()
    rows = read_dataset(f"{first},{second}", GSM8K, split="train", counts=counts)
    assert [(row["prompt"], row["answer"]) for row in rows] == [("1?", "1"), ("2?", "2"), ("2?", "3")]
    assert counts == {"duplicates": 2}


def test_given_uids_keep_repetitions_and_may_not_repeat(tmp_path: Path) -> None:
    row = {"question": "1?", "answer": "1"}
    counts: Counter[str] = Counter()
    path = _write(tmp_path / "a.jsonl", row | {"uid": "x"}, row | {"uid": "y"})
    assert len(read_dataset(str(path), GSM8K, split="train", counts=counts)) == 2 and not counts
    path = _write(tmp_path / "a.jsonl", row | {"uid": "x"}, row | {"uid": "x"})
    with pytest.raises(RecipeError, match=r"a\.jsonl:2: uid 'x' is already used by line 1$"):
        read_dataset(str(path), GSM8K, split="train")


def test_the_rows_own_task_goes_before_the_one_for_all(tmp_path: Path) -> None:
    row = {"question": "1?", "answer": "1"}
    path = _write(tmp_path / "a.jsonl", row | {"task": "math"}, row | {"task": None, "uid": "b"}, row | {"uid": "c"})
    assert [row["task"] for row in read_dataset(str(path), GSM8K, split="train")] == ["math", "gsm8k", "gsm8k"]


def test_a_missing_column_of_an_evaluation_set_is_named_with_its_own_flag(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", {"problem": "1?", "answer": "1"})
    columns = Columns(task="math", flags=("oger.eval.input_key", "oger.eval.label_key"))
    with pytest.raises(RecipeError) as error:
        read_dataset(str(path), columns, split="train")
    assert str(error.value) == (
        f"{path}:1: no column 'prompt' (oger.eval.input_key); the columns are 'problem', 'answer'"
    )


def test_a_folder_that_was_not_saved_by_datasets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecipeError, match="folder: not a folder that datasets.save_to_disk wrote"):
        read_dataset(str(tmp_path / "folder"), GSM8K, split="train")


def test_gsm8k_as_published_has_an_answer_that_its_verifier_reads(tmp_path: Path) -> None:
    from oger_recipe.grading.verifiers import verify

    file = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k" / "train.jsonl"
    if not file.exists():
        pytest.skip("GSM8K is not beside the checkout")
    counts: Counter[str] = Counter()
    rows = read_dataset(str(file), GSM8K, split="train", counts=counts)
    assert len(rows) + counts["duplicates"] == 7473  # the size of the published training set
    assert all(verify("gsm8k", row["answer"], row["answer"], answer_format="hashes").score for row in rows)


# ---- what a run hands to OpenRLHF


def test_openrlhf_reads_the_prepared_files_by_their_own_columns(run: Callable[..., Any]) -> None:
    settings, environment, prompts, problems = run("--oger.grading_time_limit", "7", "--oger.grading_workers", "3")
    assert (settings["data.input_key"], settings["data.label_key"]) == ("prompt", "label")
    assert [prompt[settings["data.input_key"]] for prompt in prompts] == ["1+1?", "2+1?"]
    assert json.loads(prompts[0]["label"]) | {"uid": ""} == {"uid": "", "answer": "2", "task": "gsm8k"}
    assert len(problems) == 2
    grading = json.loads(environment["OGER_GRADING"])
    assert (grading["workers"], grading["time_limit_s"], grading["memory_limit_mb"]) == (3, 7.0, 2048)
    assert grading["preload"] == []  # gsm8k is bounded: it is graded in process


def test_what_is_left_out_is_said_for_both_sets(run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    problems = run("--oger.max_prompt_length", "100")[3]
    assert [problem["prompt"] for problem in problems] == ["4+1?"]
    lines = [line for line in capsys.readouterr().out.splitlines() if "data: " in line]
    assert lines[0].startswith("data: 1 duplicates, 2 prompts")
    assert lines[1] == "evaluation data: 1 prompts, 1 prompts too long"


def test_an_evaluated_response_may_be_longer_so_its_prompts_have_to_be_shorter(run: Callable[..., Any]) -> None:
    """900 characters are at most 900 tokens of this tokenizer: they fit beside 64 tokens, not beside 2000."""
    assert len(run("--oger.eval.max_new_tokens", "64")[3]) == 2


def test_a_long_evaluated_response_leaves_out_long_prompts(run: Callable[..., Any]) -> None:
    assert len(run("--oger.eval.max_new_tokens", "2000")[3]) == 1


def test_a_named_template_is_applied_once_and_brings_its_stop_rules(run: Callable[..., Any]) -> None:
    settings, _, prompts, problems = run("--oger.prompt_template", "r1")
    assert all(row["prompt"].endswith("?\nAssistant: <think>") for row in (*prompts, problems[0]))
    assert not settings["data.apply_chat_template"] and not settings["data.input_template"]
    assert settings["oger.stop"] == ("</answer>",)


def test_the_users_stop_rules_go_before_the_templates(run: Callable[..., Any]) -> None:
    assert run("--oger.prompt_template", "r1", "--oger.stop=###")[0]["oger.stop"] == ("###",)


def test_the_template_chat_is_openrlhfs_own(run: Callable[..., Any]) -> None:
    settings, _, prompts, _ = run("--oger.prompt_template", "chat")
    assert settings["data.apply_chat_template"] is True
    assert prompts[0]["prompt"] == "1+1?"
    # "1+1?" has 4 tokens, with its turns at least 15: lengths are of the templated prompt.
    with pytest.raises(SystemExit, match="all 2 prompts are longer than 10 tokens"):
        train.main(
            ["--recipe", "recipe.yaml", "--oger.prompt_template", "chat", "--oger.max_prompt_length", "10"]
            + ["--oger.run_dir", "other"]
        )


def test_the_resolved_recipe_names_the_sources_and_can_be_run_again(run: Callable[..., Any], tmp_path: Path) -> None:
    first = run("--oger.prompt_template", "r1")[2]
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe["data"]["prompt_dataset"] == "train.jsonl" and recipe["data"]["label_key"] == "answer"
    (tmp_path / "run" / "recipe.yaml").replace(tmp_path / "recipe.yaml")
    assert run("--oger.run_dir", str(tmp_path / "again"))[2] == first


def test_the_users_verifier_and_the_options_reach_the_labels_and_the_pool(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rules.py").write_text("def grade(response, answer):\n    raise NotImplementedError\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, environment, prompts, _ = run("--oger.verifiers", "mine=own_rules:grade", "--oger.task_name", "mine")
    assert json.loads(prompts[0]["label"])["task"] == "own_rules:grade"
    assert json.loads(environment["OGER_GRADING"])["preload"] == ["own_rules:grade"]


def test_only_options_that_differ_from_the_verifiers_defaults_travel(run: Callable[..., Any]) -> None:
    label = json.loads(run("--oger.gsm8k_strict_oat", "--oger.gsm8k_answer_format", "last_number")[2][0]["label"])
    assert label["options"] == {"strict_oat": True}
