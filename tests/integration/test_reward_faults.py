"""Judges that fail in a step: from the server or plugin at fault to totals, advantages, counts and files of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S
from judge_server import Server

from oger_recipe.base.errors import SourceFailed
from oger_recipe.base.files import read_jsonl

GOOD, BAD, MUTE, BROKEN = "good", "bad", "mute", "broken"  # what the judge makes of a response
FIRST, SECOND = [GOOD, BAD, GOOD, BAD], [GOOD, BAD, MUTE, BROKEN]  # the responses of two groups; all are right
PLUGIN = """
def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    return list(text_responses)
def rm_postprocess(results):
    return [float(result) for result in results]
"""


def says(text: str) -> tuple[int, Any]:
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def judged(prompt: str, count: int) -> tuple[int, Any]:
    """1 for a good response and 0 for a bad one; a refusal in the place of a verdict; and a fault of the server's."""
    return {GOOD: says("1"), BAD: says("0"), MUTE: says("I refuse"), BROKEN: (500, {"error": "out of memory"})}[prompt]


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("OGER_JUDGE_API_KEY", raising=False)
    server = Server()
    server.answer = judged
    yield server
    server.end()


@pytest.fixture()
def step(controller, rollout, tmp_path: Path) -> Callable[..., Any]:
    """Makes one step of two groups, each in an experience maker of its own: what a run is that goes on."""
    (tmp_path / "plain.py").write_text(PLUGIN)

    def made(server: Server, *flags: str, number: int = 1, groups=(FIRST, SECOND), **keys: Any) -> Any:
        judge = {"name": "judge", "kind": "judge", "combine": "mul", "weight": 2, "url": server.url, "api": "chat",
                 "model": "judge", "plugin": "plain.py", "attempts": 1}  # fmt: skip
        sources = [{"name": "rule", "kind": "verifier"}, judge | keys]
        maker = controller(
            "--oger.reward.sources", json.dumps(sources), f"--oger.reward.cache={tmp_path / 'verdicts'}",
            f"--oger.verifier_path={tmp_path}", "--oger.max_replace_num=0", *flags,
        )  # fmt: skip
        maker.step = number
        rows = [rollout(text, 1.0, uid=f"u{group}") for group, texts in enumerate(groups) for text in texts]
        maker.experiences = maker.make_experience_batch(rows)
        return maker

    return made


def advantages(maker: Any) -> list[float]:
    """Of the rows' first tokens."""
    rows = {row: experience.advantages[place][experience.action_mask[place].bool()][0].item()
            for experience in maker.experiences for place, row in enumerate(experience.index)}  # fmt: skip
    return [rows[row] for row in sorted(rows)]


def notes(maker: Any) -> list[str]:
    return [event["text"] for event in read_jsonl(maker.run_dir / "events.jsonl") if event["event"] == "note"]


# ---- rule * 2 * judge, where a refusal, which an answer can talk a judge into, and a request that the server breaks
# down over while it answers others, have no value: they are worth the judge's worst one, whatever on_error says


@pytest.mark.parametrize("on_error", ["zero", "neutral", "drop_group"])
def test_what_a_failed_verdict_costs(step, server, on_error):
    maker = step(server, "--oger.reward.on_error", on_error)
    assert maker.current.rewards.total.flatten().tolist() == [2, 0, 2, 0, 2, 0, 0, 0]
    assert advantages(maker) == pytest.approx([1, -1, 1, -1, 1.5, -0.5, -0.5, -0.5])  # the group's mean is 0.5

    metrics = maker.current.metrics
    assert (metrics["reward/judge/failed"], metrics["reward/rule/failed"]) == (2, 0)
    assert metrics["reward/judge"] == pytest.approx(3 / 6)  # of the rows that have a verdict
    rows = read_jsonl(maker.run_dir / "samples" / "step_00001.jsonl")
    assert [row["sources"].get("judge") for row in rows] == [1, 0, 1, 0, 1, 0, None, None]
    assert [list(row.get("errors", {})) for row in rows] == [[]] * 6 + [["judge"]] * 2
    assert "I refuse" in rows[6]["errors"]["judge"] and "HTTP status 500" in rows[7]["errors"]["judge"]
    (example,) = read_jsonl(maker.run_dir / "source_errors.jsonl")
    assert (example["step"], example["source"], example["failed"], example["row"]) == (1, "judge", 2, 2)
    assert example["uid"] == "u1" and example["responses"] == SECOND and "I refuse" in example["error"]
    (note,) = notes(maker)
    assert "reward source judge failed on 2 of 8 rows of step 1" in note and f"oger.reward.on_error {on_error}" in note


