"""``oger eval`` as its users run it: the command, vLLM, an untrained tiny policy, and the files it leaves.

The policy writes noise; what it writes must be the same noise whatever the order and size of the batches.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import Forks
from hang import HANG_S

N = 3
SETTINGS = ["--n", str(N), "--max_new_tokens", "24", "--temperature", "1.0", "--seed", "5"]
KEYS = {
    "uid", "benchmark", "sample", "prompt", "text", "answer", "score", "reward", "format", "extracted", "reason",
    "components", "response_length", "truncated", "graded",
}  # fmt: skip

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, countdown_rows: list[dict[str, Any]]) -> Path:
    """Two benchmarks, each in two orders: own rows of two tasks, of which one is too long, and GSM8K's columns."""
    folder = tmp_path_factory.mktemp("eval")
    # Prompts of some hundred tokens each: more than vLLM takes up at once.
    tales = [" ".join(random.Random(number).choices("abcdefghij", k=400)) for number in range(12)]
    rows = [
        *({key: row[key] for key in ("uid", "prompt", "answer", "task")} for row in countdown_rows),
        *({"uid": f"t{i}", "prompt": tale, "answer": "1", "task": "gsm8k"} for i, tale in enumerate(tales)),
        {"uid": "long", "prompt": "1 2 " * 800, "answer": "3", "task": "gsm8k"},
    ]
    gsm8k = [{"question": f"What is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(6)]
    for name, records in (("mine", rows), ("gsm8k", gsm8k)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        shuffled = random.Random(1).sample(records, len(records))
        (folder / "other").mkdir(exist_ok=True)
        (folder / "other" / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in shuffled))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, policy_folder: Path, forks: Forks) -> Run:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = ["-m", "oger_recipe.cli.eval", str(policy_folder), *SETTINGS, *arguments]
        return forks.run(*line, cwd=folder, timeout=HANG_S)

    return command


@pytest.fixture(scope="module")
def first(run: Run) -> subprocess.CompletedProcess[str]:
    return run("--benchmark", "mine", "gsm8k=gsm8k.jsonl", "--benchmark_dir", ".", "--out", "first")


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_command_evaluates_and_says_where_everything_is(
    first: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert first.returncode == 0, first.stderr
    table = (folder / "first" / "results.md").read_text()
    assert table in first.stdout
    for name in ("results.md", "results.json", "lm_eval", "lighteval", "answers"):
        assert f"first/{name}" in first.stdout and (folder / "first" / name).exists()
    rows = [line.split(" | ")[0].strip("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows == ["benchmark", "---", "mine", "gsm8k", "average"]


def test_every_answer_is_on_disk_with_its_verdict(first: subprocess.CompletedProcess[str], folder: Path) -> None:
    for name, problems in (("mine", 25), ("gsm8k", 6)):
        records = _records(folder / "first" / "answers" / f"{name}.jsonl")
        assert len(records) == problems * N
        assert all(record.keys() == KEYS and record["benchmark"] == name for record in records)
        assert len({(record["uid"], record["sample"]) for record in records}) == len(records)
        written = [record for record in records if record["uid"] != "long"]
        assert all(0 < record["response_length"] <= 24 and "<|im_end|>" not in record["text"] for record in written)
        assert any(record["truncated"] for record in written)
        assert all(record["truncated"] == (record["response_length"] == 24) for record in written)
        texts = [record["text"] for record in written]
        assert len(set(texts)) == len(texts)  # noise: a seed that is used twice would show


def test_the_figures_are_those_of_the_answers(first: subprocess.CompletedProcess[str], folder: Path) -> None:
    result = json.loads((folder / "first" / "results.json").read_text())
    averages = []
    for name, figures in result["benchmarks"].items():
        records = _records(folder / "first" / "answers" / f"{name}.jsonl")
        averages.append(sum(record["score"] for record in records) / len(records))
        assert figures[f"avg_at_{N}"] == pytest.approx(averages[-1])
        lengths = [record["response_length"] for record in records]
        assert figures["response_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert result["average"][f"avg_at_{N}"] == pytest.approx(sum(averages) / 2)
    assert result["settings"]["sampling"]["seed"] == 5


def test_a_prompt_that_does_not_fit_is_unsolved_and_said_so(
    first: subprocess.CompletedProcess[str], folder: Path
) -> None:
    answers = [r for r in _records(folder / "first" / "answers" / "mine.jsonl") if r["uid"] == "long"]
    assert [(record["text"], record["score"], record["truncated"]) for record in answers] == [("", 0.0, True)] * N
    assert all(record["reason"].endswith("tokens leave no room in a context of 1024") for record in answers)
    assert "mine: 1 of 25 problems do not fit into the model's context and count as unsolved." in first.stdout


def test_order_and_batch_size_change_nothing(first: subprocess.CompletedProcess[str], run: Run, folder: Path) -> None:
    files = ["mine=other/mine.jsonl", "gsm8k=other/gsm8k.jsonl"]
    second = run("--benchmark", *files, "--batch_size", "5", "--out", "second")
    assert second.returncode == 0, second.stderr
    for path in ("answers/mine.jsonl", "answers/gsm8k.jsonl", "results.json", "results.md"):
        assert (folder / "second" / path).read_text() == (folder / "first" / path).read_text()


def test_an_interrupted_evaluation_goes_on_with_what_is_missing(
    first: subprocess.CompletedProcess[str], run: Run, folder: Path
) -> None:
    answers = folder / "first" / "answers"
    complete, lost = answers / "mine.jsonl", answers / "gsm8k.jsonl"
    expected, before = lost.read_text(), complete.stat().st_mtime_ns
    results = (folder / "first" / "results.json").read_text()
    lost.unlink()
    (folder / "first" / "results.json").unlink()
    again = run("--benchmark", "mine", "gsm8k", "--benchmark_dir", ".", "--out", "first")
    assert again.returncode == 0, again.stderr
    assert lost.read_text() == expected and complete.stat().st_mtime_ns == before
    assert (folder / "first" / "results.json").read_text() == results
    assert f"mine: {25 * N} answers are there already" in again.stdout
    whole = run("--benchmark", "mine", "gsm8k", "--benchmark_dir", ".", "--out", "first")
    assert "loading" not in whole.stdout and (folder / "first" / "results.json").read_text() == results


def test_answers_that_were_cut_off_in_the_middle_are_taken_up(
    first: subprocess.CompletedProcess[str], run: Run, folder: Path
) -> None:
    """Of a benchmark's answers some are there, the last of them half written."""
    answers = folder / "first" / "answers" / "gsm8k.jsonl"
    expected = answers.read_text()
    lines = expected.splitlines(keepends=True)
    answers.write_text("".join(lines[:7]) + lines[7][:40])
    again = run("--benchmark", "gsm8k", "--benchmark_dir", ".", "--out", "first")
    assert again.returncode == 0, again.stderr
    assert "gsm8k: 7 answers are there already" in again.stdout
    assert f"gsm8k: {6 * N - 7} answers to generate" in again.stdout
    assert answers.read_text() == expected


def test_more_samples_and_another_benchmark_are_added_to_a_folder(
    first: subprocess.CompletedProcess[str], run: Run, folder: Path
) -> None:
    whole = run("--benchmark", "gsm8k", "mine", "--benchmark_dir", ".", "--out", "first")  # with nothing missing
    assert whole.returncode == 0, whole.stderr
    first_results = (folder / "first" / "results.md").read_text()
    one = run("--benchmark", "gsm8k", "--benchmark_dir", ".", "--out", "grown", "--n", "1")
    assert one.returncode == 0, one.stderr
    grown = run("--benchmark", "gsm8k", "mine", "--benchmark_dir", ".", "--out", "grown")
    assert grown.returncode == 0, grown.stderr
    assert "gsm8k: 6 answers are there already" in grown.stdout
    for path in ("answers/mine.jsonl", "answers/gsm8k.jsonl"):
        assert (folder / "grown" / path).read_text() == (folder / "first" / path).read_text()
    assert (folder / "grown" / "results.md").read_text() == first_results


def test_the_recipes_rules_grade_and_its_settings_sample(forks: Forks, policy_folder: Path, folder: Path) -> None:
    """GSM8K's answers with OAT's strings and a stop text, as a recipe says; options on the command line win."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "oger: {gsm8k_strict_oat: true, stop: ['e'], stop_kept: [], eval: {max_new_tokens: 9}}\n"
        "eval: {n_samples_per_prompt: 2, temperature: 0.7, dataset: gsm8k=gsm8k.jsonl}\ntrain: {seed: 11}\n"
    )
    line = ["-m", "oger_recipe.cli.eval", str(policy_folder), "--recipe", "recipe.yaml", "--out", "ruled"]
    done = forks.run(*line, "--temperature", "0.8", cwd=folder, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    settings = json.loads((folder / "ruled" / "results.json").read_text())["settings"]
    assert settings["sampling"] | {"top_k": -1} == {
        "n": 2, "temperature": 0.8, "top_p": 1.0, "top_k": -1, "max_new_tokens": 9, "seed": 11,
        "stop": ["e"], "stop_token_ids": [], "steps": None,
    }  # fmt: skip
    assert settings["grading"]["options"] == {"gsm8k": {"strict_oat": True}} and settings["grading"]["cut"] == ["e"]
    assert settings["model"]["dtype"] == "bfloat16" and settings["prompting"]["chat_template"] is False
    assert len(_records(folder / "ruled" / "answers" / "gsm8k.jsonl")) == 12


def test_a_template_ends_answers_at_its_stop_texts_which_stay(forks: Forks, folder: Path, policy_folder: Path) -> None:
    """r1 has </answer>, which noise never holds; here they are letters. Without --out the folder is under evals/."""
    script = (
        "import sys; from oger_recipe.cli import eval\n"
        "from oger_recipe.data.templates import PromptTemplate, TEMPLATES\n"
        "TEMPLATES['r1'] = PromptTemplate('User: {question}', stop=tuple('aeinorst1'))\neval.main(sys.argv[1:])"
    )
    line = ["-c", script, str(policy_folder), "--benchmark", "gsm8k=gsm8k.jsonl", *SETTINGS]
    done = forks.run(*line, "--max_new_tokens", "200", "--prompt_template", "r1", cwd=folder, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    [out] = (folder / "evals").iterdir()
    records = _records(out / "answers" / "gsm8k.jsonl")
    assert all(record["prompt"].startswith("User: What is ") for record in records)
    stopped = [record["text"] for record in records if not record["truncated"]]
    assert len(stopped) > len(records) / 2
    assert sum(text[-1:] in set("aeinorst1") for text in stopped) > len(stopped) / 2  # others end by themselves
    assert all(not set(text[:-1]) & set("aeinorst1") for text in stopped)
