"""Teachers that enter while rollouts are sampled: prefixes for the engine, and what becomes of them in the group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.engine.rollout_engine import _PrefixedEngine
from oger_recipe.teachers.draw import History
from oger_recipe.teachers.store import Teacher, TeacherStore, write_teacher_store

END = 1
SHORT = Teacher("short", "abc", [10, 11, 12, END], 1.0, 1.0)
LONG = Teacher("long", "abcdefghi", [20, 21, 22, 23, 24, 25, 26, 27, 28, END], 1.0, 1.0)


class Engine:
    """Samples the tokens 7 and END with log-probability -0.5 each; notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    async def generate(self, tokens: list[int], params: Any, **_: Any) -> Any:
        self.asked.append((tokens, params.max_tokens))
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in (7, END)]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7, END], logprobs=logprobs, finish_reason="stop")])


def _generated(prefix: list[int], max_tokens: int = 16) -> tuple[Any, Engine]:
    engine = Engine()
    params = SimpleNamespace(max_tokens=max_tokens)
    result = asyncio.run(_PrefixedEngine(engine, prefix, END).generate([3, 4], params, multi_modal_data=None))
    return result.outputs[0], engine


def test_the_policy_goes_on_after_the_prefix_within_the_same_budget():
    output, engine = _generated([20, 21, 22])
    assert engine.asked == [([3, 4, 20, 21, 22], 13)]
    assert output.token_ids == [20, 21, 22, 7, END]
    assert output.logprobs[:3] == [{}, {}, {}] and output.logprobs[3][7].logprob == -0.5
    assert output.finish_reason == "stop"


def test_a_whole_trajectory_is_not_sampled_at_all():
    output, engine = _generated(SHORT.tokens)
    assert engine.asked == []
    assert (output.token_ids, output.finish_reason) == (SHORT.tokens, "stop")


def test_a_cut_trajectory_that_fills_the_budget_is_not_continued_and_a_shorter_one_within_it():
    cut = LONG.tokens[:-1]  # without its end
    output, engine = _generated(cut, max_tokens=len(cut))
    assert engine.asked == []
    assert (output.token_ids, output.logprobs, output.finish_reason) == (cut, [{}] * len(cut), "stop")
    output, engine = _generated(cut, max_tokens=len(cut) + 1)
    assert engine.asked == [([3, 4, *cut], 1)]


@pytest.fixture()
def generator(tmp_path: Path, nested) -> Callable[..., OgerSamplesGenerator]:
    """At the first step of a run with two prompts that have teachers; groups are of four."""
    (tmp_path / "data").mkdir()
    shown = {uid: (f"<{uid}>", "|") for uid in ("taught", "lone")}
    write_teacher_store({"taught": [SHORT, LONG], "lone": [LONG]}, tmp_path / "data" / "teachers.arrow", shown)

    def make(*flags: str) -> OgerSamplesGenerator:
        given = (f"--oger.run_dir={tmp_path}", "--rollout.n_samples_per_prompt=4", "--train.seed=5")
        made = OgerSamplesGenerator(SimpleNamespace(args=nested(*given, *flags)), None, None, None, [])
        made.step = 1
        return made

    return make


def test_without_replacement_after_rewards_the_first_rollouts_are_whole_teachers(generator):
    luffy = generator("--no-oger.replace_after_rm", "--oger.max_replace_num=2")
    prefixes = luffy._prefixes("taught")
    assert sorted(prefixes[:2]) == sorted([SHORT.tokens, LONG.tokens]) and prefixes[2:] == [[], []]
    assert luffy._prefixes("lone") == [LONG.tokens, [], [], []]
    assert luffy._prefixes("nobody") == [[]] * 4