@pytest.mark.parametrize(
    ("on_error", "totals", "expected"),
    [
        # A failed row has the value 0, and so 0 altogether. The group's mean is 0.5.
        ("zero", [2, 0, 2, 0, 2, 0, 0, 0], [1, -1, 1, -1, 1.5, -0.5, -0.5, -0.5]),
        # A failed row has the rule's 1. The group's mean is 1.
        ("neutral", [2, 0, 2, 0, 2, 0, 1, 1], [1, -1, 1, -1, 1, -1, 0, 0]),
        ("drop_group", [2, 0, 2, 0, 2, 0, 1, 1], [1, -1, 1, -1, 0, 0, 0, 0]),
    ],
)
def test_what_no_answer_brings_about_costs_what_on_error_says(step, server, on_error, totals, expected):
    server.answer = lambda prompt, count: (429, {}) if prompt in (MUTE, BROKEN) else judged(prompt, count)
    maker = step(server, "--oger.reward.on_error", on_error)
    assert maker.current.rewards.total.flatten().tolist() == totals
    assert advantages(maker) == pytest.approx(expected)


def test_a_run_can_stop_instead(step, server, tmp_path):
    with pytest.raises(SourceFailed, match=r"judge failed on 2 of 8 rows of step 1: .*I refuse.*on_error stop"):
        step(server, "--oger.reward.on_error", "stop")
    (example,) = read_jsonl(tmp_path / "run" / "source_errors.jsonl")
    assert example["responses"] == SECOND


# ---- oger.reward.max_error_rate: a source that fails on most rows ends the run, before the step is trained


@pytest.mark.parametrize("on_error", ["zero", "neutral", "drop_group"])
def test_a_judge_that_is_dead_for_a_step_ends_the_run(step, server, tmp_path, on_error):
    server.end()
    said = (
        r"judge failed on 8 of 8 rows of step 1: .*All connection attempts failed; an example is in .*jsonl\. It "
        r"failed on 8 of the last 8 rows \(limit: 50%, oger\.reward\.max_error_rate\), and the policy was not trained"
    )
    with pytest.raises(SourceFailed, match=said):
        step(server, "--oger.reward.on_error", on_error)
    (note,) = [event for event in read_jsonl(tmp_path / "run" / "events.jsonl") if event["event"] == "note"]
    assert "judge failed on 8 of 8 rows of step 1" in note["text"]


@pytest.mark.parametrize(("broken", "limit", "goes_on"), [(4, 0.5, True), (5, 0.5, False), (5, 0.625, True),
                                                          (1, 0.0, False), (8, 1.0, True)])  # fmt: skip
def test_the_limit_is_of_the_rows_that_were_asked_about(step, server, broken, limit, goes_on):
    texts = [BROKEN] * broken + [GOOD] * (8 - broken)
    groups, flag = [texts[:4], texts[4:]], f"--oger.reward.max_error_rate={limit}"
    if goes_on:
        assert step(server, flag, groups=groups).current.metrics["reward/judge/failed"] == broken
    else:
        with pytest.raises(SourceFailed, match=f"{broken} of the last 8 rows"):
            step(server, flag, groups=groups)


