"""Replies on disk: what makes two questions one, and files that broke."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.places import Cached
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt, VerdictCache

KEYS = JudgeKeys(model="me/judge", plugin="a.py")
SERVED = replace(KEYS, url="http://127.0.0.1:8000/v1")


class Model:
    """A place that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.events: list[str] = []

    def open(self) -> None:
        self.events.append("open")

    def close(self) -> None:
        self.events.append("close")

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
        self.asked += prompts
        return [
            Reply(error="no") if prompt == "bad" else Reply(f"to {prompt}", cut=prompt == "long") for prompt in prompts
        ]

    def classify(self, prompts: Sequence[str]) -> list[Reply]:
        self.asked += prompts
        return [Reply(value=len(prompt) / 3) for prompt in prompts]

    def classify_steps(self, prompts: Sequence[StepPrompt]) -> list[Reply]:
        return [Reply(steps=tuple(1 / end for end in prompt.ends)) for prompt in prompts]


@pytest.fixture()
def cache(tmp_path: Path) -> VerdictCache:
    return VerdictCache(tmp_path / "verdicts")


def test_a_question_is_asked_once_and_its_reply_stays_whole(cache: VerdictCache) -> None:
    model = Model()
    place = Cached(model, KEYS, cache)
    prompts = ["a", "é漢\ud800\x00", "long", "a"]
    first = place.generate(prompts, Sampling())
    assert [each.text for each in first] == ["to a", "to é漢\ud800\x00", "to long", "to a"]
    assert [each.cached for each in first] == [False, False, False, True] and model.asked == prompts[:3]
    again = Cached(model, KEYS, VerdictCache(cache._path.parent)).generate(["long", "a"], Sampling())
    assert [(each.text, each.cut, each.cached) for each in again] == [("to long", True, True), ("to a", False, True)]
    assert len(model.asked) == 3
    (value,) = place.classify(["abcd"])
    (kept,) = place.classify(["abcd"])
    assert (value.value, kept.value, kept.cached) == (4 / 3, 4 / 3, True) and math.isnan(first[0].value)


def test_what_came_before_an_interruption_is_kept(cache: VerdictCache) -> None:
    class Interrupted(Model):
        def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Reply]:
            if self.asked:
                raise KeyboardInterrupt
            return super().generate(prompts, sampling)

    prompts = [str(number) for number in range(1500)]
    with pytest.raises(KeyboardInterrupt):
        Cached(Interrupted(), KEYS, cache).generate(prompts, Sampling())
    again = Model()
    replies = Cached(again, KEYS, cache).generate(prompts, Sampling())
    assert [reply.text for reply in replies] == [f"to {prompt}" for prompt in prompts]
    assert again.asked == prompts[1024:]


def test_an_error_is_not_kept(cache: VerdictCache) -> None:
    model = Model()
    place = Cached(model, KEYS, cache)
    replies = place.generate(["bad", "a", "bad"], Sampling())
    assert [(each.error, each.cached) for each in replies] == [("no", False), (None, False), ("no", False)]
    place.generate(["bad", "a"], Sampling())
    assert model.asked == ["bad", "a", "bad"]


@pytest.mark.parametrize(
    ("keys", "sampling", "is_other"),
    [
        (replace(SERVED, model="me/other"), Sampling(), True),
        (replace(SERVED, revision="v2"), Sampling(), True),
        (replace(SERVED, url="http://127.0.0.1:8001/v1"), Sampling(), True),
        (replace(SERVED, api="completions"), Sampling(), True),
        (replace(SERVED, api="chat"), Sampling(), False),  # as it is without
        (replace(SERVED, system_prompt="Be strict."), Sampling(), True),
        (replace(SERVED, chat_template_kwargs={"enable_thinking": False}), Sampling(), True),
        (replace(SERVED, extra_body={"top_k": 20}), Sampling(), True),
        (SERVED, Sampling(temperature=0.5), True),
        (SERVED, Sampling(top_p=0.5), True),
        (SERVED, Sampling(seed=1), True),
        (SERVED, Sampling(max_new_tokens=5), True),
        (KEYS, Sampling(), True),
        (replace(SERVED, plugin="b.py", concurrency=3, attempts=1, api_key_env="OTHER_KEY"), Sampling(), False),
    ],
    ids="model revision url completions chat system template body temperature top_p seed length place plugin".split(),
)
def test_all_that_decides_a_reply_makes_another_question(
    cache: VerdictCache, keys: JudgeKeys, sampling: Sampling, is_other: bool
) -> None:
    model = Model()
    Cached(model, SERVED, cache).generate(["a"], Sampling())
    (reply,) = Cached(model, keys, cache).generate(["a"], sampling)
    assert reply.cached is not is_other


