"""The plan, the comparison and the table of scripts/chaos.sh; its strikes are in tests/walks/test_killed_runs.py."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import chaos
import psutil
import pytest
import table
from attempt import Attempt, Ended
from exact import MAY_DIFFER, differences, phase_seconds, reference_of
from hang import HANG_S
from plan import CELLS, PHASES, VICTIMS, Trial, phase_of, trial
from processes import MARK, Tree, left_over, shared_files, wait
from strike import _told, faults, struck

from oger_recipe.base.files import read_jsonl
from oger_recipe.run_folder.checkpoints import seal

POLICY = next(each for each in VICTIMS if each.name == "policy")


def test_a_seed_draws_every_cell_once_before_any_a_second_time() -> None:
    turn = [trial(3, number) for number in range(1, len(CELLS) + 1)]
    assert {(each.victim, each.phase) for each in turn} == set(CELLS) and len(CELLS) >= 80
    assert trial(3, 7) == turn[6] != trial(4, 7)
    second = [trial(3, len(CELLS) + number) for number in range(1, len(CELLS) + 1)]
    assert [each.victim for each in second] != [each.victim for each in turn]
    assert all(0 <= each.moment < 1 for each in turn) and len({each.moment for each in turn}) == len(CELLS)


def test_phases_are_those_of_the_events() -> None:
    events = [{"event": "began"}, {"event": "ready"}, {"event": "training"}]
    names = ("rollouts", "experience", "judges", "training", "weights", "saving")
    events += [{"event": "phase", "phase": name} for name in names]
    events += [{"event": "step"}, {"event": "evaluating"}]
    found = [phase_of(event) for event in events]
    assert found[:3] == ["start", None, None] and found[-2:] == [None, "evaluation"]
    assert found[3:-2] == ["generation", "experience", "experience", "training", "broadcast", "checkpoint"]
    assert set(PHASES) <= set(found)


def test_a_phase_takes_what_it_took_lately_and_not_where_an_attempt_ended(tmp_path: Path) -> None:
    times = [("began", 0), ("ready", 30), ("training", 31), ("began", 100), ("ready", 110), ("evaluating", 120)]
    times += [("evaluated", 124), ("evaluating", 130), ("began", 300), ("ready", 320)]
    events = [json.dumps({"event": name, "time": time}) for name, time in times]
    (tmp_path / "events.jsonl").write_text("\n".join(events) + "\n")
    assert phase_seconds(tmp_path) == {"start": 20, "evaluation": 4}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{ended} at step 3 of 9: the policy died (pid 7); its log: {log}\n  resume with: x\n", []),
        ("{ended} at step 3 of 9: the engine died (pid 7); its log: {log}\n", ["'the policy died'"]),
        ("{ended}: the policy died (pid 7); its log: {log}\n", ["step 3 is not named"]),
        ("{ended} at step 5 of 9: the policy died; its log: {log}\n", ["step 3 is not named"]),
        ("after step 3: 0.1\n{ended} at step 5 of 9: the policy died; its log: {log}\n", ["step 3 is not named"]),
        ("the policy died, its log: {log}\n{ended} at step 3\n", ["'the policy died'", "not there"]),
        ("{ended} at step 3 of 9: the policy died; its log: {log}.log\n", ["not there"]),
        ("{ended} at step 3 of 9: the policy died\n", ["not there"]),
        ("Traceback (most recent call last):\n{ended} at step 3: the policy died; its log: {log}\n", ["a traceback"]),
        ("{ended} at step 3: the policy died; its log: {log}\n" + "x\n" * 12, ["13 lines"]),
    ],
)
def test_a_sentence_names_who_when_and_where(tmp_path: Path, text: str, wrong: list[str]) -> None:
    (tmp_path / "policy-0.log").write_text("its last words")
    text = text.format(ended="oger train: training stopped", log=tmp_path / "policy-0.log")
    found = faults(Trial(1, POLICY, "training", 0.5), text, "training", 3)
    assert len(found) == len(wrong) and all(words in each for words, each in zip(wrong, found, strict=True))


def test_only_a_victim_whose_loss_is_said_excuses_another_run() -> None:
    victims = {each.name: each for each in VICTIMS}
    text = "step 3/24 | solved 0.1 | rider 0.2\nafter step 3: 8 answers have no score of rider\n"
    trials = [Trial(1, victims[name], "generation", 0.0) for name in ("plugin", "encoder", "grading worker", "policy")]
    assert [_told(each, text) for each in trials] == [True, False, False, False]
    assert not _told(trials[0], text.partition("\n")[0])  # every step prints this


def test_a_trial_whose_victim_never_comes_is_none(tmp_path: Path) -> None:
    (worker,) = (each for each in VICTIMS if each.name == "grading worker")
    attempt = Attempt(tmp_path / "missing.yaml", tmp_path / "run", tmp_path / "temporary")
    with pytest.raises(Ended, match="there is no grading worker at .*; exit code 1"):
        struck(Trial(1, worker, "start", 0.0), attempt, 1, {})


def test_what_follows_from_the_clock_or_from_caches_may_differ_and_nothing_else() -> None:
    may = ("timing/step_total", "tokens_per_second", "vllm_kl", "reward/rider/seconds", "reward/rider/cached")
    must = ("reward/rider", "reward/cached", "reward/seconds", "rollout/tokens_per_second", "actor_lr")
    assert all(MAY_DIFFER.fullmatch(name) for name in may)
    assert not any(MAY_DIFFER.fullmatch(name) for name in must)


def test_a_run_that_does_not_resume_is_a_miss_of_the_last_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "_RECIPES", tmp_path)  # where there is none
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "reference_smoke.json").write_text('{"steps": {}, "seconds": {}}')
    (tmp_path / "trials.jsonl").write_text('{"trial": 4, "recipe": "smoke", "end": "exit 1", "faults": []}\n')
    chaos.Chaos(tmp_path, 0, tmp_path).settle()
    (trial_4,) = table.merged(read_jsonl(tmp_path / "trials.jsonl"))
    (miss,) = table.misses(trial_4)
    assert miss.startswith("resumed: it did not resume: exit code 1 after ")


PASSED = {"trial": 7, "seed": 3, "recipe": "smoke", "end": "exit 1", "faults": [], "left": [], "differs": []}
UNNAMED = PASSED | {"faults": ["the last words do not match 'the policy died'"]}


class _Again(chaos.Chaos):
    """Whose trials that are made again end as it is told."""

    def __init__(self, out: Path, second: table.Record) -> None:
        super().__init__(out, 0, out)
        self.made: list[Trial] = []
        self._second = second

    def alone(self, one: Trial) -> table.Record:
        self.made.append(one)
        return self._second


@pytest.mark.parametrize(
    ("first", "second", "excused"),
    [
        (UNNAMED, PASSED | {"resumed": []}, True),
        (UNNAMED | {"told": True, "differs": ["metrics"]}, PASSED, True),
        (UNNAMED | {"end": "hung"}, UNNAMED, False),
        (UNNAMED, PASSED | {"resumed": ["weights of step 3 differ"]}, False),
        (PASSED | {"left": ["port 7 of process 8"]}, None, False),
        (PASSED | {"resumed": ["weights of step 3 differ"]}, None, False),
        (UNNAMED | {"told": False, "differs": ["metrics"]}, None, False),
    ],
)
def test_a_second_trial_excuses_a_miss_but_not_what_was_left_or_an_inexact_resume(
    tmp_path: Path, first: table.Record, second: table.Record | None, excused: bool
) -> None:
    again = _Again(tmp_path, second or {})
    assert again.excused(first) is excused
    assert again.made == ([trial(3, 7)] if second else [])  # by the seed that drew it


def test_a_trial_again_is_one_in_a_run_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "_RECIPES", tmp_path)  # where there is none
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for recipe in ("smoke", "judges"):
        (tmp_path / f"reference_{recipe}.json").write_text('{"steps": {}, "seconds": {}}')
    (tmp_path / "again_7").mkdir()
    (tmp_path / "again_7" / "trials.jsonl").write_text(json.dumps(PASSED | {"resumed": []}) + "\n")  # of another time
    record = chaos.Chaos(tmp_path, 3, tmp_path).alone(trial(3, 7))
    assert (record["trial"], record["seed"], record["end"]) == (7, 3, "ended before it was struck")
    assert table.misses(record)[-1].startswith("resumed: it did not resume: exit code 1")
    assert not (tmp_path / "trials.jsonl").exists()


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    for step in (1, 2):
        _train(tmp_path / "run", step)
    return tmp_path / "run"


def _train(run_dir: Path, step: int) -> None:
    """Write what a step leaves."""
    for name in ("metrics.jsonl", "events.jsonl"):
        run_dir.mkdir(exist_ok=True)
        with (run_dir / name).open("a") as file:
            record = {"step": step, "loss": step / 10, "timing/step_total": id(file), "reward/rider/seconds": id(file)}
            extra = {"event": "step", "time": step} if name.startswith("events") else {}
            file.write(json.dumps(extra | record) + "\n")
    for name in (f"samples/step_{step:05d}.jsonl", f"eval/step_{step:05d}.jsonl"):
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text(f"{name}\n")
    checkpoint = run_dir / "checkpoints"
    for name in (f"_actor/global_step{step}/states.pt", f"global_step{step}_hf/model.safetensors"):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(f"{name} {step}")
    seal(checkpoint, step)


def test_a_run_at_its_end_is_let_come_to_it_for_the_last_verdict(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further step would come."""
    out = run_dir.parent
    monkeypatch.setattr(chaos, "_RECIPES", out)  # where there is none
    monkeypatch.setattr(tempfile, "tempdir", str(out))
    (out / "reference_smoke.json").write_text(json.dumps(reference_of(run_dir)))
    (out / "trials.jsonl").write_text('{"trial": 4, "recipe": "smoke", "end": "exit 1", "faults": []}\n')
    shutil.move(run_dir, out / "smoke")
    chaos.Chaos(out, 0, out).settle()
    (miss,) = table.misses(table.merged(read_jsonl(out / "trials.jsonl"))[0])
    assert miss.startswith("resumed: oger train: ") and "no such recipe file" in miss
    assert not (out / "smoke").exists()