def test_steps_of_few_rows_are_taken_together_until_the_source_answers_again(step, server):
    """One group of four is too few for a share."""
    maker = step(server, groups=[[BROKEN] * 4], cache=False)
    rows = maker.current.rollouts.samples

    def goes_on(number, answers):
        maker.step, server.answer = number, answers
        maker.make_experience_batch(rows)

    goes_on(2, lambda prompt, count: says("1"))
    goes_on(3, judged)
    assert maker.current.metrics["reward/judge/failed"] == 4
    state = maker.state()
    maker = step(server, groups=[[GOOD] * 4], cache=False)
    maker.resume(3, 5, state)  # also in a run that is resumed
    with pytest.raises(SourceFailed, match="judge failed on 4 of 4 rows of step 4.* on 8 of the last 8 rows"):
        goes_on(4, judged)


def test_every_step_says_what_failed_and_that_nothing_is_learnt_from_it(step, server):
    maker = step(server, "--oger.reward.max_error_rate=1", "--oger.reward.on_error=drop_group")
    maker.step = 2
    maker.make_experience_batch(maker.current.rollouts.samples)
    first, second = notes(maker)
    assert "judge failed on 2 of 8 rows of step 1" in first and "judge failed on 2 of 8 rows of step 2" in second
    server.answer = lambda prompt, count: (429, {}) if prompt in (MUTE, BROKEN) else judged(prompt, count)
    maker = step(server, "--oger.reward.on_error=drop_group", number=3, groups=[SECOND], cache=False)
    failed, nothing = notes(maker)[2:]
    assert "judge failed on 2 of 4 rows of step 3" in failed
    why = "(1 of 1 were dropped for a failed source)"
    text = "note: step {}: no group of this step has an advantage{}: its rewards teach the policy nothing"
    assert nothing == text.format(3, f" {why}")
    maker = step(server, number=4, groups=([GOOD] * 4, [BAD] * 4))
    assert notes(maker)[4:] == [text.format(4, "")]


@pytest.mark.parametrize(("others", "goes_on"), [([GOOD] * 4 + [MUTE] * 4, True), ([GOOD] * 3 + [MUTE] * 5, False)])
def test_rows_that_are_too_long_for_the_judge_do_not_say_that_it_is_dead(step, server, others, goes_on):
    """What they cost is declared; the limit is of the others, here of 8 among 16."""
    server.answer = lambda prompt, count: (400, {"message": TOO_LONG}) if prompt == PADDED else judged(prompt, count)
    groups = [[PADDED] * 4, [PADDED] * 4, others[:4], others[4:]]
    if goes_on:
        assert step(server, groups=groups).current.metrics["reward/judge/failed"] == 12
    else:
        with pytest.raises(SourceFailed, match="5 of the last 8 rows"):
            step(server, groups=groups)


def test_the_verifier_has_a_limit_of_its_own(controller, rollout):
    maker = controller("--oger.max_reward_error_rate=1", "--oger.bonus_weight=0", "--oger.max_replace_num=0")
    maker.make_experience_batch([rollout(text, error="the verifier died") for text in "abcdefgh"])
    assert maker.current.metrics["reward/rule/failed"] == 8


def test_a_reason_is_one_short_line_of_a_note(step, server):
    server.answer = lambda prompt, count: says("word \n" * 500)
    (note,) = notes(step(server, groups=[FIRST]))[:1]
    assert "\n" not in note and len(note) < 600


# ---- faults: whatever happens, no row gets another's verdict

FINE = [1, 0, 1, 0]


def values(maker: Any) -> list[float | None]:
    """What the judge said of each row."""
    rows = read_jsonl(maker.run_dir / "samples" / f"step_{maker.step:05d}.jsonl")
    return [row["sources"].get("judge") for row in rows]


def test_a_dead_server_costs_every_row_its_verdict_and_the_next_step_asks_again(step, server):
    server.end()
    maker = step(server, groups=[FIRST])
    assert values(maker) == [None] * 4 and maker.current.metrics["reward/judge/failed"] == 4
    assert maker.current.rewards.total.tolist() == [[0.0] * 4] and advantages(maker) == [0.0] * 4
    again = Server(server.server_port)
    again.answer = judged
    try:
        maker.step = 2
        maker.make_experience_batch(maker.current.rollouts.samples)
        assert values(maker) == FINE and maker.current.metrics["reward/judge/failed"] == 0
    finally:
        again.end()


