"""What the built-in task's process reward models learn from, and how recipes name them (training takes minutes)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from oger_recipe.lab import built_in_models as judges
from oger_recipe.lab import countdown_prm
from oger_recipe.lab.countdown import split_of
from oger_recipe.lab.countdown_prm import solutions
from oger_recipe.lab.countdown_steps import step_labels
from oger_recipe.lab.tiny_policy import build_model, build_tokenizer


def _numbers(question: str) -> tuple[list[int], int]:
    """Of "Using the numbers [3, 5, 12], create an equation that equals 96."."""
    numbers, _, target = question.removeprefix("Using the numbers ").partition(", create an equation that equals ")
    return json.loads(numbers), int(target.removesuffix("."))


def test_solutions_have_exact_labels_of_both_kinds_on_problems_to_train_on() -> None:
    rows = list(solutions(600, seed=3))
    labels = [label for row in rows for label in row.labels]
    assert 0.3 < sum(labels) / len(labels) < 0.6
    assert 0.3 < sum(row.labels[-1] for row in rows) / len(rows) < 0.7
    assert {len(_numbers(row.question)[0]) for row in rows} == {3, 4}
    for row in rows:
        numbers, target = _numbers(row.question)
        assert split_of(numbers) == "train" and max(numbers) <= 10
        assert list(row.labels) == step_labels(row.steps, numbers, target)
        assert all(step.endswith(", ") for step in row.steps[:-1]) and "</answer>" in row.steps[-1]
    assert len({row.steps for row in rows}) > 590
    assert any(good < bad for row in rows for good, bad in pairwise(row.labels))  # a dead end, then the way
    assert [*solutions(20, seed=3)] == rows[:20] != [*solutions(20, seed=4)]


def test_a_prm_of_few_steps_is_kept_with_what_it_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the named ones are made, of a base that is not trained; asked for again it comes from the cache."""
    made: list[Path] = []

    def base(folder: Path) -> Path:
        made.append(folder)
        tokenizer = build_tokenizer(text for row in solutions(50, seed=1) for text in (row.question, *row.steps))
        build_model(tokenizer, hidden_size=32, num_layers=1).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    monkeypatch.setattr(countdown_prm, "save_base", base)
    monkeypatch.setitem(
        judges.PRMS, "countdown-prm", countdown_prm.Data(solutions=256, written_by_model=0.5, epochs=1)
    )
    entry = {"name": "prm", "kind": "process", "model": "countdown-prm", "place": "in_process", "format": "trl"}
    folder = Path(judges.with_folders(entry, str(tmp_path))["model"])
    report = json.loads((folder / "prm.json").read_text())
    assert report["counts"]["rows"] + report["held_out_counts"]["rows"] > 200 and report["held_out"]
    assert (folder / "config.json").exists() and not [*folder.glob("made*")]
    assert judges.folder_of("countdown-prm", str(tmp_path)) == str(folder) and len(made) == 1


def test_other_names_are_left_as_they_are() -> None:
    entry = {"name": "prm", "kind": "process", "model": "org/prm"}
    assert judges.with_folders(entry, "nowhere") == entry
