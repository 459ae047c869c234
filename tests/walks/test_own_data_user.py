"""What someone types who has data, teachers and a model of his own.

The data is GSM8K with its six sources of solutions: 1,319 problems that people and four models have answered.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from hang import HANG_S
from runs import ROOT, lines, samples, train

from oger_recipe.base.files import write_jsonl
from oger_recipe.lab import tiny_policy

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"
MIX = ROOT / "docs" / "mixes" / "gsm8k_six_sources.yaml"
COLUMNS = ["--data.input_key", "question", "--data.label_key", "answer", "--oger.task_name", "gsm8k"]
TEACHERS = ["--oger.teacher_key", "solutions"]

pytestmark = pytest.mark.skipif(not GSM8K.exists(), reason="shared/data is not here")


def oger_data(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oger_recipe.cli.data", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=HANG_S)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's rows (question, answer, solutions), problems to evaluate on, and a model."""
    folder = tmp_path_factory.mktemp("desk")
    files = ["--out", str(folder / "six.jsonl"), "--held_out", str(folder / "held_out.jsonl")]
    done = oger_data("prepare", str(MIX), *files, cwd=GSM8K)
    assert done.returncode == 0, done.stderr
    rows = lines(folder / "six.jsonl")
    mine = ({"question": row["prompt"], "answer": row["answer"], "solutions": row["teachers"]} for row in rows)
    write_jsonl(mine, folder / "mine.jsonl")
    problems = [{"question": row["prompt"], "answer": row["answer"]} for row in lines(folder / "held_out.jsonl")[:6]]
    hard = [problem | {"datasource": "hard"} for problem in problems[:2]]
    few = [*hard, *hard, *(problem | {"datasource": "easy"} for problem in problems[2:])]
    write_jsonl(few, folder / "few.jsonl")
    texts = (text for row in rows for text in (row["prompt"], *(teacher["text"] for teacher in row["teachers"])))
    tokenizer = tiny_policy.build_tokenizer(texts)
    tokenizer.save_pretrained(folder / "model")
    tiny_policy.build_model(tokenizer, hidden_size=64, num_layers=2).save_pretrained(folder / "model")
    return folder


def readme(desk: Path) -> list[str]:
    """The flags of the README's command for one's own data, with this user's names."""
    model, data = str(desk / "model"), str(desk / "mine.jsonl")
    return ["--actor.model_name_or_path", model, "--data.prompt_dataset", data, *COLUMNS]


def test_the_mix_gives_six_sources_and_trains_on_nothing_that_it_holds_out(desk: Path):
    rows, held_out = lines(desk / "six.jsonl"), lines(desk / "held_out.jsonl")
    by_source: dict[str, int] = {}
    for row in rows:
        for teacher in row["teachers"]:
            by_source[teacher["source"]] = by_source.get(teacher["source"], 0) + 1
    # The table in docs/data.md; by the files' own marks, of each text once a problem.
    assert by_source == {
        "human": 1319, "socratic": 1319, "6b_finetuning": 286, "6b_verification": 514, "175b_finetuning": 453,
        "175b_verification": 741,
    }  # fmt: skip
    assert len(rows) == 1319 and len(held_out) == 7473
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in held_out}


def test_the_file_is_checked_with_the_columns_of_the_run(desk: Path):
    done = oger_data("validate", "mine.jsonl", cwd=desk)
    assert done.returncode == 1 and "no column 'prompt' (data.input_key)" in done.stdout
    done = oger_data("validate", "mine.jsonl", *COLUMNS, cwd=desk)
    assert done.returncode == 0, done.stdout
    assert (
        "no teachers; if one of these columns has them, name it by --teacher_key: 'solutions' has lists" in done.stdout
    )
    done = oger_data("validate", "mine.jsonl", *COLUMNS, *TEACHERS, cwd=desk)
    assert done.returncode == 0 and "1319 rows, 0 bad" in done.stdout and "6b_finetuning 286" in done.stdout


def test_a_run_that_forgets_the_teachers_ends_before_anything_starts(desk: Path, tmp_path: Path):
    done = train(tmp_path / "run", tmp_path, *readme(desk), recipe="own_data_cpu")
    assert (
        done.returncode == 1 and "name the column of your teachers with oger.teacher_key ('solutions'" in done.stderr
    )
    assert "starting Ray" not in done.stdout
    assert not list(tmp_path.rglob("countdown-*"))  # neither task nor policy is built


@pytest.mark.full
def test_ones_own_data_teachers_and_model_train_from_end_to_end(desk: Path, tmp_path: Path):
    """The README's command, with supervised training first and small sizes."""
    shorter = ["--data.max_samples", "64", "--rollout.max_new_tokens", "160", "--data.max_len", "512"]
    shorter += ["--rollout.batch_size", "8", "--oger.total_training_steps", "2", "--no-oger.val_before_train"]
    sft = ["--oger.sft.epochs", "1", "--oger.sft.batch_size", "32", "--oger.sft.micro_batch_size", "16"]
    method = ["--oger.max_replace_num", "2", "--oger.replace_mode", "wrong_first_similarity_max_des"]
    problems = ["--eval.dataset", str(desk / "few.jsonl")]
    flags = [*readme(desk), *TEACHERS, *problems, *sft, *method, *shorter]
    done = train(tmp_path / "run", tmp_path, *flags, recipe="own_data_cpu")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(tmp_path.rglob("countdown-*"))

    rows = lines(desk / "mine.jsonl")
    right = {teacher["text"]: teacher["source"] for row in rows for teacher in row["solutions"]}
    steps, placed = lines(tmp_path / "run" / "metrics.jsonl"), []
    for step in steps:
        entered = [row for row in samples(tmp_path / "run", step["step"]) if row["off_policy"]]
        assert len(entered) == step["oger/replaced"] and all(row["score"] == 1 for row in entered)
        assert len(entered) >= 8 - step["oger/prompts_without_teacher"]  # one in every other group, or two
        assert -1 <= step["oger/similarity"] <= 1 and step["off_policy_loss"] < 0
        placed += entered
    assert [step["step"] for step in steps] == [1, 2]
    assert all(right[row["text"]] == row["source"] for row in placed)
    assert len({row["source"] for row in placed}) >= 3

    # The two hard problems are in the file twice: as many samples of each, numbered on, under a metric of its own.
    assert "note: hard repeats each of its 2 problems 2 times" in done.stdout
    answers = [
        (row["benchmark"], row["prompt"], row["sample"]) for row in lines(tmp_path / "run/eval/step_00002.jsonl")
    ]
    assert len(set(answers)) == len(answers) == 2 * 4 + 4 * 2
    assert sorted(sample for name, _, sample in answers if name == "hard") == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "after training: average avg_at_n" in done.stdout
