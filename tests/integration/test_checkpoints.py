"""Which checkpoints count, which one is gone on from, and which may go: on files, without any run."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.run.resume import check_learnt, choose, load
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.checkpoints import Checkpoint, removable


def write(folder: Path, step: int, *, whole: bool = True) -> Path:
    """A checkpoint as a run leaves it, or a kill in the midst of its write; the file of the optimizer."""
    checkpoints.begin(folder, step)
    for role in ("_actor", "_critic"):
        (folder / role / f"global_step{step}").mkdir(parents=True)
        (folder / role / f"global_step{step}" / "model_states.pt").write_bytes(b"m" * 100)
    (folder / f"global_step{step}_hf").mkdir()
    (folder / f"global_step{step}_hf" / "model.safetensors").write_bytes(b"w" * 10)
    file = folder / "_actor" / f"global_step{step}" / "optim_states.pt"
    file.write_bytes(b"o" * 200)
    if whole:
        checkpoints.seal(folder, step)
    return file


def test_the_newest_whole_one_is_gone_on_from(tmp_path: Path) -> None:
    for step in (2, 4, 6, 10):
        write(tmp_path, step, whole=step != 10)
    (tmp_path / "_actor" / "global_step6" / "optim_states.pt").write_bytes(b"o" * 150)
    chosen, passed_over = choose(tmp_path)
    assert chosen.step == 4 and chosen.size == 100 + 100 + 200 + 10
    assert passed_over == [
        "the checkpoint of step 6 is skipped: _actor/global_step6/optim_states.pt has 150 of 200 bytes",
        "the checkpoint of step 10 is skipped: it was not written completely",
    ]


@pytest.mark.parametrize("latest", ["global_step99", ""], ids=["dangling", "empty"])
def test_deepspeeds_own_pointer_does_not_decide(tmp_path: Path, latest: str) -> None:
    write(tmp_path, 2)
    write(tmp_path, 3, whole=False)
    (tmp_path / "_actor" / "latest").write_text(latest)
    load(tmp_path, choose(tmp_path)[0])
    assert (tmp_path / "_actor" / "latest").read_text() == (tmp_path / "_critic" / "latest").read_text()
    assert (tmp_path / "_actor" / "latest").read_text() == "global_step2"
    assert [one.step for one in checkpoints.found(tmp_path)] == [2]  # the unfinished one is gone
    assert not (tmp_path / "global_step3_hf").exists()


def test_files_without_a_manifest_are_refused_before_they_are_written_over(tmp_path: Path) -> None:
    """Whoever wrote them: OpenRLHF itself writes no manifest."""
    write(tmp_path, 3)
    for step in (2, 4):
        write(tmp_path, step, whole=False)
        (tmp_path / f"global_step{step}.json").unlink()
    with pytest.raises(RecipeError, match="has files of step 4, but no global_step4.json: .* choose another ckpt"):
        choose(tmp_path)
    for step in (2, 4):
        checkpoints.remove(tmp_path, step)
        assert (tmp_path / "_actor" / f"global_step{step}" / "optim_states.pt").exists()


def test_an_empty_folder_of_a_step_is_in_nobodys_way(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "_actor" / "global_step3" / "empty").mkdir(parents=True)
    load(tmp_path, choose(tmp_path)[0])
    assert [one.step for one in checkpoints.found(tmp_path)] == [2]


def test_a_removal_takes_the_files_of_the_manifest_and_no_other(tmp_path: Path) -> None:
    write(tmp_path, 2)
    mine, outside = tmp_path / "_actor" / "global_step2" / "mine.txt", tmp_path / "outside.txt"
    manifest = json.loads((tmp_path / "global_step2.json").read_text())
    manifest["files"]["outside.txt"] = 4
    (tmp_path / "global_step2.json").write_text(json.dumps(manifest))
    for file in (mine, outside):
        file.write_text("mine")
    checkpoints.remove(tmp_path, 2)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [mine, outside]


def test_the_best_one_has_its_manifest_before_its_files(tmp_path: Path) -> None:
    """A kill in the midst of its write leaves what the next attempt knows to be a run's."""
    with checkpoints.place(Namespace(path=str(tmp_path), max_num=1, max_mem=1), "best_global_step5"):
        assert not checkpoints.found(tmp_path / "best")[0].finished
        (tmp_path / "best" / "_actor" / "global_step5").mkdir(parents=True)
        (tmp_path / "best" / "_actor" / "global_step5" / "optim_states.pt").write_text("o")
    checkpoints.remove(tmp_path / "best", 5)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, 2).unlink()
    with pytest.raises(RecipeError, match=f"no checkpoint to resume from in {tmp_path}") as refused:
        choose(tmp_path)
    assert "step 2 is skipped: _actor/global_step2/optim_states.pt is missing" in str(refused.value)


