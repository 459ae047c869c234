"""What another attempt in a run's folder may do there: begin anew, go on, with which settings, and beside whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import Forks

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl, write_jsonl
from oger_recipe.lab.build import cached
from oger_recipe.report.curves import PICTURES
from oger_recipe.run.ends import progress, resume_command, typed
from oger_recipe.run.resume import check_records, check_settings
from oger_recipe.run_folder import checkpoints, own_files
from oger_recipe.run_folder.attempt import (
    begin_anew,
    check_continued,
    check_folder,
    check_inputs,
    cut_back,
    locked,
    mark_resumed,
    trained,
)
from oger_recipe.run_folder.worker_logs import NAMES
from oger_recipe.settings.recipe_file import read_recipe, write_resolved

HOLD = """
import sys, time
from pathlib import Path
from oger_recipe.run_folder.attempt import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    """Of a run that has begun."""
    (tmp_path / "run" / "samples").mkdir(parents=True)
    own_files.begin(tmp_path / "run")
    (tmp_path / "run" / "command.sh").write_text("python ...\n")
    return tmp_path / "run"


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")


def files_in(folder: Path) -> set[str]:
    """But for the marker: links to folders are files here."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    return found - {own_files.MARKER}


def written_by_a_run(run_dir: Path) -> None:
    """The files of a run with supervised training, a critic, evaluations and checkpoints."""
    put(run_dir, *own_files.RECORDS, "command.sh", "recipe.yaml", "environment.json", "summary.json")
    put(run_dir, "reward_errors.jsonl", "source_errors.jsonl")
    put(run_dir / "data", "train.jsonl", "teachers.arrow", "eval.jsonl", "counts.json", "supervised.jsonl")
    put(run_dir, "samples/step_00001.jsonl", "samples/step_123456.jsonl")
    put(run_dir / "eval", "step_00000.jsonl", "step_00000.json", "step_00000.md")
    put(run_dir / "curves", "solve_rate.png", *(f"{name}.png" for name in PICTURES))
    put(run_dir / "logs", "driver.log", "error.log", "supervised.log", "policy-0.log", *(f"{n}.log" for n in NAMES))
    put(run_dir / "tensorboard" / "ppo_0101", "events.out.tfevents.17.host.1.0")
    for folder in ("model", "model_critic", "supervised_model"):
        put(run_dir / folder, "config.json", "model.safetensors")
    own_files.note_models(run_dir)
    for folder, step in ((run_dir / "checkpoints", 2), (run_dir / "checkpoints" / "best", 1)):
        checkpoints.begin(folder, step)
        put(folder, *(f"{role}/{name}" for role in ("_actor", "_critic") for name in ("latest", "zero_to_fp32.py")))
        put(folder, f"_actor/global_step{step}/optim_states.pt", f"_critic/global_step{step}/optim_states.pt")
        put(folder, f"_sources/global_step{step}/prime/optim_states.pt", f"global_step{step}_hf/config.json")
        checkpoints.seal(folder, step)


def test_of_a_whole_run_nothing_is_left(run_dir: Path) -> None:
    written_by_a_run(run_dir)
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    assert [path.name for path in run_dir.iterdir()] == [own_files.MARKER]


OTHERS = (
    "data/precious.csv", "samples/notes.txt", "samples/step_mine.jsonl", "eval/leaderboard.md", "curves/mine.png",
    "logs/mine.log", "tensorboard/other/notes", "checkpoints/_actor/global_step2/mine.txt", "checkpoints/README",
    "checkpoints/elsewhere.json", "wandb/run-1/files/config.yaml", "notes.txt", "mine/train.jsonl",
)  # fmt: skip


def test_what_others_put_beside_a_runs_files_is_kept_and_named(run_dir: Path, capsys) -> None:
    written_by_a_run(run_dir)
    put(run_dir, *OTHERS)
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    assert files_in(run_dir) == set(OTHERS)
    named = [line.split(",")[0].removeprefix("note: kept ") for line in capsys.readouterr().out.splitlines()]
    assert sorted(named) == sorted(str(run_dir / name) for name in OTHERS[:10])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    ["command.sh", "metrics.jsonl", "data/train.jsonl", "model/weights.gguf", "curves/solve_rate.png", "eval",
     "checkpoints/global_step3.json", own_files.MARKER],
)  # fmt: skip
def test_without_a_marker_nothing_is_removed_or_written(tmp_path: Path, name: str, overwrite: bool) -> None:
    """The marker itself is none, where a run has not written it."""
    put(tmp_path, name, "data/precious.csv")
    with pytest.raises(
        RecipeError, match=f"would overwrite files in .*{tmp_path} that no run .*: {name}; nothing was removed"
    ):
        begin_anew(tmp_path, tmp_path / "checkpoints", overwrite=overwrite)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        name,
        "data/precious.csv",
    }


def test_a_run_may_begin_beside_other_files(tmp_path: Path) -> None:
    put(tmp_path, "notes.txt", "data/precious.csv")
    check_folder(tmp_path, tmp_path / "checkpoints", overwrite=False)
    assert not own_files.is_marked(tmp_path)
    begin_anew(tmp_path, tmp_path / "checkpoints", overwrite=False)
    assert own_files.is_marked(tmp_path) and files_in(tmp_path) == {"notes.txt", "data/precious.csv"}


def test_a_check_makes_nothing(tmp_path: Path) -> None:
    check_folder(tmp_path / "run", tmp_path / "elsewhere", overwrite=True)
    check_continued(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_model_that_was_put_there_after_the_run_is_nobody_elses_to_remove(run_dir: Path) -> None:
    written_by_a_run(run_dir)
    put(run_dir, "model/adapter.safetensors")
    with pytest.raises(RecipeError, match=f"{run_dir} .*: model/adapter.safetensors; nothing was removed"):
        begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    check_continued(run_dir)  # a save that broke off, for one that goes on
    mark_resumed(run_dir)
    own_files.note_models(run_dir)
    assert "model/adapter.safetensors" not in own_files.own(run_dir)  # it was there before
    put(run_dir, "model/config.json", "model/tokenizer.json")
    own_files.note_models(run_dir)
    assert {"model/model.safetensors", "model/tokenizer.json"} <= set(own_files.own(run_dir))


@pytest.mark.parametrize("link", ["samples", "data/train.jsonl", "model", "model/model.safetensors"])
def test_a_link_is_neither_followed_nor_written_through(run_dir: Path, tmp_path: Path, link: str) -> None:
    written_by_a_run(run_dir)
    put(tmp_path / "theirs", "step_00001.jsonl", "model.safetensors")
    if (run_dir / link).is_dir():
        (run_dir / link).rename(tmp_path / "before")
    else:
        (run_dir / link).unlink()
    (run_dir / link).symlink_to(tmp_path / "theirs" if "." not in link else tmp_path / "theirs" / "step_00001.jsonl")
    before = files_in(tmp_path)
    with pytest.raises(RecipeError, match=f"{run_dir} .*: {link}; nothing was removed"):
        begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    assert files_in(tmp_path) == before


def test_a_checkpoint_that_is_a_link_goes_and_what_it_leads_to_stays(run_dir: Path, tmp_path: Path) -> None:
    written_by_a_run(run_dir)
    exported = run_dir / "checkpoints" / "global_step2_hf"
    exported.rename(tmp_path / "exported")
    exported.symlink_to(tmp_path / "exported")
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    assert files_in(tmp_path / "exported") == {"config.json"} and files_in(run_dir) == {"checkpoints/global_step2_hf"}


def test_a_run_removes_nothing_that_it_is_to_read(run_dir: Path, tmp_path: Path, monkeypatch) -> None:
    """As --actor.model_name_or_path runs/x/model --oger.run_dir runs/x --overwrite would."""
    monkeypatch.chdir(tmp_path)
    written_by_a_run(run_dir)
    put(run_dir, "data/mine.jsonl")
    for name in ("model", "data/train.jsonl", "checkpoints/global_step2_hf"):
        for path in (f"run/{name}", str(run_dir / name)):
            with pytest.raises(RecipeError, match=f"actor.model_name_or_path {path} belongs to the earlier run"):
                check_inputs(run_dir, {"actor.model_name_or_path": path})
    outputs = {
        "oger.run_dir": str(run_dir),
        "ckpt.output_dir": str(run_dir / "model"),
        "oger.task.cache": str(tmp_path),
    }
    check_inputs(run_dir, outputs | {"data.prompt_dataset": str(run_dir / "data" / "mine.jsonl"), "train.seed": 3})


def test_a_run_of_an_earlier_version_is_gone_on_with_and_not_removed(run_dir: Path) -> None:
    written_by_a_run(run_dir)
    (run_dir / own_files.MARKER).unlink()
    before = files_in(run_dir)
    for overwrite in (False, True):
        with pytest.raises(RecipeError, match="an earlier version, .*: resume it with --ckpt.load_enable"):
            begin_anew(run_dir, run_dir / "checkpoints", overwrite=overwrite)
    mark_resumed(run_dir)
    assert files_in(run_dir) == before and not own_files.is_marked(run_dir)


def test_a_run_that_goes_on_in_another_folder_writes_over_nothing(tmp_path: Path) -> None:
    put(tmp_path, "data/train.jsonl")
    with pytest.raises(RecipeError, match="data/train.jsonl; nothing was removed"):
        mark_resumed(tmp_path)
    mark_resumed(tmp_path / "data")
    assert own_files.is_marked(tmp_path / "data") and not own_files.is_marked(tmp_path)


def test_two_runs_cannot_hold_one_folder(tmp_path: Path, forks: Forks) -> None:
    holder = forks.start("-c", HOLD, str(tmp_path), stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RecipeError, match=f"another run is active in {tmp_path} .process {holder.pid} on "):
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
        (tmp_path / ".oger-lock").write_text(f"{gone.pid} {os.uname().nodename}\n")
        watcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"], pass_fds=(descriptor,))
    with locked(tmp_path):
        assert watcher.poll() is not None


def test_an_attempt_that_trained_nothing_does_not_block_its_folder(run_dir: Path) -> None:
    for name in ("events.jsonl", "reward_errors.jsonl", "source_errors.jsonl"):
        write_jsonl([{"event": "ready"}], run_dir / name)
    (run_dir / "notes.txt").write_text("mine")
    assert not trained(run_dir)
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=False)
    assert files_in(run_dir) == {"notes.txt"}


def test_a_run_that_trained_is_removed_only_when_asked(run_dir: Path) -> None:
    write_jsonl([{"step": 1}], run_dir / "metrics.jsonl")
    with pytest.raises(RecipeError, match="holds an earlier run"):
        begin_anew(run_dir, run_dir / "checkpoints", overwrite=False)
    begin_anew(run_dir, run_dir / "checkpoints", overwrite=True)
    assert not files_in(run_dir)


def test_overwrite_removes_nothing_from_a_folder_that_is_not_a_runs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("years of work")
    with pytest.raises(RecipeError, match="is not a run's folder"):
        begin_anew(tmp_path, tmp_path / "checkpoints", overwrite=True)
    assert (tmp_path / "data" / "thesis.tex").exists()


def test_checkpoints_elsewhere_are_not_mixed_with_those_of_a_new_run(run_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk"
    checkpoints.begin(elsewhere, 4)
    put(elsewhere, "_actor/global_step4/optim_states.pt")
    with pytest.raises(RecipeError, match=f"ckpt.path {elsewhere} holds checkpoints of an earlier run.* of step 4"):
        begin_anew(run_dir, elsewhere, overwrite=False)
    begin_anew(run_dir, elsewhere, overwrite=True)
    assert not checkpoints.found(elsewhere) and not files_in(elsewhere)
    checkpoints.begin(elsewhere / "best", 3)
    with pytest.raises(RecipeError, match=f"ckpt.path {elsewhere}/best holds checkpoints .* of step 3"):
        begin_anew(run_dir, elsewhere, overwrite=False)


def test_checkpoints_of_others_are_never_removed(run_dir: Path, tmp_path: Path) -> None:
    """Of OpenRLHF itself, for one, which writes no manifest."""
    put(tmp_path / "disk", "_actor/global_step4/optim_states.pt", "global_step4_hf/config.json")
    before = files_in(tmp_path)
    with pytest.raises(RecipeError, match="has files of step 4, but no global_step4.json: OpenRLHF itself"):
        begin_anew(run_dir, tmp_path / "disk", overwrite=True)
    assert files_in(tmp_path) == before


def test_what_came_after_the_checkpoint_is_taken_out_of_every_record(run_dir: Path) -> None:
    write_jsonl([{"step": 1}, {"step": 2}, {"step": 3}], run_dir / "metrics.jsonl")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rewa')  # killed while it wrote
    events = [{"event": "ready", "steps": 9}, {"event": "step", "step": 2}, {"event": "evaluated", "step": 3}]
    write_jsonl(events, run_dir / "events.jsonl")
    write_jsonl([{"step": 2, "uid": "a"}, {"step": 3, "uid": "b"}], run_dir / "history.jsonl")
    for name in ("step_00002.jsonl", "step_00003.jsonl", "step_00010.jsonl"):
        (run_dir / "samples" / name).write_text("{}\n")
    write_jsonl([{"step": step, "source": "judge"} for step in (1, 3)], run_dir / "source_errors.jsonl")
    cut_back(run_dir, 2)
    assert [record["step"] for record in read_jsonl(run_dir / "metrics.jsonl")] == [1, 2]
    assert read_jsonl(run_dir / "events.jsonl") == events[:2]
    assert read_jsonl(run_dir / "history.jsonl") == [{"step": 2, "uid": "a"}]
    assert [record["step"] for record in read_jsonl(run_dir / "source_errors.jsonl")] == [1]
    assert [path.name for path in (run_dir / "samples").iterdir()] == ["step_00002.jsonl"]
    assert (run_dir / "metrics.jsonl").read_text().endswith("}\n")  # what comes next begins on a line of its own


def settings_of(parser, tmp_path: Path, *flags: str):
    given = ["--oger.task.name", "countdown", "--oger.task.cache", str(tmp_path / "a"), *flags]
    value = vars(parser.parse_args(given))
    files = {"actor.model_name_or_path": POLICY, "data.prompt_dataset": f"{DATA}/train.jsonl"}
    cache = Path(value["oger.task.cache"]).expanduser()
    return value | {key: f"{cache}/{file}" for key, file in files.items()}


POLICY, DATA = "countdown-policy-0123456789abcdef", "countdown-data-fedcba9876543210"


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
    assert first == "this run cannot resume with these settings changed:"
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
    assert note == "the run resumes with another oger.bonus_weight: was 1.0 -> is 0.5"


OTHER = {"name": "other", "kind": "mine:score", "worst": 0}


@pytest.mark.parametrize(
    ("lines", "sources", "history", "needing"),
    [
        ((1, 2, 3, 4), [OTHER | {"normalize": "running"}], True, None),
        ((1, 2, 3, 4, 5), [OTHER | {"normalize": "running"}], True, None),
        ((), [OTHER | {"normalize": "group"}], False, None),  # nothing of earlier steps is used
        ((), [OTHER | {"normalize": "running"}], False, "reward source other"),
        ((), [OTHER | {"worst": None}], False, "reward source other"),  # its worst value so far
        ((1, 2, 3), [OTHER], True, "oger.use_history_samples"),
        ((1, 2), [OTHER | {"normalize": "running"}], True, "reward source other, oger.use_history_samples"),
    ],
)
def test_a_run_whose_folder_lacks_what_it_goes_on_from_is_another_run(
    parser, tmp_path: Path, lines: tuple[int, ...], sources: list[dict[str, Any]], history: bool, needing: str | None
) -> None:
    value = settings_of(parser, tmp_path) | {
        "oger.reward.sources": ({"name": "rule", "kind": "verifier"}, *sources),
        "oger.use_history_samples": history,
    }
    write_jsonl([{"step": step} for step in lines], tmp_path / "metrics.jsonl")
    checkpoint = checkpoints.Checkpoint(4, None)
    lacks = f"oger.run_dir {tmp_path} lacks the records of steps {len(lines) + 1} to 4"
    if needing:
        with pytest.raises(RecipeError, match=f"{lacks}, which {needing} would go on from: set oger.run_dir to the "):
            list(check_records(value, tmp_path, checkpoint))
        return
    notes = list(check_records(value, tmp_path, checkpoint))
    if len(lines) >= 4:
        assert not notes
        return
    records, settings = notes
    assert records == f"{lacks}: metrics, curves and alarms go on without them"
    assert settings.startswith(f"{tmp_path} has no recipe.yaml: settings could not be compared")
    (tmp_path / "recipe.yaml").touch()
    assert list(check_records(value, tmp_path, checkpoint)) == [records]


def test_a_coefficient_of_the_kl_may_change_unless_it_adapts(parser, tmp_path: Path, began_with) -> None:
    changed = ["--algo.kl.init_coef", "0.5"]
    (note,) = check_settings(settings_of(parser, tmp_path, *changed), parser, began_with)
    assert note == "the run resumes with another algo.kl.init_coef: was 0.0 -> is 0.5"
    with pytest.raises(RecipeError, match=r"algo\.kl\.init_coef was 0.0 -> is 0.5: the checkpoint holds the coeff"):
        list(check_settings(settings_of(parser, tmp_path, *changed, "--algo.kl.target=0.1"), parser, began_with))


def test_the_tasks_cache_may_lie_in_another_home(parser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache is named by ~, and what is in it by whole paths."""
    for name in (POLICY, DATA):  # so it names them
        assert len(cached(tmp_path, name[:-17], {"a": 1}, Path.touch).name) == len(name)

    def at_home(home: str, *flags: str) -> dict[str, Any]:
        monkeypatch.setenv("HOME", str(tmp_path / home))
        judge = {"name": "judge", "kind": "generative", "model": f"{tmp_path / home}/c/countdown-judge-{'a' * 16}"}
        given = settings_of(parser, tmp_path, "--oger.task.cache", "~/c", "--oger.data_cache", f"~/{home}", *flags)
        return given | {"oger.reward.sources": (judge,)}

    write_resolved(at_home("before"), tmp_path / "recipe.yaml")
    assert not list(check_settings(at_home("now"), parser, tmp_path / "recipe.yaml"))
    for key, other in (("actor.model_name_or_path", POLICY[:-1] + "0"), ("data.prompt_dataset", f"{DATA}/held_out")):
        with pytest.raises(RecipeError, match=f"{key} was .* -> is {other}"):
            list(check_settings(at_home("now") | {key: f"{tmp_path}/now/c/{other}"}, parser, tmp_path / "recipe.yaml"))
    mine = at_home("now") | {"actor.model_name_or_path": f"{tmp_path}/mine/policy"}
    with pytest.raises(RecipeError, match=f"was {POLICY} -> is {tmp_path}/mine/policy"):
        list(check_settings(mine, parser, tmp_path / "recipe.yaml"))


def test_the_command_to_go_on_with(tmp_path: Path) -> None:
    typed = ["/venv/bin/oger", "train", "--recipe", "my recipe.yaml", "--overwrite"]
    assert resume_command(typed, Path("/runs/x-2")) == (
        "oger train --recipe 'my recipe.yaml' --oger.run_dir /runs/x-2 --ckpt.load_enable"
    )
    module = ["/site/oger_recipe/cli/train.py", "--recipe", "a.yaml", "--oger.run_dir=r", "--ckpt.load_enable"]
    assert resume_command(module, Path("r")) == (
        "python -m oger_recipe.cli.train --recipe a.yaml --oger.run_dir=r --ckpt.load_enable"
    )


def test_a_module_that_was_typed_is_run_by_the_same_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "")
    words = ["/site/oger_recipe/cli/train.py", "--recipe", "my recipe.yaml", "--logger.wandb.key", "0a" * 20]
    last = typed(words).splitlines()[-1]
    assert last == f"{sys.executable} -m oger_recipe.cli.train --recipe 'my recipe.yaml' --logger.wandb.key env"


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
