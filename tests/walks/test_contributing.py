"""CONTRIBUTING.md's examples in a copy of the checkout: their tests, those of all pieces, and a step with each."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
_FILE = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
_DIFF = re.compile(r"^```diff\n(.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^oger (.*)$", re.M)
_WRITTEN = re.compile(r"^python -m ([\w.]+) > (\S+)", re.M)  # a page that is made anew
SECTIONS = {text.partition("\n")[0]: text.partition("\n## ")[0] for text in PAGE.split("\n### ")[1:]}
# The tests over all verifiers, kinds, estimators or weights; of those that take long, the cases of new ones alone.
LISTS = ["tests/unit", *(f"tests/integration/test_{name}.py" for name in ("contracts", "settings", "reward_settings"))]
LISTS += [
    "tests/integration/test_reward_sources.py::test_a_source_says_nothing_of_rows_behind_its_gate",
    "tests/integration/test_effects.py::test_what_an_estimator_reads_changes_its_advantages",
    "tests/integration/test_bad_input.py::test_an_impossible_combination_is_refused_with_its_reason",
]
LONG = "not (survive or behind_its_gate or what_an_estimator_reads) or yes_no or agreement or over_median"
# Recorded rollouts through a whole run in one process (tests/integration/replay), by recipes of the copy.
REPLAY = """
import json, sys
from pathlib import Path
import replay
_, inputs, given = replay.CASES["oger_cpu"]
for name, recipe, flags in json.loads(sys.argv[1]):
    replay.CASES[name] = (recipe, inputs, [*given, *flags])
    folder = Path(sys.argv[2]) / name
    folder.mkdir()
    replay.replayed(name, folder)
"""


def files(text: str) -> dict[str, str]:
    return dict(_FILE.findall(text))


def diffs(text: str) -> dict[str, list[tuple[str, str]]]:
    """By file, the text of each hunk before and after."""
    found: dict[str, list[tuple[str, str]]] = {}
    for diff in _DIFF.findall(text):
        header, *hunks = re.split(r"^@@\n", diff, flags=re.M)
        found[re.findall(r"^\+\+\+ b/(.*)$", header, re.M)[0]] = [(side(hunk, "-"), side(hunk, "+")) for hunk in hunks]
    return found


def side(hunk: str, sign: str) -> str:
    lines = [line if line.strip() else " \n" for line in hunk.splitlines(keepends=True)]
    return "".join(line[1:] for line in lines if line[0] in (" ", sign))


def run(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    places = [checkout, checkout / "tests" / "integration" / "replay", checkout / "configs"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=HANG_S)


def succeeds(checkout: Path, *words: str) -> str:
    done = run(checkout, *words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with every example in it. What is a user's own lies in configs/, beside what it extends."""
    folder = tmp_path_factory.mktemp("contributing") / "checkout"
    for name in ("oger_recipe", "patches", "configs", "docs", "scripts", "tests/unit", "tests/integration"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for path, text in files(PAGE).items():
        (folder / path if "/" in path else folder / "configs" / path).write_text(text)
    for path, hunks in diffs(PAGE).items():
        text = (folder / path).read_text()
        for before, after in hunks:
            assert text.count(before) == 1, f"{path} has this {text.count(before)} times:\n{before}"
            text = text.replace(before, after)
        (folder / path).write_text(text)
    for module, path in dict.fromkeys(_WRITTEN.findall(PAGE)):
        (folder / path).write_text(succeeds(folder, "-m", module))
    return folder


@pytest.mark.parametrize("section", SECTIONS)
def test_an_example_touches_two_files_at_most_and_a_test(section: str) -> None:
    touched = {*files(SECTIONS[section]), *diffs(SECTIONS[section])}
    tests = {path for path in touched if Path(path).name.startswith("test_")}
    recipes = {path for path in touched if path.endswith(".yaml")}
    assert len(tests & files(SECTIONS[section]).keys()) == 1 and 1 <= len(touched - tests - recipes) <= 2


def test_the_examples_tests_pass_and_all_others_stay_green(checkout: Path) -> None:
    names = [path if "/" in path else f"configs/{path}" for path in files(PAGE)]
    tests = [name for name in names if Path(name).name.startswith("test_")]
    assert len(tests) == len(SECTIONS)
    own = [name for name in tests if not name.startswith("tests/unit")]
    succeeds(checkout, "-m", "pytest", "-p", "no:cacheprovider", *LISTS, *own, "-k", LONG)
    python = [name for name in [*names, *diffs(PAGE)] if name.endswith(".py")]
    succeeds(checkout, "-m", "ruff", "check", *python)
    succeeds(checkout, "-m", "ruff", "format", "--check", *python)


def test_the_commands_of_the_examples_are_taken(checkout: Path) -> None:
    commands = [command for section in SECTIONS.values() for command in _COMMAND.findall(section)]
    assert commands
    for command in commands:
        assert "GPUs by role" in succeeds(checkout, "-m", "oger_recipe.cli.main", *command.split())


def test_the_verifier_grades_in_the_pool_and_refuses_a_row(checkout: Path) -> None:
    grade = (
        "import json\n"
        "from oger_recipe.rewards.reward_func import reward_func\n"
        "def label(answer): return json.dumps({'uid': 'a', 'task': 'yes_no', 'answer': answer})\n"
        "texts, answers = ['?Yes. No.', '?No. Yes.', '?no'], ['yes', 'yes', 'maybe']\n"
        "print(json.dumps(reward_func(texts, ['?'] * 3, [label(answer) for answer in answers])))\n"
    )
    graded = json.loads(succeeds(checkout, "-c", grade).splitlines()[-1])
    assert graded["rewards"] == graded["scores"] == [0.0, 1.0, 0.0]
    assert graded["extra_logs"]["reward_error"] == [0.0, 0.0, 1.0]
    rows = checkout / "rows.jsonl"
    teachers = [{"source": "mine", "text": "Yes.", "correct": None}]
    row = {"prompt": "?", "task": "yes_no", "datasource": "mine", "teachers": teachers}
    rows.write_text("".join(json.dumps(row | {"uid": answer, "answer": answer}) + "\n" for answer in ("no", "maybe")))
    checked = run(checkout, "-m", "oger_recipe.cli.main", "data", "validate", str(rows))
    assert checked.returncode == 1 and "the answer is 'maybe', not yes or no" in checked.stdout


@pytest.fixture(scope="module")
def samples(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[dict[str, Any]]]]:
    """By example, the groups of its first step as they are in samples/: each a list of trained rows."""
    folder = tmp_path_factory.mktemp("steps")
    method = [
        "--oger.last_token_enp_reward=half",
        "--oger.entropy_position=mean",
        "--algo.advantage.estimator=over_median",
    ]
    steps = [("method", "oger_cpu", method), ("unlike", "unlike", []), ("agreement", "agreement", [])]
    succeeds(checkout, "-c", REPLAY, json.dumps(steps), str(folder))
    found = {}
    for name, _, _ in steps:
        lines = (folder / name / "run" / "samples" / "step_00001.jsonl").read_text().splitlines()
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in map(json.loads, lines):
            groups.setdefault(row["uid"], []).append(row)
        found[name] = list(groups.values())
    return found