def _append(run_dir: Path, name: str, text: str) -> None:
    with (run_dir / name).open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("metrics.jsonl", '{"step": 2, "loss": 0.2}\n', "metrics of steps [1, 2, 2], not 1 to 2"),
        ("events.jsonl", '{"event": "step", "time": 2, "step": 1}\n', "events of steps [1, 2, 1], not 1 to 2"),
        ("samples/step_00001.jsonl", "x", "samples of step 1 differ"),
        ("eval/step_00001.jsonl", "x", "evaluation of step 1 differ"),
        ("checkpoints/global_step2_hf/model.safetensors", "", "weights of step 2 differ"),
    ],
)
def test_whatever_differs_from_the_run_that_was_not_struck_is_named(
    run_dir: Path, name: str, text: str, found: str
) -> None:
    reference = reference_of(run_dir)
    assert differences(run_dir, reference) == []
    if text:
        _append(run_dir, name, text)
    else:
        weights = (run_dir / name).read_text()
        (run_dir / name).write_text(weights[:-1] + "?")  # a flipped byte
    assert found in differences(run_dir, reference)


def test_metrics_count_but_times_do_not_and_what_is_missing_is_said(run_dir: Path) -> None:
    reference = reference_of(run_dir)
    text = (run_dir / "metrics.jsonl").read_text()
    later = text.replace('"timing/step_total": ', '"timing/step_total": 1')
    (run_dir / "metrics.jsonl").write_text(later.replace('"reward/rider/seconds": ', '"reward/rider/seconds": 1'))
    (run_dir / "eval" / "step_00002.jsonl").unlink()  # the newest step's may come later
    assert differences(run_dir, reference) == []
    (run_dir / "metrics.jsonl").write_text(text.replace("0.1", "0.1000001"))
    (run_dir / "eval" / "step_00001.jsonl").unlink()
    assert differences(run_dir, reference) == ["metrics of step 1 differ: loss", "evaluation of step 1 is missing"]
    shutil.rmtree(run_dir / "eval")
    (run_dir / "metrics.jsonl").write_text(text)
    assert differences(run_dir, reference_of(run_dir)) == []  # a run without evaluations


