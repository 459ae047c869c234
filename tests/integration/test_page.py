"""The data of the page of a run: what is read from its folder, what is chosen of it, and how runs compare."""

from __future__ import annotations

import base64
import gzip
import json
import math
import random
import re
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from oger_recipe.cli import report
from oger_recipe.evaluation.metrics import evaluate_answers
from oger_recipe.report.page import rollouts
from oger_recipe.report.page.comparing import comparisons, names_of
from oger_recipe.report.page.distributions import Numbers
from oger_recipe.report.page.payload import MOST_NOTES, MOST_POINTS, of_run
from oger_recipe.report.page.rollouts import LEAST_STEPS, Reading, kinds_of
from oger_recipe.report.page.samples import TEXT_LIMIT, samples_of_run
from oger_recipe.report.page.sampling import Candidate, choose, spread_out
from oger_recipe.report.page.write import MOST_BYTES, write_page
from oger_recipe.run import training
from oger_recipe.run_folder import own_files, records

Record = dict[str, Any]
HOSTILE = (
    "</script><script>alert(1)</script>\x00\ud800 \u2028 \u202eright to left \U0001f600 $\\frac{1}{2}$ <!-- data -->"
)


def row(uid: str, score: float = 1.0, **others: Any) -> Record:
    """A line of samples/step_*.jsonl: a rollout that was trained."""
    rest = {"truncated": False, "text": f"an answer to {uid}", "off_policy": False, "response_length": 10}
    rest |= {"reward": score, "score": score, "extracted": "42", "reason": "right", "components": {}, "graded": True}
    rest |= {"similarity": 0.75, "divergence": 0.25, "bonus": 0.2 * score, "entropy_weight": 0.5, "entropy": 0.7}
    rest |= {"sources": {"rule": score}, "total_reward": score, "advantage": score - 0.5}
    return {"uid": uid, "prompt": f"ask {uid}", "task": "math", "answer": "42"} | rest | others


def replaced(uid: str, score: float = 1.0) -> list[Record]:
    """A rollout that made room for a teacher, and the teacher."""
    untrained = ("bonus", "entropy_weight", "entropy", "sources", "total_reward", "advantage")
    rollout = {name: value for name, value in row(uid, score).items() if name not in untrained}
    teacher = {name: row(uid)[name] for name in ("uid", "prompt", "task", "answer", "sources", "score", "reward")}
    teacher |= {"text": "a teacher's", "source": "deepseek", "off_policy": True, "advantage": 0.9, "truncated": False}
    return [rollout | {"replaced": True}, teacher]


def answer(uid: str, sample: int, score: float, **others: Any) -> Record:
    """A line of eval/step_*.jsonl."""
    rest = {"prompt": f"solve {uid}", "text": "an answer", "answer": "42", "reward": score, "format": 1.0}
    rest |= {"extracted": "42", "reason": "", "components": {}, "graded": True, "response_length": 5}
    return {"uid": uid, "benchmark": "math", "sample": sample, "score": score, "truncated": False} | rest | others


def answers(*scores: list[float], name: str = "p") -> list[Record]:
    """The answers to problems p0, p1 ... of an evaluation, by their scores."""
    return [
        answer(f"{name}{place}", sample, score) for place, of in enumerate(scores) for sample, score in enumerate(of)
    ]