def test_a_source_that_learns_is_not_begun_anew_in_the_middle_of_a_run(tmp_path: Path) -> None:
    learns = {"name": "prime", "kind": "process", "scorer": "implicit", "model": "m", "learning_rate": 1e-6}
    stays = {"name": "plain", "kind": "process", "scorer": "implicit", "model": "m", "reference": "r"}
    rule = {"name": "rule", "kind": "verifier"}
    write(tmp_path, 2)
    chosen, _ = choose(tmp_path)
    check_learnt({"oger.reward.sources": ()}, tmp_path, chosen)
    check_learnt({"oger.reward.sources": (rule, stays)}, tmp_path, chosen)
    with pytest.raises(RecipeError, match="the checkpoint of step 2 lacks what reward source prime had learnt"):
        check_learnt({"oger.reward.sources": (rule, learns)}, tmp_path, chosen)
    (checkpoints.of_sources(tmp_path, 2) / "prime").mkdir(parents=True)
    check_learnt({"oger.reward.sources": (rule, learns)}, tmp_path, chosen)


def test_the_best_one_never_stands_for_the_last(tmp_path: Path) -> None:
    write(tmp_path / "best", 2)
    with pytest.raises(RecipeError) as refused:
        choose(tmp_path)
    assert f"The best one, of step 2, is stored apart; to resume from it: --ckpt.path {tmp_path}/best" in str(
        refused.value
    )
    assert choose(tmp_path / "best")[0].step == 2  # what the message says works


def test_weights_alone_are_nothing_to_go_on_from(tmp_path: Path) -> None:
    (tmp_path / "global_step2_hf").mkdir()
    (tmp_path / "global_step2_hf" / "model.safetensors").write_bytes(b"w")
    checkpoints.seal(tmp_path, 2)
    with pytest.raises(RecipeError, match="it has the weights, but not"):
        choose(tmp_path)


def sealed(*steps: int, solved: tuple[int, ...] = ()) -> list[Checkpoint]:
    return [Checkpoint(step, None, size=10, facts={"solved": step in solved}) for step in steps]


@pytest.mark.parametrize(
    ("there", "newest", "max_num", "max_bytes", "gone"),
    [
        (sealed(2, 4, 6), 6, 3, 100, []),
        (sealed(2, 4, 6, 8), 8, 3, 100, [2]),
        (sealed(2, 4, 6, 8), 8, 1, 100, [2, 4, 6]),
        (sealed(2, 4, 6, 8), 8, 9, 25, [2, 4]),
        (sealed(2, 4), 4, 1, 5, [2]),  # the newest stays, whatever the limits
        (sealed(2, 4, 6, 8, solved=(2, 4)), 8, 1, 100, [2, 6]),  # and so does the last that solved something
        (sealed(2, 4, 6, 8), 4, 1, 100, [2]),  # 6 and 8 are of an attempt that broke off
        ([*sealed(2), Checkpoint(4, "unfinished", finished=False), *sealed(6)], 6, 1, 100, [2]),
    ],
)
def test_the_oldest_go_once_the_new_one_is_whole(there, newest, max_num, max_bytes, gone) -> None:
    assert removable(there, newest, max_num=max_num, max_bytes=max_bytes) == gone


def test_a_checkpoint_goes_with_its_weights_and_nothing_else_does(tmp_path: Path) -> None:
    for step in (1, 11):
        write(tmp_path, step)
    (tmp_path / "model").mkdir()
    checkpoints.remove(tmp_path, 1)
    assert [one.step for one in checkpoints.found(tmp_path)] == [11]
    assert not list(tmp_path.rglob("global_step1")) and not (tmp_path / "global_step1_hf").exists()
    assert (tmp_path / "model").exists()


def test_openrlhf_saves_the_best_ones_apart_and_removes_none(tmp_path: Path) -> None:
    settings = Namespace(path=str(tmp_path), max_num=3, max_mem=1000)
    with checkpoints.place(settings, "best_global_step5") as tag:
        assert (settings.path, tag) == (str(tmp_path / "best"), "global_step5")
        assert settings.max_num > 10**9 and settings.max_mem == float("inf")
    with checkpoints.place(settings, "global_step6") as tag:
        assert (settings.path, tag) == (str(tmp_path), "global_step6")
    assert settings == Namespace(path=str(tmp_path), max_num=3, max_mem=1000)