def test_a_text_and_a_number_of_one_prompt_are_two_questions(cache: VerdictCache) -> None:
    place = Cached(Model(), KEYS, cache)
    place.generate(["a"], Sampling())
    assert [each.cached for each in place.classify(["a"])] == [False]


def test_other_files_in_a_models_folder_are_another_model(cache: VerdictCache, tmp_path: Path) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "model.safetensors").write_text("1")
    keys = replace(KEYS, model=str(tmp_path / "judge"))
    assert [Cached(Model(), keys, cache).generate(["a"], Sampling())[0].cached for _ in range(2)] == [False, True]
    (tmp_path / "judge" / "model.safetensors").write_text("22")
    assert not Cached(Model(), keys, cache).generate(["a"], Sampling())[0].cached


def test_steps_that_end_elsewhere_and_other_files_of_an_adapter_are_another_question(
    cache: VerdictCache, tmp_path: Path
) -> None:
    """Where a tag is a token that texts have too, the same tokens may be cut in several ways."""
    keys = ProcessKeys(model="me/prm", format="trl", adapter=str(tmp_path / "adapter"))
    (tmp_path / "adapter").mkdir()

    def asked(*ends: int) -> Reply:
        (reply,) = Cached(Model(), keys, cache).classify_steps([StepPrompt((7, 8, 7, 8, 7), ends)])
        assert reply.steps == tuple(1 / end for end in ends)
        return reply

    assert [asked(2, 4).cached, asked(1, 4).cached, asked(4).cached, asked(2, 4).cached] == [False, False, False, True]
    (tmp_path / "adapter" / "adapter_model.safetensors").write_text("trained again")
    assert [asked(2, 4).cached, asked(2, 4).cached] == [False, True]


def test_a_model_is_loaded_for_the_first_prompt_that_is_not_known(cache: VerdictCache) -> None:
    model = Model()
    place = Cached(model, KEYS, cache)
    for prompts in (["a"], ["a"], ["b"]):
        place.open()
        place.generate(prompts, Sampling())
        place.generate(prompts, Sampling(seed=1))
        place.close()
    assert model.events == ["open", "close"] * 2


@pytest.mark.parametrize("harm", ["no database", "cut"])
def test_a_file_that_broke_is_moved_aside_and_a_new_one_begins(
    cache: VerdictCache, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    place = Cached(model, KEYS, cache)
    place.generate([f"{number} {'x' * 99}" for number in range(400)], Sampling())
    data = cache._path.read_bytes()
    cache._path.write_bytes(b"no database" * 999 if harm == "no database" else data[: len(data) // 3])
    assert [each.text for each in place.generate(["a"], Sampling())] == ["to a"]
    assert [each.text for each in place.generate(["b"], Sampling())] == ["to b"]
    (aside,) = cache._path.parent.glob("verdicts.sqlite.broken-*")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the cache of verdicts was corrupt (") and str(aside) in said
    assert place.generate(["b"], Sampling())[0].cached


def test_a_cache_that_cannot_be_written_is_said_once_and_models_are_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    place = Cached(Model(), KEYS, VerdictCache(tmp_path / "file"))
    for _ in range(3):
        assert [each.text for each in place.generate(["a"], Sampling())] == ["to a"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the cache of verdicts, ") and said.endswith("; models are asked again")


def test_a_row_that_broke_is_asked_again(cache: VerdictCache) -> None:
    place = Cached(Model(), KEYS, cache)
    place.generate(["a", "b"], Sampling())
    with sqlite3.connect(cache._path) as database:
        database.execute("UPDATE replies SET reply = x'00' WHERE rowid = 1")
    assert [each.cached for each in place.generate(["a", "b"], Sampling())] == [False, True]


def test_the_file_keeps_to_its_size_and_the_newest_replies(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, largest=200_000)
    for start in range(0, 2000, 50):  # two megabytes that do not get smaller when packed
        cache.put({str(number): Reply(os.urandom(500).hex()) for number in range(start, start + 50)})
    assert cache._path.stat().st_size < 250_000
    assert "1999" in cache.get(["0", "1999"]) and "0" not in cache.get(["0", "1999"])
