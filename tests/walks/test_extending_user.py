"""What someone does who adds pieces: verifier, estimator and weight in a file, others in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import Forks
from hang import HANG_S

ROOT = Path(__file__).parents[2]
ALGORITHM = Path("oger_recipe") / "algorithm"
CONTRACTS = ["tests/unit/test_contracts.py", "tests/unit/test_exploration.py", "tests/unit/test_hybrid_group.py"]
VERIFIER = """
from oger_recipe.grading.verifiers import Verdict


def grade(response, answer):
    right = answer in response
    return Verdict(float(right), float(right), "right" if right else "wrong", {"correct": float(right)})


def over_mean(rewards, baseline):
    counted = rewards if baseline is None else rewards.where(baseline, float("nan"))
    mean = counted.nanmean(dim=1, keepdim=True)
    return ((rewards - mean) / mean).where(mean > 0, 0.0)


def third(entropy):
    return 1 / (1 + 2 * entropy)
"""
# What `int` raises for one teacher's text is about that teacher; what it raises for the answer is about the row.
STRICT = """
from oger_recipe.grading.verifiers import TaskSpec, UnreadableAnswer


def grade(response, answer):
    if not answer.isdigit():
        raise UnreadableAnswer(f"{answer!r} is no whole number")
    return float(int(response.split()[-1]) == int(answer))


judged = TaskSpec(grade, time_limit_s=30)
"""
# Each piece as docs/how_it_works.md says: a line in its registry, with a function where one is needed.
RIGHT = {
    "exploration.py": [
        (
            '    "none": torch.ones_like,\n',
            '    "none": torch.ones_like,\n    "half": lambda entropy: 1 / (1 + entropy),\n',
        ),
        (
            '    "ratio": lambda measure',
            '    "squared": lambda measure, counted: measure * measure.abs(),\n    "ratio": lambda measure',
        ),
    ],
    "hybrid_group.py": [
        (
            "_PLAIN_MODES = {\n",
            "def _ordinary(similarity, reward, generator):\n"
            "    return torch.argsort((similarity - similarity.mean()).abs(), stable=True)\n\n\n"
            '_PLAIN_MODES = {\n    "ordinary": ReplaceMode(_ordinary, "max"),\n',
        )
    ],
}
# A weight without bound, a shaping that turns the order around, and three modes: one leaves rollouts out, one ranks
# like another, one does not say that it looks at similarity.
WRONG = {
    "exploration.py": [
        (
            '    "none": torch.ones_like,\n',
            '    "none": torch.ones_like,\n    "inverse": lambda entropy: 1 / entropy,\n',
        ),
        (
            '    "ratio": lambda measure',
            '    "turned": lambda measure, counted: -measure,\n    "ratio": lambda measure',
        ),
    ],
    "hybrid_group.py": [
        (
            "_PLAIN_MODES = {\n",
            "_PLAIN_MODES = {\n"
            '    "first": ReplaceMode(lambda similarity, reward, generator: reward.nonzero().flatten(), None),\n'
            '    "same": ReplaceMode(_most_similar, "mean"),\n'
            '    "silent": ReplaceMode(lambda s, reward, generator: torch.argsort(s * s - s, stable=True), None),\n',
        )
    ],
}


@pytest.fixture()
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name in ("oger_recipe", "patches", "configs", "tests/unit"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", folder)
    return folder


def write(checkout: Path, pieces: dict[str, list[tuple[str, str]]]) -> None:
    for name, changes in pieces.items():
        path = checkout / ALGORITHM / name
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text)


def run(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=HANG_S)


def dry_run(checkout: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Without the user's cache: where the task's policy is there, the verifiers of these tests judge teachers."""
    own = ["--oger.task.cache", str(checkout / "tasks")]
    return run(checkout, "oger_recipe.cli.train", "--recipe", "countdown_cpu", "--dry-run", *own, *flags)