def test_a_server_that_dies_in_a_step_costs_what_it_did_not_answer_and_that_is_asked_again(step, server):
    """The judge says the number that the response is, so that no verdict can be taken for another's."""
    texts = ["0.5", "1", "0", "0.25", "0.75", "2", "3", "4"]
    server.answer = lambda prompt, count: says(prompt) if len(server.asked) <= 3 else None
    groups = [texts[:4], texts[4:]]
    maker = step(server, "--oger.reward.max_error_rate=1", groups=groups, concurrency=1)
    assert values(maker) == [0.5, 1, 0] + [None] * 5 and maker.current.metrics["reward/judge/failed"] == 5
    asked = len(server.asked)
    server.answer = lambda prompt, count: says(prompt)
    assert values(step(server, groups=groups, number=2)) == [float(text) for text in texts]
    assert len(server.asked) == asked + 5


@pytest.mark.parametrize(
    "garbage",
    [
        (200, b"<html>gateway</html>"),
        (200, {"choices": []}),
        (200, {"choices": [{}, {}]}),
        (200, [1]),
        (429, {}),
        None,
    ],
    ids=["no JSON", "no choice", "two choices", "a list", "too many requests", "no answer"],
)
def test_what_is_no_answer_costs_the_row_that_it_came_for(step, server, garbage):
    server.answer = lambda prompt, count: garbage if prompt == BAD else judged(prompt, count)
    maker = step(server, groups=[FIRST])
    assert values(maker) == [1, None, 1, None] and maker.current.metrics["reward/judge/failed"] == 2


def test_a_server_that_is_busy_for_a_moment_costs_nothing_but_time(step, server):
    server.answer = lambda prompt, count: (429, {}) if prompt == BAD and count == 1 else judged(prompt, count)
    maker = step(server, groups=[FIRST], attempts=2)
    assert values(maker) == FINE and maker.current.metrics["reward/judge/failed"] == 0


@pytest.mark.parametrize(
    ("plugin", "found", "said"),
    [
        ("def rm_postprocess(results):\n return [1 / int(result) for result in results]", [1, None, 1, None], "Zero"),
        ("def rm_postprocess(results):\n return [1.0]", [1, 1, 1, 1], None),  # right for one row at a time
        ("def rm_postprocess(results):\n return []", [None] * 4, "0 values"),
        ("def rm_postprocess(results):\n import os; os._exit(3)", [None] * 4, "exit code 3"),
        ("def rm_postprocess(results):\n while True: pass", [None] * 4, "more than 1 s"),
    ],
    ids=["raises for some", "one value for all", "too few values", "dies", "never returns"],
)
def test_a_plugin_that_fails_costs_its_own_rows(step, server, tmp_path, plugin, found, said):
    maker_plugin = PLUGIN.split("def rm_postprocess")[0] + plugin
    (tmp_path / "bad.py").write_text(maker_plugin)
    limit = 1 if said == "more than 1 s" else HANG_S
    maker = step(server, groups=[FIRST], plugin="bad.py", plugin_limit_s=limit)
    assert values(maker) == found and maker.current.metrics["reward/judge/failed"] == found.count(None)
    if said:
        assert said in read_jsonl(maker.run_dir / "source_errors.jsonl")[0]["error"]


# ---- verdicts are paid for once


def test_a_run_that_goes_on_pays_for_the_verdicts_of_its_lost_step_once(step, server):
    """The first run is killed behind the step, and another process makes the step again; errors are asked anew."""
    first = step(server)
    asked = len(server.asked)
    assert asked == 4 and first.current.metrics["reward/judge/cached"] == pytest.approx(
        4 / 7
    )  # equal questions are asked once
    server.answer = lambda prompt, count: says("0.5") if prompt == BROKEN else (500, {})
    second = step(server)
    assert values(second) == [1, 0, 1, 0, 1, 0, None, 0.5]
    assert len(server.asked) == asked + 1  # the refusal is a reply: it is kept
    assert second.current.metrics["reward/judge/cached"] == pytest.approx(7 / 8)
    other = step(server, "--oger.reward.max_error_rate=1", number=2, cache=False)
    assert values(other)[:6] == [None] * 6 and len(server.asked) > asked + 1