def test_prefixes_have_their_share_of_the_teachers_tokens(generator):
    guided = generator("--oger.n_prefix=3", "--oger.prefix_strategy=fixed", "--oger.min_prefix_ratio=0.2")
    # Shares 0.2, 0.6 and 1 of ten tokens; the fourth rollout is the policy's alone.
    assert guided._prefixes("lone") == [LONG.tokens[:2], LONG.tokens[:6], LONG.tokens, []]
    bounds = ("--oger.min_prefix_ratio=0.1", "--oger.max_prefix_ratio=0.7")
    guided = generator("--oger.n_prefix=3", "--oger.prefix_strategy=fixed", *bounds)
    # 0.1, 0.4 and 0.7: of floats, half of 0.1 and half of 0.7 are 0.39999999999999997.
    assert guided._prefixes("lone") == [LONG.tokens[:1], LONG.tokens[:4], LONG.tokens[:7], []]


@pytest.mark.parametrize(
    ("flags", "lengths"),
    [
        (["--oger.prefix_strategy=fixed"], [0, 5, 10, 0]),  # of ten tokens, for three rollouts of four
        (["--oger.prefix_strategy=fixed", "--oger.n_prefix=2"], [0, 10, 0, 0]),
        (["--oger.prefix_strategy=fixed", "--oger.min_prefix_ratio=0.4"], [4, 7, 10, 0]),
        (["--oger.prefix_strategy=fixed", "--oger.max_prefix_ratio=0.4"], [0, 2, 4, 0]),
        (["--oger.prefix_strategy=fixed", "--oger.prefix_share_across_samples"], [10, 10, 10, 0]),
        (["--oger.prefix_strategy=linear", "--oger.prefix_steps=2"], [5, 5, 5, 0]),  # at the first step
        (["--oger.prefix_strategy=linear_max", "--oger.prefix_linear_max_ratio=0"], [0, 0, 0, 0]),
    ],
    ids=str,
)  # fmt: skip
def test_flags_of_prefixes(generator, flags: list[str], lengths: list[int]) -> None:
    assert list(map(len, generator("--oger.n_prefix=3", *flags)._prefixes("lone"))) == lengths


def test_a_prompt_whose_only_teachers_have_weight_zero_is_the_policys_alone(generator):
    weights = ("--oger.teacher_draw=source_weights", "--oger.teacher_source_weights=long=0")
    guided = generator("--oger.n_prefix=2", "--oger.prefix_strategy=fixed", *weights)
    assert guided._prefixes("lone") == [[]] * 4
    assert guided._prefixes("taught")[1] == SHORT.tokens  # the whole of the one that may enter


def _asked(generator, monkeypatch, *flags: str, step: int = 1, **how: Any) -> list[str]:
    """The prompts that reach the engine, of the taught prompt, the lone one and one that nobody teaches."""
    asked: list[str] = []
    remote = SimpleNamespace(remote=lambda **given: asked.append(given["prompt"]))
    engine = SimpleNamespace(generate_responses=remote, get_num_unfinished_requests=SimpleNamespace(remote=lambda: 0))
    monkeypatch.setattr("ray.get", lambda refs: refs)
    made = generator(*flags)
    made.step, made.vllm_engines = step, [engine]
    uids = ("taught", "lone", "nobody")
    made._dispatch_prompts_to_vllm([f"Q {uid}" for uid in uids], [f'{{"uid": "{uid}"}}' for uid in uids], **how)
    return asked


def test_who_asked_hears_which_prompts_were_sent_for_training_and_of_no_evaluated_one(generator, monkeypatch):
    heard: list[list[str]] = []
    monkeypatch.setattr(OgerSamplesGenerator, "sent", heard.append)
    _asked(generator, monkeypatch)  # evaluation
    assert heard == []
    _asked(generator, monkeypatch, guided=False)
    assert heard == [["taught", "lone", "nobody"]]


def test_the_prompt_of_training_rollouts_shows_the_first_share_of_a_teacher(generator, monkeypatch):
    half = _asked(generator, monkeypatch, "--oger.hint_share=0.5", guided=False)
    assert half == ["<taught>a|", "<lone>abcd|", "Q nobody"] or half == ["<taught>abcd|", "<lone>abcd|", "Q nobody"]
    assert half == _asked(generator, monkeypatch, "--oger.hint_share=0.5", guided=False)
    steps = [_asked(generator, monkeypatch, "--oger.hint_share=1", step=step, guided=False) for step in range(1, 9)]
    assert {first for first, *_ in steps} == {"<taught>abc|", "<taught>abcdefghi|"}
    plain = ["Q taught", "Q lone", "Q nobody"]
    assert _asked(generator, monkeypatch, guided=False) == plain
    assert _asked(generator, monkeypatch, "--oger.hint_share=0.5") == plain  # evaluation
    assert _asked(generator, monkeypatch, "--oger.hint_share=0.1", guided=False)[1:] == plain[1:]  # less than a letter


