"""What another attempt in a run's folder may do there: begin anew, go on, with which settings, and beside whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oger_recipe.errors import RecipeError
from oger_recipe.files import read_jsonl, write_jsonl
from oger_recipe.run.attempt import begin_anew, cut_back, locked, trained
from oger_recipe.run.ends import continuing, progress
from oger_recipe.run.resume import check_settings
from oger_recipe.run_folder import checkpoints
from oger_recipe.settings.recipe_file import read_recipe, write_resolved

HOLD = """
import sys, time
from pathlib import Path
from oger_recipe.run.attempt import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run" / "samples").mkdir(parents=True)
    (tmp_path / "run" / "command.sh").write_text("python ...\n")
    return tmp_path / "run"


def test_two_runs_cannot_hold_one_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RecipeError, match=f"a run is going on in {tmp_path} .process {holder.pid} on "):
        with locked(tmp_path):
            pass
    holder.kill()
    holder.communicate()
    with locked(tmp_path) as descriptor:
        assert os.fstat(descriptor).st_size


def test_the_folder_of_a_killed_run_is_waited_for_until_it_is_cleared(tmp_path: Path) -> None:
    """The watcher of a killed run still has the lock, while the process whose number is in it is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with locked(tmp_path) as descriptor:
        (tmp_path / ".lock").write_text(f"{gone.pid} {os.uname().nodename}\n")
        watcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"], pass_fds=(descriptor,))
    with locked(tmp_path):
        assert watcher.poll() is not None


def test_an_attempt_that_trained_nothing_does_not_block_its_folder(run_dir: Path) -> None:
    for name in ("events.jsonl", "reward_errors.jsonl", "source_errors.jsonl"):
        write_jsonl([{"event": "ready"}], run_dir / name)
    (run_dir / "notes.txt").write_text("mine")
    assert not trained(run_dir)
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=False)
    assert [path.name for path in run_dir.iterdir()] == ["notes.txt"]


def test_a_run_that_trained_is_removed_only_when_asked(run_dir: Path) -> None:
    write_jsonl([{"step": 1}], run_dir / "metrics.jsonl")
    with pytest.raises(RecipeError, match="holds an earlier run"):
        begin_anew(run_dir, run_dir / "checkpoints", overwrite=False)
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    assert not list(run_dir.iterdir())


def test_overwrite_removes_nothing_from_a_folder_that_is_not_a_runs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("years of work")
    with pytest.raises(RecipeError, match="is not a run's folder"):
        begin_anew(tmp_path, tmp_path / "checkpoints", overwrite=True)
    assert (tmp_path / "data" / "thesis.tex").exists()


def test_checkpoints_elsewhere_are_not_mixed_with_those_of_a_new_run(run_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk"
    (elsewhere / "_actor" / "global_step4").mkdir(parents=True)
    with pytest.raises(RecipeError, match=f"ckpt.path {elsewhere} holds checkpoints of an earlier run.* of step 4"):
        begin_anew(run_dir, elsewhere, overwrite=False)
    begin_anew(run_dir, elsewhere, overwrite=True)
    assert not checkpoints.found(elsewhere)


def test_what_came_after_the_checkpoint_is_taken_out_of_every_record(run_dir: Path) -> None:
    write_jsonl([{"step": 1}, {"step": 2}, {"step": 3}], run_dir / "metrics.jsonl")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rewa')  # killed while it wrote
    events = [{"event": "ready", "steps": 9}, {"event": "step", "step": 2}, {"event": "evaluated", "step": 3}]
    write_jsonl(events, run_dir / "events.jsonl")
    write_jsonl([{"step": 2, "uid": "a"}, {"step": 3, "uid": "b"}], run_dir / "history.jsonl")
    for name in ("step_00002.jsonl", "step_00003.jsonl", "step_00010.jsonl"):
        (run_dir / "samples" / name).write_text("{}\n")
    cut_back(run_dir, 2)
    assert [record["step"] for record in read_jsonl(run_dir / "metrics.jsonl")] == [1, 2]
    assert read_jsonl(run_dir / "events.jsonl") == events[:2]
    assert read_jsonl(run_dir / "history.jsonl") == [{"step": 2, "uid": "a"}]
    assert [path.name for path in (run_dir / "samples").iterdir()] == ["step_00002.jsonl"]
    assert (run_dir / "metrics.jsonl").read_text().endswith("}\n")  # what comes next begins on a line of its own


def settings_of(parser, tmp_path: Path, *flags: str):
    given = ["--oger.task.name", "countdown", "--oger.task.cache", str(tmp_path / "a"), *flags]
    value = vars(parser.parse_args(given))
    return value | {"actor.model_name_or_path": f"{value['oger.task.cache']}/countdown-policy-1"}


@pytest.fixture()
def began_with(parser, tmp_path: Path) -> Path:
    write_resolved(settings_of(parser, tmp_path), tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml", parser)
    return tmp_path / "recipe.yaml"


def test_what_would_make_it_another_run_is_refused_at_once(parser, tmp_path: Path, began_with: Path) -> None:
    flags = ["--actor.adam.lr", "0.5", "--train.seed", "7", "--rollout.batch_size", "3", "--oger.task.train_problems"]
    with pytest.raises(RecipeError) as refused:
        list(check_settings(settings_of(parser, tmp_path, *flags, "77"), parser, began_with))
    first, *others = str(refused.value).split("\n  ")
    assert first == "this run cannot be continued with other settings than it began with:"
    named = [line.removeprefix("- ").split(":")[0] for line in others if line.startswith("- ")]
    before = settings_of(parser, tmp_path)
    assert named == [
        f"actor.adam.lr was {before['actor.adam.lr']} -> is 0.5",
        f"oger.task.train_problems was {before['oger.task.train_problems']} -> is 77",
        f"rollout.batch_size was {before['rollout.batch_size']} -> is 3",
        "train.seed was 42 -> is 7",
    ]


def test_what_says_how_far_and_how_loud_may_change_and_the_rest_is_said(parser, tmp_path: Path, began_with) -> None:
    free = ["--oger.total_training_steps", "9", "--train.num_episodes", "7", "--ckpt.save_steps", "3"]
    free += ["--eval.steps", "5", "--oger.grading_workers", "3", "--ckpt.load_enable", "--oger.run_dir", "elsewhere"]
    free += ["--oger.task.cache", str(tmp_path / "moved"), "--train.micro_batch_size", "2"]
    assert not list(check_settings(settings_of(parser, tmp_path, *free), parser, began_with))
    (note,) = check_settings(settings_of(parser, tmp_path, *free, "--oger.bonus_weight", "0.5"), parser, began_with)
    assert note == "the run goes on with another oger.bonus_weight: was 1.0 -> is 0.5"


def test_the_command_to_go_on_with(tmp_path: Path) -> None:
    typed = ["/venv/bin/oger", "train", "--recipe", "my recipe.yaml", "--overwrite"]
    assert continuing(typed, Path("/runs/x-2")) == (
        "oger train --recipe 'my recipe.yaml' --oger.run_dir /runs/x-2 --ckpt.load_enable"
    )
    module = ["/site/oger_recipe/cli/train.py", "--recipe", "a.yaml", "--oger.run_dir=r", "--ckpt.load_enable"]
    assert continuing(module, Path("r")) == (
        "python -m oger_recipe.cli.train --recipe a.yaml --oger.run_dir=r --ckpt.load_enable"
    )


@pytest.mark.parametrize(
    ("total", "steps", "said"),
    [
        (None, [], "before the first step"),
        (60, [], "at step 1 of 60"),
        (60, [1, 2], "at step 3 of 60"),
        (3, [1, 2, 3], "after step 3 of 3"),
    ],
)
def test_where_a_run_is(run_dir: Path, total: int | None, steps: list[int], said: str) -> None:
    ready = [{"event": "ready", "steps": total}] if total else []
    write_jsonl([*ready, *({"event": "step", "step": step} for step in steps)], run_dir / "events.jsonl")
    assert progress(run_dir) == said
