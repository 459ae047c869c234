"""The store of teacher trajectories: written once, mapped by every reader, looked up by uid."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from oger_recipe.teachers import store as module
from oger_recipe.teachers.store import Teacher, TeacherStore, beginning, teacher_store, write_teacher_store

ANNA = Teacher("anna", "<think>é漢🎉\n</think>", [5, 0, 2_000_000_000], 1.0, 1.0)
BERT = Teacher("bert", "3*5+12", [7], 0.1, 0.0)


def _store(path: Path, teachers: dict[str, list[Teacher]]) -> TeacherStore:
    write_teacher_store(teachers, path)
    return TeacherStore(path)


def test_teachers_come_back_as_they_were_in_their_order(tmp_path: Path) -> None:
    store = _store(tmp_path / "t.arrow", {"one": [ANNA], "two": [BERT, ANNA, BERT]})
    assert store["one"] == [ANNA]
    assert store["two"] == [BERT, ANNA, BERT]
    assert len(store) == 2


def test_the_teachers_own_probabilities_come_back_and_are_optional(tmp_path: Path) -> None:
    carl = Teacher("carl", "5", [5, 0], 1.0, 1.0, probs=[0.5, 0.25])
    assert _store(tmp_path / "t.arrow", {"one": [carl, BERT]})["one"] == [carl, BERT]
    assert BERT.probs is None


def test_a_prompt_without_teachers_or_an_unknown_one_has_none(tmp_path: Path) -> None:
    store = _store(tmp_path / "t.arrow", {"one": [ANNA], "none": []})
    assert store["none"] == store["unknown"] == store[""] == []
    assert len(store) == 1


def test_an_empty_store_opens_and_has_nothing(tmp_path: Path) -> None:
    for number, teachers in enumerate(({}, {"none": []})):
        store = _store(tmp_path / f"{number}.arrow", teachers)
        assert len(store) == 0
        assert store["one"] == []


def test_a_store_that_was_written_in_pieces_is_that_of_all_at_once(tmp_path: Path) -> None:
    teachers = {f"p-{number}": [ANNA, BERT][: 1 + number % 2] for number in range(50)}
    with teacher_store(tmp_path / "t.arrow") as add:
        for start in range(0, 50, 7):
            add({uid: teachers[uid] for uid in list(teachers)[start : start + 7]})
        add({})
        assert not (tmp_path / "t.arrow").exists()
    store = TeacherStore(tmp_path / "t.arrow")
    assert {uid: store[uid] for uid in teachers} == teachers and len(store) == 50 and store["p-50"] == []


def test_each_of_many_prompts_finds_its_own_teachers(tmp_path: Path) -> None:
    teachers = {f"p-{n}": [Teacher("a", f"text {n}", [n, n + 1], n / 2, 1.0)] * (1 + n % 3) for n in range(5000)}
    store = _store(tmp_path / "t.arrow", teachers)
    assert len(store) == 5000
    for uid in list(teachers)[::7]:
        assert store[uid] == teachers[uid]
    assert store["p-5000"] == []


def test_uids_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_key", lambda uid: {"low": 3, "high": 2**64 - 1}.get(uid, 2**63))
    store = _store(tmp_path / "t.arrow", {"high": [ANNA], "x": [ANNA], "low": [BERT], "y": [BERT], "z": [ANNA, BERT]})
    assert store["x"] == [ANNA]
    assert store["y"] == [BERT]
    assert store["z"] == [ANNA, BERT]
    assert store["low"] == [BERT]
    assert store["high"] == [ANNA]
    assert store["another"] == []


def test_a_prompt_shows_a_demonstration_between_its_two_pieces(tmp_path: Path) -> None:
    shown = {"one": ("<user>{x} ", " é\n<assistant>"), "two": ("a", "b"), "none": ("c", "d")}
    write_teacher_store({"one": [ANNA], "two": [BERT], "none": []}, tmp_path / "t.arrow", shown)
    store = TeacherStore(tmp_path / "t.arrow")
    assert store.shown_prompt("one", "{y}🎉") == "<user>{x} {y}🎉 é\n<assistant>"
    assert (store.shown_prompt("two", ""), store["two"]) == ("ab", [BERT])
    with pytest.raises(KeyError):
        store.shown_prompt("none", "x")  # nobody can be shown


def test_a_store_of_a_run_that_shows_nobody_has_no_pieces(tmp_path: Path) -> None:
    store = _store(tmp_path / "t.arrow", {"one": [ANNA]})
    assert pa.ipc.open_file(tmp_path / "t.arrow").schema.names == ["key", "uid", "teachers"]
    with pytest.raises(KeyError):
        store.shown_prompt("one", "x")


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, ""), (0.1, "a"), (0.2, "ab"), (0.3, "ab "), (0.6, "ab "), (0.7, "ab 12+3"), (0.8, "ab 12+3\n"),
        (0.9, "ab 12+3\n"), (1.0, "ab 12+3\nxy"),
    ],
)  # fmt: skip
def test_the_beginning_of_a_text_cuts_no_word(share: float, shown: str) -> None:
    """But for the first, where there is nothing else; some languages have no spaces."""
    assert beginning("ab 12+3\nxy", share) == shown
    assert beginning("漢字漢字", 0.5) == "漢字"
    assert beginning("", share) == ""


def test_opening_a_store_does_not_copy_it_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    write_teacher_store({f"p-{n}": [Teacher("a", "x" * 10_000, [1] * 1000, 1.0, 1.0)] for n in range(400)}, path)
    assert path.stat().st_size > 5_000_000
    before = pa.total_allocated_bytes()
    store = TeacherStore(path)
    assert store["p-7"][0].text == "x" * 10_000
    assert pa.total_allocated_bytes() - before < 100_000
    assert str(path) in Path("/proc/self/maps").read_text()


def test_texts_and_tokens_have_offsets_of_64_bits(tmp_path: Path) -> None:
    """The solutions of a full training set pass 2 GiB; writing as much here would take too long."""
    write_teacher_store({"one": [ANNA]}, tmp_path / "t.arrow")
    teacher = pa.ipc.open_file(tmp_path / "t.arrow").schema.field("teachers").type.value_type
    assert teacher.field("text").type == pa.large_string()
    assert pa.types.is_large_list(teacher.field("tokens").type)


def test_writing_again_replaces_the_store_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    first = _store(path, {"one": [ANNA]})
    second = _store(path, {"one": [BERT]})
    assert first["one"] == [ANNA], "a reader keeps what it opened"
    assert second["one"] == [BERT]
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.arrow"]