@pytest.mark.parametrize(
    ("flags", "lengths"),
    [
        (["--oger.hint_schedule=constant"], [8, 8, 8, 8]),
        (["--oger.hint_schedule=linear"], [8, 6, 4, 2]),  # over the run's five steps: a quarter of 0.8 a step
        (["--oger.hint_schedule=linear", "--oger.hint_share_end=0.4"], [8, 7, 6, 5]),
        (["--oger.hint_schedule=linear", "--oger.hint_schedule_steps=3"], [8, 4, 0, 0]),
        (["--oger.hint_schedule=cosine", "--oger.hint_schedule_steps=3"], [8, 4, 0, 0]),
        (["--oger.hint_schedule=cosine"], [8, 6, 4, 1]),  # 0.8 (1 + cos(pi / 4)) / 2 = 0.683, the other 0.117
    ],
    ids=str,
)  # fmt: skip
def test_hints_follow_their_schedule(generator, monkeypatch, flags, lengths):
    ten = Teacher("ten", "abcdefghij", [1] * 11, 1.0, 1.0)
    monkeypatch.setattr(OgerSamplesGenerator, "planned_steps", 5)
    monkeypatch.setattr(TeacherStore, "__getitem__", lambda self, uid: [ten] * (uid == "lone"))
    for step, length in enumerate(lengths, start=1):
        asked = _asked(generator, monkeypatch, "--oger.hint_share=0.8", *flags, step=step, guided=False)[1]
        assert asked == (f"<lone>{'abcdefghij'[:length]}|" if length else "Q lone"), step


def test_no_hint_is_of_a_teacher_that_may_not_enter(generator, monkeypatch):
    weights = ("--oger.teacher_draw=source_weights", "--oger.teacher_source_weights=long=0")
    asked = _asked(generator, monkeypatch, "--oger.hint_share=1", *weights, guided=False)
    assert asked == ["<taught>abc|", "Q lone", "Q nobody"]


def test_the_draw_is_the_steps_own(generator):
    guided = generator("--oger.n_prefix=-1", "--oger.prefix_strategy=random")
    first = guided._prefixes("taught")
    assert first == guided._prefixes("taught")
    guided.step = 2
    assert first != guided._prefixes("taught")


def test_the_samplers_step_is_the_trainers_in_every_episode_and_after_a_resume(generator, monkeypatch):
    """Two episodes of three batches; each ends with a call that has nothing left, as OpenRLHF's data loader does."""

    def sampled(calls):
        monkeypatch.setattr(SamplesGenerator, "generate_samples", lambda self, **_: next(calls))
        trained = []
        for _ in range(8):
            samples, *_ = made.generate_samples()
            trained += [made.step] if samples else []
        return trained

    full, empty, short = (["row"] * 4, None, 4, False), ([], None, 0, True), (["row"] * 3, None, 3, False)
    made = generator("--train.batch_size=4")
    made.step = 0
    assert sampled(iter([full, full, full, empty, full, full, full, empty])) == [1, 2, 3, 4, 5, 6]
    made.step = 3  # resumed after the first episode
    assert sampled(iter([full, short, full, empty, full, empty, full, empty])) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("flags", "guided"),
    [
        ([], False),
        (["--oger.max_replace_num=0", "--no-oger.replace_after_rm"], False),
        (["--no-oger.replace_after_rm"], True),
        (["--oger.n_prefix=-1"], True),
    ],
)
def test_the_engine_is_told_of_teachers_only_where_they_enter_in_rollouts(generator, monkeypatch, flags, guided):
    monkeypatch.setattr(SamplesGenerator, "generate_samples", lambda self, guided: ([], guided, 0, True))
    assert generator(*flags).generate_samples()[1] is guided