class Run:
    """A run's folder, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("samples", "eval", "data"):
            (folder / name).mkdir(parents=True)
        own_files.begin(folder)
        self.recipe()
        (folder / own_files.COMMAND).write_text("cd /here || exit\noger train --recipe configs/grpo.yaml\n")
        (folder / "data" / "counts.json").write_text('{"prompts": 64}')
        records.event(folder, "ready", steps=9, resumed_at=0, sources=["rule", "explore"])

    def recipe(self, **oger: Any) -> None:
        nested = {"actor": {"adam": {"lr": 1e-4}}, "oger": {"run_dir": "/runs/x"} | oger}
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(nested))

    def steps(self, *metrics: Record) -> None:
        for number, each in enumerate(metrics, start=1):
            self.append("metrics.jsonl", {"step": number} | each)
            records.event(self.folder, "step", step=number, **each)

    def samples(self, step: int, *rows: Record) -> None:
        records.write_samples(self.folder, step, rows)

    def evaluated(self, when: str, step: int, lines: list[Record]) -> None:
        result = evaluate_answers(lines)
        records.write_evaluation(self.folder, step, lines, result)
        records.event(self.folder, "evaluated", when=when, step=step, benchmarks=result["benchmarks"])

    def append(self, name: str, record: Record) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def read(self, room: int = 10**6) -> Record:
        return unpacked(samples_of_run(self.folder, [], room).packed)


def unpacked(packed: bytes) -> Record:
    return dict(json.loads(gzip.decompress(packed)))


def blocks(path: Path) -> dict[str, Record]:
    """The data of a page, as its scripts decode them."""
    found = re.finditer(
        r'<script type="application/octet-stream" id="([^"]+)">([A-Za-z0-9+/=]*)</script>', path.read_text()
    )
    return {match[1]: unpacked(base64.b64decode(match[2])) for match in found}


@pytest.fixture()
def new_run(tmp_path: Path) -> Callable[..., Run]:
    return lambda name="run": Run(tmp_path / name)


@pytest.fixture()
def run(new_run: Callable[..., Run]) -> Run:
    return new_run()


@pytest.fixture()
def page(tmp_path: Path) -> Callable[..., dict[str, Record]]:
    def written(*runs: Run) -> dict[str, Record]:
        path = tmp_path / "page.html"
        write_page([each.folder for each in runs], path)
        return blocks(path)

    return written


def test_the_page_has_what_the_run_knows(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    run.steps({"rollout/solve_rate": 0.123456789, "new": math.nan}, {"rollout/solve_rate": 0.5})
    run.evaluated("before", 0, answers([1, 0], [0, 0]))
    run.evaluated("after", 2, answers([1, 1], [1, 0]))
    run.samples(1, row("a"), row("a", 0.0), row("b"))
    found = page(run)
    [shown] = found["report"]["runs"]
    assert (shown["name"], shown["folder"]) == ("run", str(run.folder))
    assert shown["state"]["step"] == 2 and shown["state"]["planned_steps"] == 9
    assert (shown["steps"], shown["steps_per_point"]) == ([1, 2], 1)
    assert shown["metrics"] == {"rollout/solve_rate": [0.12346, 0.5], "new": [None, None]}
    assert found["report"]["metrics"]["rollout/solve_rate"]["unit"] == "share"
    assert shown["recipe"]["name"] == "grpo" and "--recipe configs/grpo.yaml" in shown["command"]
    assert (shown["sources"], shown["data"]) == (["rule", "explore"], {"prompts": 64})
    assert [(each["when"], each["step"]) for each in shown["evaluations"]] == [("before", 0), ("after", 2)]
    assert shown["evaluations"][1]["benchmarks"]["math"]["avg_at_2"] == 0.75
    before, after = shown["pass_at_k"]["math"]
    assert (before["step"], before["k"], before["value"]) == (0, [1, 2], [0.25, 0.5])
    assert (after["when"], after["value"]) == ("after", [0.75, 1.0])
    assert all(
        low <= value <= high for low, value, high in zip(after["low"], after["value"], after["high"], strict=True)
    )
    assert shown["samples"]["block"] == "samples-0"
    assert shown["samples"]["text"] == "All 3 rollouts of 1 step."
    assert [[each["step"], each["uid"], len(each["rows"])] for each in found["samples-0"]["groups"]] == [
        [1, "a", 2], [1, "b", 1],
    ]  # fmt: skip


def test_the_settings_that_were_changed_stand_beside_their_defaults(run: Run) -> None:
    """A path in the run's own folder is no change, nor is a default of machines without GPUs, nor a list's type."""
    run.recipe(bonus_weight=0.5, samples_steps=1, stop=[], verifier_path=["/here"])
    with (run.folder / "recipe.yaml").open("a") as file:
        file.write("ckpt: {path: /runs/x/checkpoints}\nvllm: {sync_backend: gloo}\n")
    assert of_run(run.folder, "run")["recipe"]["changed"] == [
        {"key": "actor.adam.lr", "value": 1e-4, "default": 1e-6},
        {"key": "oger.bonus_weight", "value": 0.5, "default": 1.0},
    ]


def test_notes_stand_at_their_steps_with_those_that_metrics_are(run: Run) -> None:
    records.event(run.folder, "note", text="before the first step")
    run.steps({"skipped_updates": 0.0}, {"skipped_updates": 2.0, "rollout/reward_error": 3.0})
    records.event(run.folder, "note", text="WARNING: step 2: collapsed", step=2)
    assert [(each["step"], each["text"]) for each in of_run(run.folder, "run")["notes"]] == [
        (0, "before the first step"),
        (2, "WARNING: step 2: collapsed"),
        (2, "WARNING: step 2: 3 rollouts were not graded (rollout/reward_error)"),
        (2, "WARNING: step 2: 2 updates were skipped: a loss or a gradient was not finite (skipped_updates)"),
    ]


def test_alarms_are_listed_with_the_steps_at_which_they_were_raised_and_cleared(run: Run) -> None:
    facts = {"metric": "rollout/truncated", "value": 0.5, "limit": 0.25, "level": "warn"}
    records.event(run.folder, records.ALARM, name="truncation", step=2, text="WARNING: step 2: cut", **facts)
    records.event(run.folder, records.ALARM_CLEARED, name="truncation", metric="rollout/truncated", step=9, text="ok")
    records.event(run.folder, records.ALARM, name="truncation", step=12, text="WARNING: step 12: cut", **facts)
    found = of_run(run.folder, "run")
    assert [(each["name"], each["step"], each["cleared"]) for each in found["alarms"]] == [
        ("truncation", 2, 9), ("truncation", 12, None),
    ]  # fmt: skip
    assert [note["text"] for note in found["notes"]] == ["WARNING: step 2: cut", "ok", "WARNING: step 12: cut"]


def test_of_very_many_notes_the_first_and_the_last_are_shown(run: Run) -> None:
    run.steps(*({"skipped_updates": 1.0} for _ in range(MOST_NOTES + 5)))
    notes = of_run(run.folder, "run")["notes"]
    assert len(notes) == MOST_NOTES + 1
    assert [notes[0]["step"], notes[-1]["step"]] == [1, MOST_NOTES + 5]
    assert notes[MOST_NOTES // 2]["text"] == "(5 notes are left out here)"


def test_a_point_of_a_very_long_curve_is_the_mean_of_several_steps(run: Run) -> None:
    run.steps(*({"x": float(number), "y": math.inf if number % 2 else 1.0} for number in range(MOST_POINTS + 1)))
    shown = of_run(run.folder, "run")
    assert (shown["steps_per_point"], shown["steps"][:2], shown["steps"][-1]) == (2, [2, 4], MOST_POINTS + 1)
    assert shown["metrics"]["x"][:2] == [0.5, 2.5] and shown["metrics"]["y"][:2] == [1.0, 1.0]
    assert of_run(run.folder, "run", runs=4)["steps_per_point"] == 5
    assert of_run(run.folder, "run", runs=1000)["steps_per_point"] == 11


def test_a_resumed_run_has_the_curve_of_its_last_attempt(run: Run) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)):
        run.append("metrics.jsonl", {"step": step, "x": value})
    shown = of_run(run.folder, "run")
    assert (shown["steps"], shown["metrics"]["x"]) == ([1, 2], [1.0, 20.0])


def test_whatever_a_model_writes_is_shown_as_it_is(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    (run.folder / "samples" / "step_00001.jsonl").write_text(
        json.dumps(row("a", text=HOSTILE, entropy=math.nan, advantage=math.inf, sources={HOSTILE: 1.0})) + "\n"
    )
    run.evaluated("before", 0, [answer("p", 0, 1.0, text=HOSTILE.replace("\ud800", ""))])
    found = page(run)["samples-0"]
    [shown] = found["groups"][0]["rows"]
    assert shown["text"] == HOSTILE.replace("\ud800", "?")  # half of a pair is no character
    assert (shown["entropy"], shown["advantage"]) == (None, None)
    assert found["evaluations"][0]["before"]["answers"][0]["text"] == HOSTILE.replace("\ud800", "")


def test_of_a_very_long_text_beginning_and_end_are_shown(run: Run) -> None:
    long = "".join(str(number) for number in range(100_000))
    run.samples(1, row("a", text=long), row("a", text="x" * TEXT_LIMIT))
    first, second = run.read()["groups"][0]["rows"]
    assert first["cut"] == len(long) - TEXT_LIMIT and "cut" not in second
    beginning, mark, end = first["text"].split("\n")
    assert long.startswith(beginning) and long.endswith(end) and len(beginning + end) == TEXT_LIMIT
    assert mark == f"[... {first['cut']:,} characters are left out here ...]"


def test_a_row_keeps_what_its_line_has(run: Run) -> None:
    run.samples(1, *replaced("a", 0.0), row("a", entropy=0.123456789, graded=False, errors={"judge": "no reply"}))
    rollout, teacher, last = run.read()["groups"][0]["rows"]
    assert rollout["replaced"] and "advantage" not in rollout
    assert (teacher["source"], teacher["advantage"]) == ("deepseek", 0.9)
    assert (last["entropy"], last["graded"], last["errors"]) == (0.12346, False, {"judge": "no reply"})


def test_a_row_is_of_several_kinds() -> None:
    rollout, teacher = replaced("a")
    assert kinds_of(rollout) == {"right", "replaced"} and kinds_of(teacher) == {"teacher"}
    guided = row("a", 0.0, off_policy=True, truncated=True)  # a teacher began it, and the policy ended it
    assert kinds_of(guided) == {"wrong", "truncated"}
    assert kinds_of(row("a", 0.0, graded=False)) == kinds_of(row("a", 0.0, errors={"judge": "no reply"}))


def test_what_became_of_each_problem(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    run.evaluated("before", 0, answers([1, 0], [0, 0]))
    run.evaluated("during", 1, answers([0, 0], [0, 0]))
    run.evaluated("after", 2, answers([1, 1], [1, 0]))
    problems = page(run)["samples-0"]["evaluations"]
    assert [(each["benchmark"], each["uid"], each["prompt"], each["answer"]) for each in problems] == [
        ("math", "p0", "solve p0", "42"), ("math", "p1", "solve p1", "42"),
    ]  # fmt: skip
    assert [each["before"]["step"] for each in problems] == [0, 0]
    assert [[answer["score"] for answer in each["after"]["answers"]] for each in problems] == [[1, 1], [1, 0]]
    assert "uid" not in problems[0]["after"]["answers"][0]


def test_of_many_problems_those_that_were_lost_are_shown_and_how_many_there_are(run: Run) -> None:
    lot = random.Random(0)
    for when, step in (("before", 0), ("after", 9)):
        lines = answers(*([float(place % 2 or (place == 130) != (when == "after"))] * 4 for place in range(200)))
        run.evaluated(when, step, [line | {"text": lot.randbytes(200).hex()} for line in lines])
    run.samples(1, row("a"))
    found = samples_of_run(run.folder, [0, 9], 100_000)
    shown = unpacked(found.packed)["evaluations"]
    assert "p130" in {each["uid"] for each in shown} and 20 < len(shown) < 100
    assert all(len(each[moment]["answers"]) == 4 for each in shown for moment in ("before", "after"))
    text = f"All 1 rollouts of 1 step. Of 200 evaluated problems {len(shown)} are shown, with all their answers."
    assert found.about["text"] == text


def test_a_single_evaluation_is_the_one_before(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    run.evaluated("before", 0, answers([1, 0]))
    [problem] = page(run)["samples-0"]["evaluations"]
    assert problem["before"]["step"] == 0 and problem["after"] is None


def test_the_spread_of_each_number_by_step() -> None:
    """Two bins would hold 0 and 1; here 30 do, the outer ones."""
    numbers = Numbers()
    for step, similarities in ((1, [0.0, 0.0, 1.0]), (4, [1.0])):
        for each in similarities:
            numbers.take(step, row("a", 0.0, similarity=each, advantage=math.nan, bonus=7.0))
    numbers.take(4, row("a", bonus=0.5, similarity=None, response_length=10))
    for each in replaced("a"):
        numbers.take(4, each)
    found = {each["name"]: each for each in numbers.distributions()}
    similarity = found["similarity"]
    assert (similarity["steps"], similarity["edges"][0], similarity["edges"][-1]) == ([1, 4], 0.0, 1.0)
    assert [[counts[0], counts[-1], sum(counts)] for counts in similarity["counts"]] == [[2, 1, 3], [0, 1, 2]]
    assert (found["bonus"]["steps"], found["bonus"]["counts"]) == (
        [4],
        [[1]],
    )  # of wrong rollouts none, nor a teacher's
    assert (found["advantage"]["steps"], sum(found["advantage"]["counts"][0])) == ([4], 2)  # a teacher's, too
    assert sum(map(sum, found["response_length"]["counts"])) == 6  # the replaced rollout's, not its teacher's


def test_numbers_that_are_0_throughout_have_no_spread() -> None:
    numbers = Numbers()
    numbers.take(1, row("a", bonus=0.0, similarity=None, divergence=None, advantage=0.0))
    assert [each["name"] for each in numbers.distributions()] == ["response_length"]


def test_what_sources_say_of_the_first_second_and_third_step_of_reasoning() -> None:
    numbers = Numbers()
    for first, second in ((0.0, 1.0), (1.0, None)):
        said = [{"text": "a", "sources": {"prm": first}}, {"text": "b", "sources": {"prm": second}}]
        numbers.take(1, row("a", steps_of_reasoning=said if second is not None else said[:1] + [{"text": "b"}]))
    assert numbers.steps_of_reasoning() == [
        {"source": "prm", "position": 1, "mean": 0.5, "sd": pytest.approx(math.sqrt(0.5)), "rows": 2},
        {"source": "prm", "position": 2, "mean": 1.0, "sd": None, "rows": 1},
    ]


def _lots(seed: int, groups: int = 300) -> Iterator[Candidate]:
    lot = random.Random(seed)
    for place in range(groups):
        rare = {"failed"} if place == 137 else set()
        kinds = frozenset({lot.choice(["right", "wrong"])} | rare)
        yield Candidate(place // 10, f"u{lot.randrange(60)}", lot.randrange(50, 150), kinds, place)


@pytest.mark.parametrize("seed", range(5))
def test_a_choice_keeps_every_kind_and_all_steps(seed: int) -> None:
    candidates = list(_lots(seed))
    chosen = choose(candidates, 12_000)
    assert choose(candidates, 12_000) == chosen  # it depends on nothing else
    assert 11_000 < sum(each.size for each in chosen) <= 12_000
    assert len({each.place for each in chosen}) == len(chosen) and chosen == sorted(
        chosen, key=lambda each: each.place
    )
    assert {kind for each in chosen for kind in each.kinds} == {"right", "wrong", "failed"}
    assert len({each.step for each in chosen}) == 30  # every one of them
    assert max(Counter(each.step for each in chosen).values()) <= 8


@pytest.mark.parametrize("seed", range(5))
def test_a_choice_follows_some_prompts_through_all_their_steps(seed: int) -> None:
    candidates = list(_lots(seed))
    chosen = choose(candidates, 12_000)
    there, shown = (Counter(each.uid for each in some) for some in (candidates, chosen))
    whole = [uid for uid, times in shown.items() if times == there[uid] > 1]
    assert max(there.values()) in [there[uid] for uid in whole]


def test_a_choice_has_all_of_what_fits() -> None:
    candidates = list(_lots(0))
    assert choose(candidates, sum(each.size for each in candidates)) == candidates
    assert choose(candidates, 49) == []


def test_kinds_get_equal_bytes_and_not_equal_numbers() -> None:
    """100, ten times 10, 100, and of the last 20 two more of 10."""
    sizes = {"long": 100, "short": 10}
    candidates = [
        Candidate(1, f"{kind}{place}", size, frozenset({kind}), place)
        for kind, size in sizes.items()
        for place in range(20)
    ]
    assert Counter(kind for each in choose(candidates, 320) for kind in each.kinds) == {"long": 2, "short": 12}


def test_a_beginning_of_spread_out_steps_is_spread_evenly() -> None:
    assert spread_out(range(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert spread_out([30, 10, 20]) == [10, 30, 20]
    assert spread_out([5]) == [5] and spread_out([]) == []


@pytest.fixture()
def long_run(run: Run) -> Run:
    """40 steps of 20 groups; in one of them a rollout failed, and a group of every step has a truncated one."""
    lot = random.Random(0)
    for step in range(1, 41):
        rows = []
        for group in range(20):
            uid = f"u{(step * 20 + group) % 200}"
            text = "".join(lot.choices("abcdefgh ", k=400))
            rows += [row(uid, float(lot.random() < 0.3), text=text), row(uid, text=text[::-1], truncated=group == 7)]
        if step == 17:
            rows[10]["graded"] = False
        run.samples(step, *rows)
    return run


def test_what_fits_is_shown_whole(long_run: Run) -> None:
    groups = long_run.read()["groups"]
    assert [(each["step"], each["uid"]) for each in groups] == [
        (step, f"u{(step * 20 + group) % 200}") for step in range(1, 41) for group in range(20)
    ]
    assert all(len(each["rows"]) == 2 for each in groups)


@pytest.mark.parametrize("room", [20_000, 60_000])
def test_of_what_does_not_fit_an_even_part_is_shown_and_its_share_is_said(long_run: Run, room: int) -> None:
    found = samples_of_run(long_run.folder, [], room)
    again = samples_of_run(long_run.folder, [], room)
    assert found.packed == again.packed and 0.7 * room < len(found.packed) <= room
    groups = unpacked(found.packed)["groups"]
    assert all(len(each["rows"]) == 2 for each in groups)
    rows = [each for group in groups for each in group["rows"]]
    assert found.about["rollouts_shown"] == len(rows) and found.about["rollouts_written"] == 1600
    assert found.about["steps"] == sorted({each["step"] for each in groups})
    assert found.about["text"].startswith(f"{len(rows)} of 1,600 rollouts ({len(rows) / 1600:.2%}), in whole groups")
    assert any(each["graded"] is False for each in rows) and any(each["truncated"] for each in rows)
    assert {each["score"] for each in rows} == {0.0, 1.0}


def test_no_room_shows_nothing(long_run: Run) -> None:
    found = samples_of_run(long_run.folder, [], 0)
    assert unpacked(found.packed) == {"groups": [], "evaluations": []}
    assert found.about["rollouts_shown"] == 0 and found.numbers.distributions()


def test_of_a_run_that_is_too_long_to_read_some_steps_are_read_in_part(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = LEAST_STEPS + 100
    for step in range(1, steps + 1):
        run.samples(step, *(row(f"u{group}") for group in range(4) for _ in range(2)))
    size = (run.folder / "samples" / "step_00001.jsonl").stat().st_size
    monkeypatch.setattr(rollouts, "READ_BYTES", LEAST_STEPS * size // 2)
    reading = Reading.of(run.folder)
    assert len(reading.steps) == LEAST_STEPS and (reading.steps[0], reading.steps[-1]) == (1, steps)
    assert {after - before for before, after in zip(reading.steps, reading.steps[1:], strict=False)} == {2, 3}
    groups = list(reading.groups(1))
    assert [[line.row["uid"] for line in group] for group in groups] == [["u0", "u0"], ["u1", "u1"]]
    about = samples_of_run(run.folder, [], 10**6).about
    assert (about["rollouts_shown"], about["rollouts_written"], len(about["steps"])) == (400, 1600, 100)
    assert about["text"].startswith("400 of about 1,600 rollouts (25.00%), in whole groups from 100 of the 200 steps")
    monkeypatch.setattr(rollouts, "READ_BYTES", steps * size)
    assert samples_of_run(run.folder, [], 10**6).about["text"] == "All 1,600 rollouts of 200 steps."


def test_the_whole_page_stays_below_its_size(long_run: Run, new_run: Callable[..., Run], tmp_path: Path) -> None:
    lot = random.Random(0)
    long_run.samples(
        50, *(row(f"{number}", text=base64.b85encode(lot.randbytes(7_000)).decode()) for number in range(500))
    )
    write_page([long_run.folder, long_run.folder], tmp_path / "page.html")
    assert 0.8 * MOST_BYTES < (tmp_path / "page.html").stat().st_size < MOST_BYTES


def test_what_a_small_run_leaves_of_the_page_goes_to_a_large_one(
    new_run: Callable[..., Run], page: Callable[..., dict[str, Record]]
) -> None:
    """The large run needs 3 MB of 5, more than its half of them."""
    small, large, lot = new_run("small"), new_run("large"), random.Random(0)
    small.samples(1, row("a"))
    large.samples(1, *(row(f"{number}", text=lot.randbytes(TEXT_LIMIT // 2).hex()) for number in range(200)))
    found = page(large, small)
    assert [len(found[f"samples-{number}"]["groups"]) for number in (0, 1)] == [200, 1]


def test_runs_compare_problem_by_problem_where_these_are_the_same(new_run: Callable[..., Run]) -> None:
    """On average 0.25 more are right; every problem gains as much, so that there is no doubt of it."""
    first, second = new_run("first"), new_run("second")
    first.evaluated("after", 3, answers([1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]))
    second.evaluated("after", 5, answers([1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]))
    found = comparisons([first.folder, second.folder], [3, 5])
    avg = next(each for each in found if each["metric"] == "avg_at_4")
    assert (avg["runs"], avg["benchmark"], avg["paired"], avg["problems"]) == ([0, 1], "math", True, 3)
    assert avg["difference"] == 0.25 and avg["interval"] == pytest.approx([0.25, 0.25])
    back = comparisons([second.folder, first.folder], [5, 3])
    for there, returned in zip(found, back, strict=True):
        assert returned["difference"] == -there["difference"]
        assert returned["interval"] == pytest.approx([-each for each in reversed(there["interval"])])


def test_a_run_against_itself_differs_by_exactly_0(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    run.evaluated("after", 3, answers([1, 0], [0, 0], [1, 1]))
    found = page(run, run)["report"]
    assert [each["name"] for each in found["runs"]] == ["run", "run (2)"]
    assert len(found["comparisons"]) == 4  # avg@2, pass@1, pass@2, maj@2
    assert {(each["difference"], *each["interval"], each["paired"]) for each in found["comparisons"]} == {
        (0, 0, 0, True)
    }
    assert found["recipe_differences"] == []


def test_runs_with_other_problems_are_compared_as_independent(new_run: Callable[..., Run]) -> None:
    first, second = new_run("first"), new_run("second")
    first.evaluated("after", 3, answers(*([1, 0], [0, 0], [1, 1]) * 10))
    second.evaluated("after", 3, answers(*([1, 0], [0, 0], [1, 1]) * 10, name="other"))
    [avg] = [each for each in comparisons([first.folder, second.folder], [3, 3]) if each["metric"] == "avg_at_2"]
    assert (avg["difference"], avg["paired"]) == (0, False)
    # Twice the variance of a mean of 30 problems whose own is 1/6: 1.96 sqrt(2 / 180) = 0.207 to each side.
    assert avg["interval"] == pytest.approx([-0.207, 0.207], abs=0.03)


def test_a_run_without_evaluation_compares_with_none(run: Run, new_run: Callable[..., Run]) -> None:
    other = new_run("other")
    other.evaluated("after", 3, answers([1, 0]))
    assert comparisons([run.folder, other.folder], [None, 3]) == []


def test_recipes_differ_by_what_they_set_and_not_by_where_they_ran(
    new_run: Callable[..., Run], page: Callable[..., dict[str, Record]]
) -> None:
    first, second = new_run("first"), new_run("second")
    first.recipe(bonus_weight=0.5, data_cache="/runs/x/cache")
    second.recipe(run_dir="/runs/y", max_replace_num=2, data_cache="/runs/y/cache")
    assert page(first, second)["report"]["recipe_differences"] == [
        {"key": "oger.bonus_weight", "values": [0.5, None]},
        {"key": "oger.max_replace_num", "values": [None, 2]},
    ]


def test_runs_are_named_by_as_much_of_their_paths_as_tells_them_apart(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    assert names_of([sweep / "0.6", sweep / "models%2Fa", sweep / "%2E5"]) == ["0.6", "models/a", ".5"]
    assert names_of([tmp_path / "a" / "seed" / "run", tmp_path / "b" / "seed" / "run"]) == ["a/seed/run", "b/seed/run"]
    assert names_of([sweep / "1", sweep / "1", sweep / "2"]) == ["1", "1 (2)", "2"]


def test_a_run_that_has_only_begun_has_a_page(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    for name in ("samples", "eval", "data"):
        shutil.rmtree(run.folder / name)
    for name in ("recipe.yaml", own_files.COMMAND, "events.jsonl"):
        (run.folder / name).unlink()
    found = page(run)
    [shown] = found["report"]["runs"]
    assert (shown["steps"], shown["metrics"], shown["evaluations"], shown["command"]) == ([], {}, [], "")
    assert shown["samples"]["text"] == "The run has written no samples."
    assert found["samples-0"] == {"groups": [], "evaluations": []}


def test_lines_that_a_kill_tore_are_left_out(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    run.steps({"x": 1.0})
    run.samples(1, row("a"), row("b"))
    run.evaluated("before", 0, answers([1, 0], [0, 0]))
    for name in ("metrics.jsonl", "events.jsonl", "samples/step_00001.jsonl", "eval/step_00000.jsonl"):
        path = run.folder / name
        path.write_bytes(path.read_bytes()[:-7])
    found = page(run)
    assert [group["uid"] for group in found["samples-0"]["groups"]] == ["a"]
    assert found["report"]["runs"][0]["steps"] == []


def test_lines_of_other_writers_are_shown_as_far_as_they_go(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    chat = [{"role": "user", "content": "2 + 2?"}]
    steps = [{"text": "so", "sources": {"prm": None}}, {"text": "4", "sources": {"prm": 0.5}}]
    run.samples(1, row("a", steps_of_reasoning=steps) | {"prompt": chat, "answer": 4})
    run.evaluated("before", 0, [answer("p", 0, 1.0)])
    path = run.folder / "eval" / "step_00000.json"
    path.write_text(json.dumps({"benchmarks": {"sums": {"n": 1, "avg_at_1": 1.0}}}))
    shown = page(run)
    (group,) = shown["samples-0"]["groups"]
    assert json.loads(group["prompt"]) == chat and group["answer"] == "4"
    (said,) = shown["report"]["runs"][0]["steps_of_reasoning"]
    assert (said["position"], said["mean"], said["rows"]) == (2, 0.5, 1)
    assert shown["report"]["runs"][0]["pass_at_k"] == {}


def test_a_torn_evaluation_is_compared_with_none(new_run: Callable[..., Run]) -> None:
    first, second = new_run("first"), new_run("second")
    for each in (first, second):
        each.evaluated("after", 3, answers([1, 0], [0, 0]))
    path = first.folder / "eval" / "step_00003.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    assert comparisons([first.folder, second.folder], [3, 3]) == []


def test_the_folder_of_an_earlier_version_has_a_page(run: Run, page: Callable[..., dict[str, Record]]) -> None:
    """One benchmark without a name, no marker, samples without lengths and with other columns."""
    (run.folder / own_files.MARKER).unlink()
    run.append("metrics.jsonl", {"step": 1, "x": 1.0})
    scores = {"avg_at_8": 0.5, "pass_at_8": 0.75, "n_problems": 4}
    records.event(run.folder, "evaluated", when="before", step=0, **scores)
    run.append("samples/step_00001.jsonl", {"uid": "a", "prompt": "ask", "text": "b", "score": 1.0})
    found = page(run)
    [evaluation] = found["report"]["runs"][0]["evaluations"]
    assert evaluation["benchmarks"] == {"held-out": {"problems": 4, "avg_at_8": 0.5, "pass_at_8": 0.75}}
    assert found["samples-0"]["groups"] == [
        {"step": 1, "uid": "a", "prompt": "ask", "task": None, "answer": None, "rows": [{"text": "b", "score": 1.0}]}
    ]


def test_the_command_writes_into_the_first_run_unless_it_is_told_where(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main([str(run.folder)])
    assert set(blocks(run.folder / own_files.PAGE)) == {"report", "samples-0"}
    report.main([str(run.folder), str(run.folder), "--out", str(tmp_path / "new" / "page.html")])
    assert set(blocks(tmp_path / "new" / "page.html")) == {"report", "samples-0", "samples-1"}
    assert capsys.readouterr().out == f"{run.folder / own_files.PAGE}\n{tmp_path / 'new' / 'page.html'}\n"


def test_a_full_disk_is_a_sentence_and_leaves_no_part_of_a_page(run: Run, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(SystemExit, match="oger report: .*page.html could not be written: "):
            report.main([str(run.folder), "--out", str(tmp_path / "page.html")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("*page.html*"))


def test_a_folder_that_is_no_run_is_refused_with_the_nearest_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=f"oger report: .* the nearest runs: {run.folder}"):
        report.main([str(run.folder.with_name("runn"))])
    assert capsys.readouterr().out == ""


def test_the_page_of_a_run_that_ended_costs_it_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    training.page_at_end(run.folder)
    assert not (run.folder / own_files.PAGE).exists()  # it was never trained
    run.steps({"x": 1.0})
    training.page_at_end(run.folder)
    assert blocks(run.folder / own_files.PAGE)["report"]["runs"][0]["steps"] == [1]
    (run.folder / own_files.PAGE).unlink()
    (run.folder / own_files.PAGE).mkdir()
    training.page_at_end(run.folder)
    assert "report.html could not be written: IsADirectoryError" in capsys.readouterr().out