def test_right_pieces_pass_the_contracts_unedited_and_a_run_uses_them(checkout: Path) -> None:
    write(checkout, RIGHT)
    (checkout / "mine.py").write_text(VERIFIER)
    tested = run(checkout, "pytest", *CONTRACTS)
    assert tested.returncode == 0, tested.stdout[-3000:]
    flags = ["--oger.last_token_enp_reward", "mine:third", "--oger.similarity_shaping", "squared"]
    flags += ["--algo.advantage.estimator", "mine:over_mean", "--oger.entropy_position", "mean"]
    flags += ["--oger.verifiers", "countdown=mine:grade", "--oger.replace_mode", "wrong_first_ordinary"]
    used = dry_run(checkout, *flags)
    assert used.returncode == 0, used.stderr
    assert f"recipe: {checkout / 'configs' / 'countdown_cpu.yaml'}" in used.stdout and "GPUs by role" in used.stdout
    assert "no effect" not in used.stdout
    # The mode's name does not say "similarity"; similarity is computed all the same, and no note says otherwise.
    used = dry_run(
        checkout, "--oger.bonus_weight", "0", "--oger.replace_mode", "ordinary", "--oger.embedding_max_tokens", "64"
    )
    assert used.returncode == 0 and "no effect" not in used.stdout
    shown = run(checkout, "oger_recipe.cli.train", "--help", "oger.last_token_enp_reward")
    assert "{exp_neg_entropy,neg_entropy,entropy,none,half,module:name}" in shown.stdout


def test_wrong_pieces_die_by_name(checkout: Path) -> None:
    write(checkout, WRONG)
    tested = run(checkout, "pytest", *CONTRACTS)
    assert tested.returncode == 1
    dead = set(re.findall(r"^FAILED \S+\[([\w.-]+)\]", tested.stdout, flags=re.MULTILINE))
    names = {"inverse", "turned", "first", "silent"}
    assert names <= {part for test in dead for part in re.split(r"[-\[\]]", test)}
    assert not dead & {"entropy", "ratio", "random", "similarity_mean_des"}  # nobody else does
    assert "these do the same: [('same', 'similarity_mean_des')]" in tested.stdout


def test_a_misspelt_piece_is_refused_before_anything_starts(checkout: Path) -> None:
    (checkout / "mine.py").write_text(VERIFIER)
    wrong = ["--oger.verifiers", "countdown=mine:grades", "--algo.advantage.estimator", "mine:third"]
    refused = dry_run(checkout, *wrong)
    assert refused.returncode == 1 and "oger.verifiers: task 'mine:grades' is not a verifier" in refused.stderr
    assert "algo.advantage.estimator: 'mine:third' fails when it is called with (rewards, baseline)" in refused.stderr
    refused = dry_run(checkout, "--oger.replace_mode", "ordinary")
    assert refused.returncode == 1 and "invalid choice: 'ordinary'" in refused.stderr
    assert "similarity_mean_des" in refused.stderr and "Traceback" not in refused.stderr


def test_a_verifier_that_raises_for_one_teacher_costs_that_teacher_and_a_bad_answer_the_row(
    tmp_path: Path, forks: Forks
) -> None:
    (tmp_path / "mine.py").write_text(STRICT)
    texts = ("so 4", "so four", "so 5")
    teachers = [{"source": "r1", "text": text, "correct": None} for text in texts]
    rows = [{"uid": "a", "prompt": "2+2?", "answer": "4", "task": "mine:judged", "teachers": teachers}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mix.yaml").write_text("sources: [{name: x, path: rows.jsonl}]\n")
    command = ["-m", "oger_recipe.cli.data", "prepare", "mix.yaml", "--out", "out.jsonl"]
    refused = forks.run(*command, cwd=tmp_path)
    assert refused.returncode == 1 and "rows.jsonl:1: task 'mine:judged' is code" in refused.stderr
    command += ["--allow_task", "mine:judged"]
    done = forks.run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (written,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [teacher["text"] for teacher in written["teachers"]] == ["so 4"]
    header, _, counted = (line.split("|") for line in done.stdout.splitlines() if line.startswith("|"))
    by_name = {name.strip(): value.strip() for name, value in zip(header, counted, strict=True)}
    assert (by_name["kept"], by_name["wrong"], by_name["not graded"]) == ("1", "1", "1")

    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0] | {"answer": "four"}) + "\n")
    refused = forks.run(*command, "--force", cwd=tmp_path)
    assert refused.returncode == 1 and refused.stderr.endswith("rows.jsonl:1: 'four' is no whole number\n")
    assert "Traceback" not in refused.stderr