# ---- history


def test_history_keeps_the_newest_texts_of_a_prompt_once(tmp_path):
    history = History(tmp_path / "history.jsonl", 2, 0)
    for step, text in enumerate(["one", "two", "two", "three\u2028lines"], start=1):
        history.add(step, "u", text)
    history.add(4, "v", "other")
    assert (history["u"], history["v"], history["nobody"]) == (["two", "three\u2028lines"], ["other"], [])


@pytest.mark.parametrize(
    ("step", "texts"), [(0, []), (1, ["one"]), (3, ["one", "two"]), (4, ["two", "three\u2028lines"])]
)
def test_a_resumed_run_has_the_history_of_its_step_and_forgets_what_came_after(tmp_path, step, texts):
    history = History(tmp_path / "history.jsonl", 2, 0)
    for at, text in ((1, "one"), (2, "two"), (4, "three\u2028lines")):
        history.add(at, "u", text)
    assert History(tmp_path / "history.jsonl", 2, step)["u"] == texts
    assert History(tmp_path / "history.jsonl", 2, 100)["u"] == texts


PROBS = [0.1, 1 - 2**-24, 2**-140, 1.0]  # as float32 has them, but for the first


def _own(text: str, *, entropy: float = 0.25, tokens: tuple[int, ...] = (7, 151_642, 0, END)) -> Teacher:
    return Teacher("history", text, list(tokens), 0.9, 1.0, PROBS[: len(tokens)], entropy)


def test_what_enters_groups_comes_back_from_the_file_as_it_was_to_the_last_bit(tmp_path):
    path = tmp_path / "history.jsonl"
    history = History(path, 2, 0)
    history.add(1, "u", "first", _own("first"))
    history.add(1, "v", "a reference", None)
    history.add(2, "u", "second\u2028", _own("second\u2028", entropy=1e-9, tokens=(END,)))
    history.add(2, "u", "second\u2028", _own("again"))
    history.add(3, "u", "third", _own("third"))
    for read in (history, History(path, 2, 3), History(path, 2, 100)):  # a resumed run, twice
        second, third = read.teachers("u")
        assert (second.text, third.text) == ("second\u2028", "third") and read["u"] == ["second\u2028", "third"]
        assert (second.tokens, second.entropy, third.entropy) == ([END], 1e-9, 0.25)
        assert (third.source, third.reward, third.score) == ("history", 0.9, 1.0)
        assert third.tokens == [7, 151_642, 0, END]
        assert third.probs == [np.float32(0.1).item(), *PROBS[1:]]
        assert read.teachers("v") == [] == read.teachers("nobody") and read["v"] == ["a reference"]
    with path.open("ab") as file:
        file.write(b'{"step": 3, "uid": "u", "te')  # torn by a kill
    resumed = History(path, 2, 1)
    resumed.add(2, "u", "other", _own("other"))
    assert [each.text for each in resumed.teachers("u")] == ["first", "other"] == History(path, 2, 9)["u"]


def test_a_prefix_may_be_of_the_policys_own_earlier_rollouts(generator, tmp_path):
    flags = ("--no-oger.replace_after_rm", "--oger.max_replace_num=2", "--oger.use_history_samples")
    history = History(tmp_path / "history.jsonl", 4, 0)
    history.add(1, "nobody", "own", _own("own"))
    history.add(1, "lone", "own", _own("own"))
    for enters in (True, False):
        luffy = generator(*flags, *(["--oger.history_enters"] if enters else []))
        luffy.history = history
        assert luffy._prefixes("nobody") == [_own("own").tokens if enters else [], [], [], []]
        assert sorted(luffy._prefixes("lone")[:2]) == ([_own("own").tokens] if enters else [[]]) + [LONG.tokens]
    alone = generator(*flags, "--oger.history_enters", "--oger.teacher_draw=lowest_entropy")
    alone.history = history
    assert alone._prefixes("lone")[:2] == [_own("own").tokens, LONG.tokens]