# ---- what an answer brings about is never worth more than the worst verdict

RIDER = """
def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    return list(text_responses)
def rm_postprocess(results):
    return [{"good": 0.0, "bad": -1.0}[result] for result in results]
"""
PADDED, FILTERED = BAD + " word" * 40, "filtered"  # past the window; refused
TOO_LONG = "This model's maximum context length is 32 tokens. However, your messages have 51 tokens."


def rides(prompt: str, count: int) -> tuple[int, Any]:
    """-1 for a bad response, 0 for a good one, and no verdict where the response has seen to that."""
    if prompt == PADDED:
        return 400, {"message": TOO_LONG}
    refusals = {FILTERED: (400, {"code": "content_filter"}), BROKEN: (500, {"error": "KeyError"})}
    return refusals[prompt] if prompt in refusals else says(prompt)


@pytest.mark.parametrize("worst", [{"worst": -1.0}, {}], ids=["declared", "of the run so far"])
@pytest.mark.parametrize("on_error", ["zero", "neutral"])
def test_a_wrong_answer_earns_no_more_where_it_keeps_the_judge_from_a_verdict(step, server, tmp_path, on_error, worst):
    server.answer = rides
    (tmp_path / "rider.py").write_text(RIDER)
    ways = [[GOOD, BAD, PADDED, FILTERED], [GOOD, BROKEN, MUTE, BAD]]
    maker = step(server, "--oger.reward.on_error", on_error, groups=ways, combine="add", weight=1, plugin="rider.py",
                 **worst)  # fmt: skip
    assert maker.current.rewards.total.tolist() == [
        [1, 0, 0, 0],
        [1, 0, 0, 0],
    ]  # the rule's 1, less what the rider takes off
    assert (
        maker.current.metrics["reward/judge/overflow"] == 1 / 8 and maker.current.metrics["reward/judge/failed"] == 4
    )
    assert values(maker) == [0, -1, None, None, 0, None, None, -1]  # of those it said nothing


def test_the_worst_of_the_run_so_far_outlasts_a_step_in_which_nobody_gets_a_verdict(step, server, tmp_path):
    server.answer = rides
    (tmp_path / "rider.py").write_text(RIDER)
    keys = {"combine": "add", "weight": 1, "plugin": "rider.py"}
    maker = step(server, groups=[[GOOD, BAD, GOOD, GOOD]], **keys)
    again = step(server, groups=[[PADDED] * 4], number=2, **keys)
    assert again.current.rewards.total.tolist() == [[1] * 4]  # this one knows nothing of the step before
    again.reward_sources.resume(1, maker.run_dir, {})  # a run that goes on does
    again.make_experience_batch(again.current.rollouts.samples)
    assert again.current.rewards.total.tolist() == [[0] * 4]


def test_a_server_that_answers_nobody_is_no_answers_doing(step, server, tmp_path):
    server.answer = lambda prompt, count: (500, {"error": "the engine is dead"})
    (tmp_path / "rider.py").write_text(RIDER)
    keys = {"worst": -1.0, "combine": "add", "plugin": "rider.py"}
    maker = step(server, "--oger.reward.on_error", "drop_group", groups=[FIRST], **keys)
    assert maker.current.rewards.dropped.tolist() == [True] and advantages(maker) == [0] * 4


def test_the_group_of_a_row_that_is_too_long_may_be_left_out_instead(step, server, tmp_path):
    server.answer = rides
    (tmp_path / "rider.py").write_text(RIDER)
    ways = [[GOOD, BAD, PADDED, BAD], [GOOD, BAD, FILTERED, BAD]]
    maker = step(server, groups=ways, combine="add", weight=1, plugin="rider.py", on_overflow="drop_group")
    assert maker.current.rewards.dropped.tolist() == [True, False]
    assert maker.current.rewards.total.tolist() == [[1, 0, 1, 0], [1, 0, 0, 0]]
