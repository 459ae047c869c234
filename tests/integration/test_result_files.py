"""The figures of `oger eval` in the files of other harnesses, written from figures known by hand and read by the
harnesses' own readers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.evaluation.result_files import write_result_files

FIGURES = {
    "problems": 30, "n": 4, "avg_at_4": 0.25, "avg_at_4_interval": [0.152, 0.348], "pass_at_4": 0.5,
    "pass_at_4_interval": [0.304, 0.696], "response_length": 900.0, "truncated": 0.1, "format": 1.0, "ungraded": 0,
    "no_room": 0,
}  # fmt: skip
RESULT: dict[str, Any] = {
    "settings": {
        "model": {"name": "/models/me/small", "revision": None, "dtype": "bfloat16", "weights": None},
        "prompting": {"template": None, "chat_template": True, "system_prompt": "Think.", "input_template": None},
        "sampling": {
            "n": 4, "temperature": 0.6, "top_p": 0.95, "top_k": -1, "max_new_tokens": 1024, "seed": 7, "stop": (),
            "stop_token_ids": (), "steps": None,
        },
        "grading": {},
        "benchmarks": {"aime24": {"problems": 30, "content": "0123456789abcdef"}},
    },
    "versions": {"vllm": "0.29.0"},
    "benchmarks": {"aime24": FIGURES},
    "average": FIGURES,
}  # fmt: skip
# Without what they need to run models: the readers of result files need this much.
READERS = ("lm-eval==0.4.13", "lighteval==0.13.0")
THEIR_NEEDS = (
    "chardet", "dataproperty", "mbstrdecoder", "pathvalidate", "pytablewriter", "tabledata", "tcolorpy", "typepy",
)  # fmt: skip


def _written(folder: Path) -> dict[str, Any]:
    write_result_files(folder, RESULT)
    lm_eval, lighteval = sorted(folder.rglob("results_*.json"), key=lambda path: "lighteval" in path.parts)
    assert lm_eval.parent == folder / "lm_eval" / "me__small"
    assert lighteval.parent == folder / "lighteval" / "results" / "me" / "small"
    return {"lm_eval": json.loads(lm_eval.read_text()), "lighteval": json.loads(lighteval.read_text())}


def test_each_figure_is_there_with_its_standard_error(tmp_path: Path) -> None:
    written = _written(tmp_path)
    of_lm_eval = written["lm_eval"]["results"]["aime24"]
    assert of_lm_eval.pop("alias") == "aime24"
    assert of_lm_eval == pytest.approx(
        {"avg@4,none": 0.25, "avg@4_stderr,none": 0.05, "pass@4,none": 0.5, "pass@4_stderr,none": 0.1}
    )
    of_lighteval = written["lighteval"]["results"]
    assert of_lighteval["aime24|0"] == pytest.approx(
        {"avg@4": 0.25, "avg@4_stderr": 0.05, "pass@4": 0.5, "pass@4_stderr": 0.1}
    )
    assert of_lighteval["all"] == of_lighteval["aime24|0"]
    assert written["lm_eval"]["configs"]["aime24"]["repeats"] == 4
    assert written["lm_eval"]["config"]["gen_kwargs"]["max_new_tokens"] == 1024


def test_later_results_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    _written(tmp_path)
    _written(tmp_path)  # unpacks two files, so four would fail


def test_a_file_of_the_harness_itself_stays(tmp_path: Path) -> None:
    of_harness = tmp_path / "lm_eval" / "me__small" / "results_2026-01-01.json"
    of_harness.parent.mkdir(parents=True)
    of_harness.write_text('{"results": {}}')
    write_result_files(tmp_path, RESULT)
    assert of_harness.read_text() == '{"results": {}}' and len(list(of_harness.parent.iterdir())) == 2


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both harnesses; they are large, and no environment of ours has them."""
    folder = tmp_path_factory.mktemp("readers")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, *READERS, *THEIR_NEEDS], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{', '.join(READERS)} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder


READ = """
import json, sys
from glob import glob
from lm_eval.utils import get_latest_filename, get_results_filenames, make_table
from lighteval.utils.utils import make_results_table
found = get_results_filenames(glob(sys.argv[1] + "/lm_eval/**", recursive=True))
print(make_table(json.load(open(get_latest_filename(found)))))
print("====")
(found,) = glob(sys.argv[1] + "/lighteval/**/results_*.json", recursive=True)
print(make_results_table(json.load(open(found))))
"""


@pytest.mark.full
def test_the_harnesses_read_their_files(tmp_path: Path, readers: Path) -> None:
    _written(tmp_path)
    command = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(readers), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    of_lm_eval, of_lighteval = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
        for text in done.stdout.split("====\n")
    )
    assert of_lm_eval[2][:5] == ["aime24", "1", "none", "0", "avg@4"]
    assert of_lm_eval[2][7] == "±" and (float(of_lm_eval[2][6]), float(of_lm_eval[2][8])) == (0.25, 0.05)
    read = [(row[3], row[5]) for row in of_lighteval if row[2] == "pass@4"]
    assert [(float(value), float(error)) for value, error in read] == [(0.5, 0.1)] * 2
