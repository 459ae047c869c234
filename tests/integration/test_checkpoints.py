"""Which checkpoints count, which one is gone on from, and which may go: on files, without any run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from oger_recipe.base.errors import RecipeError
from oger_recipe.run.resume import check_learnt, choose, load
from oger_recipe.run_folder import checkpoints
from oger_recipe.run_folder.attempt import saved_something
from oger_recipe.run_folder.checkpoints import Checkpoint, removable
from oger_recipe.run_folder.hashes import Hashing


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
        "the checkpoint of step 4 has no hashes: only its files' sizes were compared",
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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("manifest", [None, b"", b"[1]"], ids=["none", "torn", "a list"])
def test_files_without_a_manifest_that_can_be_read_are_kept_whatever_the_run_does(
    tmp_path: Path, manifest: bytes | None
) -> None:
    """Whoever wrote them: OpenRLHF itself writes no manifest."""
    for step in (2, 3, 4):
        write(tmp_path, step)
    for step in (2, 4):
        name = tmp_path / f"global_step{step}.json"
        name.unlink() if manifest is None else name.write_bytes(manifest)
    there = contents(tmp_path)
    with pytest.raises(RecipeError, match="has files of step 2, but .*global_step2.json.* choose another ckpt"):
        checkpoints.refuse_foreign(tmp_path, checkpoints.found(tmp_path))
    chosen, passed = choose(tmp_path)
    assert contents(tmp_path) == there  # a dry run, too, says it
    what = "there is no global_step4.json" if manifest is None else "global_step4.json is damaged: "
    assert passed[0].startswith(f"the checkpoint of step 4 is skipped: {what}")
    assert passed[1] == "files of step 4 are kept: they get the ending .set-aside"
    for round in (1, 2):  # the run comes to step 4, twice
        load(tmp_path, choose(tmp_path)[0])
        assert [one.step for one in checkpoints.found(tmp_path)] == [2, 3]
        aside = {name.replace(f".set-aside-{round}", ""): text for name, text in contents(tmp_path).items()}
        assert there.items() <= aside.items()
        checkpoints.remove(tmp_path, 4)
        write(tmp_path, 4)
        if manifest is None:
            (tmp_path / "global_step4.json").unlink()
        else:
            (tmp_path / "global_step4.json").write_bytes(manifest)
    checkpoints.remove(tmp_path, 2)
    assert (tmp_path / "_actor" / "global_step2" / "optim_states.pt").exists()


def test_a_flipped_byte_is_named_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    for step in (2, 4):
        write(tmp_path, step)
    hashing = Hashing()
    assert "hashes" not in json.loads((tmp_path / "global_step4.json").read_text())  # sealed, and not hashed yet
    for step in (2, 4):
        hashing.start(tmp_path, step)
    hashing.finish()
    known = checkpoints.found(tmp_path)[1].hashes
    assert known["global_step4_hf/model.safetensors"] == hashlib.sha256(b"w" * 10).hexdigest()
    assert len(known) == 4 and choose(tmp_path)[1] == [] and choose(tmp_path)[0].step == 4
    (tmp_path / "_critic" / "global_step4" / "model_states.pt").write_bytes(b"m" * 50 + b"n" + b"m" * 49)
    chosen, passed = choose(tmp_path)
    fault = "_critic/global_step4/model_states.pt is not as it was written: its SHA-256 differs"
    assert (chosen.step, passed) == (2, [f"the checkpoint of step 4 is skipped: {fault}"])
    assert checkpoints.newest_whole(checkpoints.found(tmp_path)).step == 4  # by sizes alone
    load(tmp_path, chosen)
    assert [one.fault for one in checkpoints.found(tmp_path)] == [None, fault]  # whoever asks for the newest now
    checkpoints.remove(tmp_path, 4)
    hashing.start(tmp_path, 4)  # gone in the meantime
    hashing.finish()
    assert [one.step for one in checkpoints.found(tmp_path)] == [2]


def unreadable(file: Path) -> None:
    """Give what a disk that is away gives: no file of the kernel's process memory can be read from its start."""
    file.unlink()
    file.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("name", ["_actor/global_step4/empty.pt", "global_step4.json"])