def trained(group: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rollouts and the teachers of a group that are trained."""
    rows = [row for row in group if not row.get("replaced")]
    return [row for row in rows if "source" not in row], [row for row in rows if "source" in row]


def test_weight_and_estimator_make_the_advantages_that_the_page_says(samples: dict[str, Any]) -> None:
    """A = r - median(r), r = R + D * R / (1 + H) for right rollouts; oger.yaml's baseline is the rollouts alone."""
    paid = 0
    for group in samples["method"]:
        rollouts, teachers = trained(group)
        for row in rollouts:
            earns = row["score"] > 0 and row["similarity"] is not None
            row["total"] = row["reward"]
            row["total"] += row["reward"] * (1 - row["similarity"]) / (1 + row["entropy"]) if earns else 0.0
            paid += earns and row["entropy"] > 0.001
        median = statistics.median_low(row["total"] for row in rollouts)
        for row in [*rollouts, *teachers]:
            assert row["advantage"] == pytest.approx(row.get("total", row["reward"]) - median, abs=1e-5)
    assert paid > 3


def test_the_other_bonus_pays_for_being_worded_unlike_the_other_right_ones(samples: dict[str, Any]) -> None:
    paid = 0
    for group in samples["unlike"]:
        rollouts, teachers = trained(group)
        right = [set(row["text"].split()) for row in rollouts if row["score"] > 0]
        for row in rollouts:
            words, row["total"] = set(row["text"].split()), row["reward"]
            if row["score"] > 0 and len(right) > 1:
                apart = [len(words ^ other) / len(words | other) for other in right]  # 0 with itself
                row["total"] += 0.5 * sum(apart) / (len(right) - 1)
                paid += sum(apart) > 0
        mean = statistics.fmean(row["total"] for row in rollouts)
        for row in [*rollouts, *teachers]:
            assert row["advantage"] == pytest.approx(row.get("total", row["reward"]) - mean, abs=1e-5)
    assert paid > 3


def test_agreement_is_added_to_reward_and_bonus(samples: dict[str, Any]) -> None:
    paid = set()
    for group in samples["agreement"]:
        rollouts, teachers = trained(group)
        answers = [row.get("extracted") for row in [*rollouts, *teachers]]  # a teacher has none
        for row in [*rollouts, *teachers]:
            share = answers.count(row["extracted"]) / 8 if row.get("extracted") else 0.0
            row["total"] = row["reward"] + row.get("bonus", 0.0) + 0.25 * share
            paid.add(share)
        mean = statistics.fmean(row["total"] for row in rollouts)
        for row in [*rollouts, *teachers]:
            assert row["advantage"] == pytest.approx(row["total"] - mean, abs=1e-5)
    assert len(paid) > 3