# A process with a port and a semaphore, whose tracker of semaphores is another process.
ORPHAN = """
import multiprocessing, socket, time
port, lock = socket.create_server(("127.0.0.1", 0)), multiprocessing.get_context("spawn").Lock()
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture()
def tree() -> Iterator[Tree]:
    """Of a command that starts a process in a session of its own, and ends."""
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {ORPHAN!r}], start_new_session=True)"
    driver = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, env={MARK: "mine"})
    tree = Tree(driver.pid, "mine")
    assert driver.stdout is not None and driver.stdout.readline() == "there\n" and driver.wait(HANG_S) == 0
    yield tree
    for process in tree.alive():
        process.kill()


def test_what_is_left_is_found_though_its_parent_is_gone(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    before, temporary = shared_files(), tmp_path / "temporary"
    tree = request.getfixturevalue("tree")
    temporary.mkdir()
    (temporary / "oger-1").touch()
    wait(lambda: tree.look() or len(tree.alive()) == 2, 60)  # while Linux loads a program, it bears no mark yet
    left = left_over(tree, before, temporary, tmp_path)
    kinds = [each.split()[0] for each in left if not each.startswith("/dev")]
    assert kinds == ["process", "process", "port", "temporary"]
    assert any(each.startswith("/dev/shm/sem.") for each in left)  # other tests may make some meanwhile
    for process in tree.alive():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if "tracker" not in " ".join(process.cmdline()):
                process.terminate()  # the tracker removes the semaphore, and ends
    (temporary / "oger-1").unlink()
    assert wait(lambda: not left_over(tree, before, temporary, tmp_path), HANG_S)


def test_the_table_counts_what_passed_and_names_every_miss() -> None:
    ended = {"seed": 0, "recipe": "smoke", "victim": "policy", "phase": "training", "hit": "training"}
    ended |= {"end": "exit 1", "seconds": 2.5, "faults": [], "left": []}
    records = [
        ended | {"trial": 1},
        {"trial": 1, "resumed": []},
        ended | {"trial": 2, "left": ["port 7 of process 8"], "seconds": 4.0},
        {"trial": 2, "resumed": ["samples of step 3 differ"]},
        ended | {"trial": 3, "hit": "broadcast"},
    ]
    other = ended | {"victim": "encoder", "differs": ["metrics of step 3 differ: loss"], "end": "went on"}
    records += [
        other | {"trial": 4, "told": True},
        {"trial": 4, "resumed": None},
        other | {"trial": 5, "told": False, "faults": ["the run is not the one that was not struck"]},
        {"trial": 5, "resumed": None},
        other | {"trial": 6, "told": True, "differs": []},
        {"trial": 6, "resumed": []},
    ]
    page = table.page(records)
    summary = "6 trials, 2 with a miss; after 3 of them the run was resumed and compared; 1 differed, as they said."
    assert summary in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    assert [row for row in rows if row and row[0] in ("policy", "encoder") and len(row) > 4] == [
        ["policy", "", "", "", "**1 of 2**", "1", "", "", "4.0", "3 of 3", "2 of 3", "1 of 2", ""],
        ["encoder", "", "", "", "**2 of 3**", "", "", "", "2.5", "2 of 3", "3 of 3", "1 of 1", "1"],
    ]
    said = [", another run from here on, as it said" in table.line(each) for each in table.merged(records)]
    assert said == [False, False, False, True, False, False]
    assert "| 2 | policy | training | left: port 7 of process 8; resumed: samples of step 3 differ |" in page