def test_no_run_goes_on_from_an_earlier_checkpoint_while_a_newer_one_cannot_be_read(tmp_path: Path, name: str) -> None:
    """It would cut the records back for good, and the newer one might count again later, without them."""
    for step in (2, 4):
        write(tmp_path, step)
        (tmp_path / "_actor" / f"global_step{step}" / "empty.pt").touch()
        checkpoints.seal(tmp_path, step)
    hashing = Hashing()
    for step in (2, 4):
        hashing.start(tmp_path, step)
    hashing.finish()
    there, whole, before = contents(tmp_path), checkpoints.found(tmp_path), choose(tmp_path)[0]
    assert before.step == 4
    unreadable(tmp_path / name)
    os.utime(tmp_path / "_actor" / "global_step4" / "model_states.pt")  # its hashes are compared anew
    said = rf"step 4 in {tmp_path} may be whole, but \S*{name} cannot be read now \(Input/output error\); nothing was "
    with pytest.raises(RecipeError, match=said + "changed. Try again .*move global_step4.json away"):
        choose(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(there[name])
    assert contents(tmp_path) == there and checkpoints.found(tmp_path) == whole and choose(tmp_path)[0] == before


def test_a_newer_checkpoint_that_cannot_be_read_any_more_stops_a_load_before_it_changes_anything(
    tmp_path: Path,
) -> None:
    for step in (2, 4):
        write(tmp_path, step)
    (tmp_path / "_actor" / "global_step4" / "empty.pt").touch()
    checkpoints.seal(tmp_path, 4)
    hashing = Hashing()
    hashing.start(tmp_path, 4)
    hashing.finish()
    chosen = checkpoints.found(tmp_path)[0]
    unreadable(tmp_path / "_actor" / "global_step4" / "empty.pt")
    with pytest.raises(RecipeError, match="may be whole, but _actor/global_step4/empty.pt cannot be read now"):
        load(tmp_path, chosen)
    assert not (tmp_path / "_actor" / "latest").exists()


def test_what_lies_on_a_disk_that_fails_is_neither_missing_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, stat = write(tmp_path, 4), Path.stat
    there = contents(tmp_path)

    def failing(path: Path, **how: bool) -> os.stat_result:
        if path == lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return stat(path, **how)

    with monkeypatch.context() as on:
        on.setattr(Path, "stat", failing)
        (one,) = checkpoints.found(tmp_path)
        assert (one.unread, one.fault) == (True, f"{lost} cannot be read now (Input/output error)")
        with pytest.raises(RecipeError, match=f"may be whole, but {lost} cannot be read now"):
            choose(tmp_path)
        with pytest.raises(RecipeError, match=f"files of step 4, but {lost} cannot be read now"):
            checkpoints.refuse_foreign(tmp_path, [one])
        assert saved_something(tmp_path / "run", tmp_path)
        (tmp_path / "global_step4.json").rename(tmp_path / "away")  # as the message asks
        assert [(one.unread, one.foreign) for one in checkpoints.found(tmp_path)] == [(False, True)]
        (tmp_path / "away").rename(tmp_path / "global_step4.json")
    unreadable(tmp_path / "global_step4.json")
    checkpoints.remove(tmp_path, 4)
    (tmp_path / "global_step4.json").unlink()
    assert contents(tmp_path).keys() == there.keys() - {"global_step4.json"}


def test_a_name_that_only_looks_like_a_step_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "global_step\u00b2.json").write_text("{}")
    (tmp_path / "global_step\u0663.json").write_text("{}")  # a decimal digit of another script
    assert [one.step for one in checkpoints.found(tmp_path)] == [2]


def json_values(generator: random.Random, depth: int = 3) -> Any:
    plain = (
        None,
        True,
        False,
        0,
        -1,
        300,
        1.5,
        float("nan"),
        10**30,
        "",
        "4",
        "\ud800",
        "a\0b",
        "x" * 5000,
        "../../..",
    )
    keys = (
        "step",
        "files",
        "facts",
        "hashes",
        "fault",
        "metric",
        "value",
        "solved",
        "_actor/global_step4/optim_states.pt",
    )
    if depth == 0 or generator.random() < 0.3:
        return generator.choice(plain)
    several = [json_values(generator, depth - 1) for _ in range(generator.randrange(4))]
    return several if generator.random() < 0.3 else {generator.choice(keys): each for each in several}


@pytest.mark.parametrize("seed", range(8))
def test_a_manifest_of_any_shape_is_skipped_with_a_sentence(tmp_path: Path, seed: int) -> None:
    """Alone, or as one part of a manifest that is right in the others."""
    generator = random.Random(seed)
    for step in (2, 4):
        write(tmp_path, step)
    path = tmp_path / "global_step4.json"
    right = json.loads(path.read_text())
    for _ in range(100):
        value = json_values(generator)
        part = generator.choice([*right, "hashes", "fault", None])
        path.write_text(json.dumps(value if part is None else right | {part: value}))
        chosen, passed = choose(tmp_path)
        for sentence in passed:
            assert sentence.encode() and len(sentence) < 6000
        assert chosen.step in (2, 4) and ("step 4 is skipped: " in "".join(passed)) == (chosen.step == 2)
        checkpoints.removable(checkpoints.found(tmp_path), 4, max_num=1, max_bytes=1)
        checkpoints.add(tmp_path, 2, hashes={})
    path.write_text("[" * 100_000)
    assert (
        choose(tmp_path)[1][0] == "the checkpoint of step 4 is skipped: global_step4.json is damaged: it is not JSON"
    )


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


def damaged(step: int) -> Checkpoint:
    return Checkpoint(step, "a file is missing", size=10, facts={"solved": True})


@pytest.mark.parametrize(
    ("there", "newest", "max_num", "max_bytes", "gone"),
    [
        (sealed(2, 4, 6), 6, 3, 100, []),
        (sealed(2, 4, 6, 8), 8, 3, 100, [2]),
        (sealed(2, 4, 6, 8), 8, 1, 100, [2, 4, 6]),
        (sealed(2, 4, 6, 8), 8, 9, 25, [2, 4]),
        (sealed(2, 4), 4, 1, 5, [2]),  # the newest stays, whatever the limits
        (sealed(2, 4, 6, 8, solved=(2, 4)), 8, 1, 100, [2, 6]),  # and so does the last that solved something
        ([*sealed(2, solved=(2,)), damaged(4), *sealed(6)], 6, 1, 100, [4]),  # a damaged one is no good one
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
