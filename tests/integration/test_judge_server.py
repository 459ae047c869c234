"""Judges and heads at a server: a real one on this machine, and all that can go wrong with it."""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S
from judge_server import Answer, Handler, Server, prompt_of, said

from oger_recipe.base.endpoint import Endpoint, Failed
from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.job import OK, PROBLEM, Job
from oger_recipe.checks.preflight import CHECKS
from oger_recipe.models.keys import ProcessKeys
from oger_recipe.models.places import Cached
from oger_recipe.models.server import ServerPlace, probe
from oger_recipe.rewards.kinds.classifier import ClassifierKeys, CritiqueKeys
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.place import Reply, Sampling, StepPrompt, VerdictCache
from oger_recipe.rewards.sources import ANSWER, OVERFLOW
from oger_recipe.settings.grades import GraderKeys

KEY = "k3y-of-the-judge"
PROMPTS = [f"prompt {number}" for number in range(12)]
NOBODY = "http://127.0.0.1:9/v1"  # the port "discard", which nothing serves here


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("OGER_JUDGE_API_KEY", raising=False)
    server = Server()
    yield server
    server.end()


def judge(server: Server | str, **keys: Any) -> JudgeKeys:
    url = server if isinstance(server, str) else server.url
    return JudgeKeys(
        **{"model": "judge", "plugin": "binary", "url": url, "api": "completions", "request_limit_s": 120.0,
           "attempts": 3} | keys
    )  # fmt: skip


def head(server: Server, **keys: Any) -> ClassifierKeys:
    return ClassifierKeys(**{"model": "judge", "url": server.url, "attempts": 3} | keys)


def place_of(keys: JudgeKeys | ClassifierKeys) -> ServerPlace:
    return ServerPlace(keys, first_pause_s=0.001)


def ask(keys: JudgeKeys, prompts: list[str] = PROMPTS) -> list[Reply]:
    return place_of(keys).generate(prompts, Sampling())


def _assert_own(replies: list[Reply], prompts: list[str]) -> None:
    assert [(each.text, each.error) for each in replies] == [(f"of {prompt}", None) for prompt in prompts]


# ---- what is asked, and how answers are read


def test_a_judge_is_asked_for_completions_of_the_prompt_as_it_is(server: Server) -> None:
    prompt = "<|im_start|>user\nRight?<|im_end|>\n<|im_start|>assistant\n"
    server.answer = lambda prompt, count: (200, said(prompt, "length"))
    sampling = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=64, seed=5)
    (reply,) = place_of(judge(server)).generate([prompt], sampling)
    assert reply == replace(reply, text=f"of {prompt}", cut=True, cached=False, error=None)
    settings = {"model": "judge", "max_tokens": 64, "temperature": 0.7, "top_p": 0.9}
    assert server.asked == [("/v1/completions", settings | {"prompt": prompt, "seed": sampling.seed_of(prompt)})]
    assert "Authorization" not in server.headers[0]


def test_a_chat_gets_the_prompt_as_the_users_message(server: Server) -> None:
    message = {"role": "assistant", "content": "Yes."}
    server.answer = lambda prompt, count: (200, {"choices": [{"message": message, "finish_reason": "stop"}]})
    (reply,) = ask(judge(f"{server.url}/", api="chat"), ["Right?"])
    assert (reply.text, reply.cut, reply.error) == ("Yes.", False, None)
    settings = {"model": "judge", "max_tokens": 1024, "temperature": 0.0, "top_p": 1.0}
    messages = [{"role": "user", "content": "Right?"}]
    assert server.asked == [("/v1/chat/completions", settings | {"messages": messages})]


def test_a_chat_that_was_cut_in_its_thoughts_has_an_empty_text(server: Server) -> None:
    choice = {"message": {"content": None, "reasoning": "Hm"}, "finish_reason": "length"}
    server.answer = lambda prompt, count: (200, {"choices": [choice]})
    (reply,) = ask(judge(server, api="chat"), ["Right?"])
    assert (reply.text, reply.cut, reply.error) == ("", True, None)


@pytest.mark.parametrize(
    ("kind", "path", "item", "more"),
    [
        ("classify", "/classify", {"probs": [-1.5], "label": "LABEL_0", "num_classes": 1}, {"use_activation": False}),
        ("pooling", "/pooling", {"data": [-1.5], "object": "pooling"}, {"use_activation": False}),
        ("pooling", "/pooling", {"data": [[0.5], [7.0], [-1.5]], "object": "pooling"}, {"use_activation": False}),
        ("embeddings", "/v1/embeddings", {"embedding": [-1.5], "object": "embedding"}, {}),
    ],
)
def test_heads_are_asked_for_their_raw_number(
    server: Server, kind: str, path: str, item: dict[str, Any], more: dict[str, Any]
) -> None:
    server.answer = lambda prompt, count: (200, {"object": "list", "data": [item | {"index": 0}]})
    (reply,) = place_of(head(server, head=kind)).classify(["a"])
    assert (reply.value, reply.text, reply.error) == (-1.5, "", None)
    assert server.asked == [(path, {"model": "judge", "input": "a"} | more)]


STEPS = [StepPrompt(tokens=(5, 6, 7, 8), ends=(1, 3)), StepPrompt(tokens=(9, 2), ends=(1,))]


def prm(server: Server, **keys: Any) -> ProcessKeys:
    return ProcessKeys(**{"model": "judge", "url": server.url, "attempts": 1, "format": "math_shepherd"} | keys)


def of_tokens(*numbers: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"index": 0, "object": "pooling", "data": list(numbers)}]}


def test_a_prm_is_asked_for_the_numbers_of_tokens_and_its_steps_have_those_of_their_ends(server: Server) -> None:
    """The good token's come last; of a head, the label that the entry names."""
    numbers = {4: [[9.0, 9.0], [0.0, math.log(3)], [9.0, 9.0], [1.0, 1.0]], 2: [[9.0, 9.0], [math.log(4), 0.0]]}
    server.answer = lambda prompt, count: (200, of_tokens(*numbers[len(json.loads(prompt))]))
    replies = ServerPlace(prm(server)).classify_steps(STEPS)
    assert [reply.steps for reply in replies] == [pytest.approx((0.75, 0.5)), pytest.approx((0.2,))]
    asked = {"model": "judge", "task": "token_classify", "use_activation": False}
    wanted = [("/pooling", asked | {"input": list(prompt.tokens)}) for prompt in STEPS]
    assert sorted(server.asked, key=str) == sorted(wanted, key=str)
    labels = prm(server, format="trl", good_label=0)
    assert ServerPlace(labels).classify_steps(STEPS[1:])[0].steps == pytest.approx((0.8,))
    three = [[0.0] * 3, [math.log(2), 0.0, math.log(5)]]
    server.answer = lambda prompt, count: (200, of_tokens(*three))
    assert ServerPlace(prm(server, format="trl", good_label=2)).classify_steps(STEPS[1:])[0].steps == pytest.approx(
        (5 / 8,)
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (of_tokens([0.0, 1.0]), "the answer has no scores of tokens (ValueError: 1 numbers or lists of them for 2"),
        (of_tokens(0.0, 1.0), "the answer has no scores of tokens (TypeError: a float is not a list)"),
        (
            of_tokens([0.0, 1.0], {"0": 0.1, "1": 0.9}),
            "the answer has no scores of tokens (TypeError: a dict is not a list)",
        ),
        (of_tokens([0.5], [0.5]), "the model gives numbers of shape [1, 1], and label 1 is needed"),
        (of_tokens([0.0, 0.0], [0.0, math.nan]), "the model gives a number that is not finite"),
        (of_tokens([0.0, 0.0], [0.0, None]), "the answer has no scores of tokens (TypeError"),
        ({"data": []}, "the answer has no scores of tokens (ValueError"),
        ({"error": "no"}, "the answer has no scores of tokens (KeyError"),
    ],
)
def test_an_answer_without_numbers_for_every_token_is_an_error(server: Server, answer: Any, reason: str) -> None:
    server.answer = lambda prompt, count: (200, answer)
    (reply,) = ServerPlace(prm(server)).classify_steps(STEPS[1:])
    assert reason in str(reply.error) and reply.steps == ()


def test_a_server_that_gives_no_numbers_for_tokens_is_said_before_the_run(server: Server) -> None:
    server.answer = lambda prompt, count: (200, of_tokens(*[[0.0, 1.0]] * len(json.loads(prompt))))
    assert probe(prm(server)) == f"judge answers at {server.url}"
    server.answer = lambda prompt, count: (400, {"error": "task"})
    with pytest.raises(ValueError, match="does not answer with judge: HTTP status 400"):
        probe(prm(server))


# A grader's: (tokens, ends), and what the server says of each token; of the first it can say nothing.
ROLLOUTS = [StepPrompt(tokens=(5, 6, 7, 8), ends=(1, 3)), StepPrompt(tokens=(9, 2), ends=(0, 1))]


def grader(server: Server, **keys: Any) -> GraderKeys:
    return GraderKeys(**{"model": "judge", "url": server.url, "tokenizer": "t", "attempts": 1} | keys)


def of_prompt(tokens: tuple[int, ...], *log_probs: Any) -> dict[str, Any]:
    given = [None, *({str(token): {"logprob": value}} for token, value in zip(tokens[1:], log_probs, strict=True))]
    return {"choices": [{"text": "x", "finish_reason": "length", "prompt_logprobs": given}]}


def test_a_grader_is_asked_for_the_log_probabilities_of_given_tokens(server: Server) -> None:
    said_of = {4: of_prompt(ROLLOUTS[0].tokens, -9.0, -0.25, -1.5), 2: of_prompt(ROLLOUTS[1].tokens, -0.5)}
    said_of[4]["choices"][0]["prompt_logprobs"][2]["6"] = {"logprob": -0.1}  # a likelier token beside it
    server.answer = lambda prompt, count: (200, said_of[len(json.loads(prompt))])
    replies = ServerPlace(grader(server)).log_probs(ROLLOUTS)
    assert [reply.log_probs for reply in replies] == [(-0.25, -1.5), (-0.5,)]
    asked = {"model": "judge", "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    wanted = [("/v1/completions", asked | {"prompt": list(prompt.tokens)}) for prompt in ROLLOUTS]
    assert sorted(server.asked, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            said("a"),
            "the answer has no log-probabilities of the prompt's tokens (KeyError: 'prompt_logprobs'); vLLM's",
        ),
        (of_prompt((9, 2, 3), -0.5, -0.5), "(ValueError: 3 of 2 tokens)"),
        (of_prompt((9, 3), -0.5), "(KeyError: '2')"),
        (of_prompt((9, 2), None), "(TypeError"),
        (of_prompt((9, 2), math.nan), "a log-probability is not finite"),
        ({"choices": []}, "(ValueError"),
    ],
)
def test_an_answer_without_the_tokens_log_probabilities_is_an_error(server: Server, answer: Any, reason: str) -> None:
    server.answer = lambda prompt, count: (200, answer)
    (reply,) = ServerPlace(grader(server)).log_probs(ROLLOUTS[1:])
    assert reason in str(reply.error) and reply.log_probs == ()


def test_a_grader_that_says_nothing_of_given_tokens_is_said_before_the_run(server: Server, read) -> None:
    recipe = "oger: {grader: model, grade_model: [{model: judge, url: '%s', tokenizer: t, attempts: 1}]}"
    (check,) = [each for each in CHECKS if each.what == "judge servers"]
    for answer, state in ((of_prompt((0, 1), -0.5), OK), (said("Hello."), PROBLEM)):
        server.answer = lambda prompt, count, answer=answer: (200, answer)
        (finding,) = check.find(Job(read(recipe % server.url), Path("run"), cpu=True))
        assert finding.state == state
        assert finding.text.startswith("oger.grade_model: ")
        assert (state == OK) == (finding.text == f"oger.grade_model: judge answers at {server.url}")


def test_a_beginning_that_the_prompt_has_is_not_put_before_it_again(server: Server) -> None:
    prompts = ["<|begin_of_text|>Right?", "Right?", " <s>Right?"]
    ask(judge(server), prompts)
    place_of(head(server)).classify(["<s>Right?"])
    told = {prompt_of(body): body.get("add_special_tokens") for _, body in server.asked}
    assert told == dict.fromkeys(prompts) | {"<|begin_of_text|>Right?": False, "<s>Right?": False}


def test_answers_in_another_order_stay_with_their_prompts(server: Server) -> None:
    """The first half waits for the second half's answers."""
    last = threading.Barrier(6)
    later = threading.Event()

    def answer(prompt: str, count: int) -> Answer:
        if PROMPTS.index(prompt) < 6:
            assert later.wait(60)
        elif last.wait(60) == 0:
            later.set()
        return 200, said(prompt)

    server.answer = answer
    _assert_own(ask(judge(server, concurrency=12)), PROMPTS)


def test_every_reply_is_told_of_also_one_that_failed_and_the_wait_for_the_first(server: Server) -> None:
    server.answer = lambda prompt, count: (400, {}) if prompt == PROMPTS[3] else (200, said(prompt))
    told: list[Any] = []
    ServerPlace(judge(server), told=lambda *facts: told.append(facts)).generate(PROMPTS, Sampling())
    assert told == [("judge", came, len(PROMPTS)) for came in range(len(PROMPTS) + 1)]


def test_as_many_requests_are_under_way_as_were_allowed(server: Server) -> None:
    full = threading.Barrier(3)

    def answer(prompt: str, count: int) -> Answer:
        full.wait(60)
        return 200, said(prompt)

    server.answer = answer
    _assert_own(ask(judge(server, concurrency=3)), PROMPTS)
    assert server.most_under_way == 3


def test_no_more_requests_go_than_a_minute_may_have(server: Server) -> None:
    first, *others = ask(judge(server, requests_per_minute=1.0, step_limit_s=4.0), PROMPTS[:3])
    _assert_own([first], PROMPTS[:1])
    assert [each.error for each in others] == ["no answer within the step's 4 s (step_limit_s)"] * 2
    assert server.prompts == PROMPTS[:1]


# ---- answers that are none

GARBAGE = [
    b"<html>upstream</html>", b"", b"[" * 10_000, b"\xff\xfe", [], None, {}, {"choices": None}, {"choices": []},
    {"choices": said("a")["choices"] * 2}, {"choices": ["text"]}, {"choices": [{"text": 3}]},
    {"choices": [{"text": ["a"]}]}, {"choices": [{"finish_reason": "stop"}]},
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_an_answer_that_is_no_text_is_that_prompts_error(server: Server, garbage: Any) -> None:
    bad = PROMPTS[1]
    server.answer = lambda prompt, count: (200, garbage if prompt == bad else said(prompt))
    replies = ask(judge(server))
    error = replies[1].error
    assert error and error.startswith("the answer ") and replies[1].text == ""
    _assert_own(replies[:1] + replies[2:], PROMPTS[:1] + PROMPTS[2:])
    assert len(server.asked) == 12, "what is no answer is not asked for again"


@pytest.mark.parametrize(
    "items",
    [
        [], [{"index": 0, "probs": [0.5]}] * 2, [{"index": 0, "probs": [0.5]}, {"index": 1, "probs": [0.5]}],
        [{"index": 1, "probs": [0.5]}], [{"probs": [0.5]}], [{"index": 0, "probs": []}], [{"index": 0}],
        [{"index": 0, "probs": [0.5, 0.5]}], [{"index": 0, "probs": [float("nan")]}], [{"index": 0, "probs": "0.5"}],
        [{"index": 0, "probs": [None]}], ["x"], [{"index": 0, "probs": 0.5}],
    ],
    ids=range(13),
)  # fmt: skip
def test_a_head_that_gives_too_few_too_many_or_another_inputs_numbers_gives_none(
    server: Server, items: list[Any]
) -> None:
    right = [{"index": 0, "probs": [0.25]}]
    server.answer = lambda prompt, count: (200, {"data": items if prompt == "bad" else right})
    good, bad, other = place_of(head(server)).classify(["a", "bad", "b"])
    assert bad.error and bad.error.startswith("the answer ") and bad.value != bad.value
    assert [(each.value, each.error) for each in (good, other)] == [(0.25, None)] * 2


def test_a_prompt_that_is_refused_costs_no_other(server: Server) -> None:
    refused = {"error": {"message": "maximum context length is 512 tokens", "code": 400}}
    server.answer = lambda prompt, count: (400, refused) if prompt == PROMPTS[0] else (200, said(prompt))
    first, *others = ask(judge(server, concurrency=1))
    assert first.error and first.error.startswith("HTTP status 400: ") and "512 tokens" in first.error
    _assert_own(others, PROMPTS[1:])
    assert len(server.asked) == 12


def test_a_text_that_no_encoding_takes_is_a_prompt_like_others(server: Server) -> None:
    _assert_own(ask(judge(server), ["\ud800 \x00", "b"]), ["\ud800 \x00", "b"])


# ---- trouble that passes


@pytest.mark.parametrize("status", [429, 500, 502, 503, None])
def test_what_passes_is_asked_again(server: Server, status: int | None) -> None:
    trouble = None if status is None else (status, {"error": "not now"})
    server.answer = lambda prompt, count: trouble if count < 3 else (200, said(prompt))
    _assert_own(ask(judge(server)), PROMPTS)
    assert len(server.asked) == 36


def test_a_server_that_says_when_to_come_again_is_believed(server: Server) -> None:
    opened: list[float] = []

    def answer(prompt: str, count: int) -> Answer:
        opened.append(time.monotonic() + 1.0)
        return (200, said(prompt)) if time.monotonic() >= opened[0] else (429, {})

    server.answer, server.more_headers = answer, {"Retry-After": "1"}
    _assert_own(ask(judge(server, attempts=2), ["a"]), ["a"])
    assert server.prompts == ["a", "a"]


@pytest.mark.parametrize("tomorrow", ["86400", email.utils.formatdate(time.time() + 90_000, usegmt=True)])
def test_a_server_that_says_to_come_tomorrow_is_not_waited_for(server: Server, tomorrow: str) -> None:
    server.answer, server.more_headers = lambda prompt, count: (503, {}), {"Retry-After": tomorrow}
    (reply,) = ask(judge(server), ["a"])
    assert reply.error and re.fullmatch(r"HTTP status 503: {} \(it asks to retry after \d{5} s\)", reply.error)
    assert server.prompts == ["a"]


def test_a_request_that_breaks_the_server_is_known_by_that_also_where_it_says_to_come_tomorrow(server: Server) -> None:
    server.answer, server.more_headers = lambda prompt, count: (500, {}), {"Retry-After": "86400"}
    endpoint = Endpoint(server.url, "", attempts=2, limit_s=HANG_S, first_pause_s=0.0)

    async def post() -> None:
        async with endpoint.client(1) as client:
            await endpoint.post(client, "/completions", {"prompt": "a"})

    with pytest.raises(Failed, match="it asks to retry after 86400 s") as failed:
        asyncio.run(post())
    assert failed.value.lasts and failed.value.is_stuck


@pytest.mark.parametrize("when", ["soon", "inf", "-5", "²", "0", "Wed, 21 Oct 2015 07:28:00 GMT", ""])
def test_a_time_that_is_none_or_past_is_not_waited_for_either(server: Server, when: str) -> None:
    server.answer = lambda prompt, count: (429, {}) if count == 1 else (200, said(prompt))
    server.more_headers = {"Retry-After": when}
    _assert_own(ask(judge(server), ["a"]), ["a"])


def test_a_server_that_starts_again_in_the_middle_of_a_step_costs_nothing(server: Server) -> None:
    """It stops listening at its fifth request, which it does not answer, and those under way break."""
    ended = threading.Event()

    def answer(prompt: str, count: int) -> Answer:
        if len(server.asked) < 5:
            return 200, said(prompt)
        if len(server.asked) == 5:
            server.shutdown()
            server.socket.close()
            ended.set()
        return None

    server.answer = answer
    second: list[Server] = []

    def start_again() -> None:
        assert ended.wait(60)
        second.append(Server(server.server_port))

    threading.Thread(target=start_again).start()
    replies = ServerPlace(judge(server, attempts=8, concurrency=2), first_pause_s=0.05).generate(PROMPTS, Sampling())
    _assert_own(replies, PROMPTS)
    assert len(second[0].asked) >= 8
    second[0].end()


# ---- trouble that stays


def test_a_server_that_is_not_there_costs_a_step_one_requests_attempts(server: Server) -> None:
    place = place_of(judge(server))
    server.end()
    (first,) = place.generate(["a"], Sampling())
    assert first.error == "ConnectError: All connection attempts failed (after 3 attempts)"
    back = Server(server.server_port)
    assert {each.error for each in place.generate(PROMPTS, Sampling())} == {first.error}, "of the same step"
    assert back.asked == []
    place.open()
    _assert_own(place.generate(PROMPTS, Sampling()), PROMPTS)
    back.end()


def test_a_server_that_never_answers_costs_a_step_a_few_requests(server: Server) -> None:
    over = threading.Event()

    def answer(prompt: str, count: int) -> Answer:
        over.wait(60)
        return None

    server.answer = answer
    replies = ask(judge(server, request_limit_s=0.1, attempts=2, concurrency=2))
    over.set()
    assert {each.error for each in replies} == {"no answer within 0.1 s (after 2 attempts)"}
    assert 3 <= len(set(server.prompts)) <= 4, "three in a row, and one that was under way"


def test_a_slow_answer_fails_alone(server: Server) -> None:
    over = threading.Event()

    def answer(prompt: str, count: int) -> Answer:
        if prompt == PROMPTS[0]:
            over.wait(60)
        return 200, said(prompt)

    server.answer = answer
    first, *others = ask(judge(server, request_limit_s=5.0, attempts=1))
    over.set()
    assert first.error == "no answer within 5 s"
    _assert_own(others, PROMPTS[1:])


def test_a_server_that_drips_is_as_slow_as_one_that_is_silent(server: Server) -> None:
    class Dripping(Handler):
        def _send(self, answer: Answer) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b" ")
                time.sleep(0.02)

    server.RequestHandlerClass = Dripping
    (reply,) = ask(judge(server, request_limit_s=0.2, attempts=1), ["a"])
    assert reply.error == "no answer within 0.2 s"


def test_prompts_that_break_the_server_each_time_do_not_end_the_step(server: Server) -> None:
    """Never three in a row."""
    bad = [*PROMPTS[2:4], *PROMPTS[5:7]]
    server.answer = lambda prompt, count: (500, {}) if prompt in bad else (200, said(prompt))
    replies = dict(zip(PROMPTS, ask(judge(server, concurrency=1)), strict=True))
    assert [replies.pop(each).error for each in bad] == ["HTTP status 500: {} (after 3 attempts)"] * 4
    _assert_own(list(replies.values()), list(replies))


def test_a_server_that_breaks_with_every_prompt_is_asked_three(server: Server) -> None:
    server.answer = lambda prompt, count: (500, {})
    replies = ask(judge(server, concurrency=1))
    assert [each.error for each in replies] == ["HTTP status 500: {} (after 3 attempts)"] * 12
    assert len(server.asked) == 9


def test_a_step_ends_in_time(server: Server) -> None:
    over = threading.Event()

    def answer(prompt: str, count: int) -> Answer:
        if prompt != PROMPTS[0]:
            over.wait(60)
        return 200, said(prompt)

    server.answer = answer
    first, *others = ask(judge(server, concurrency=1, step_limit_s=4.0))
    over.set()
    _assert_own([first], PROMPTS[:1])
    assert {each.error for each in others} == {"no answer within the step's 4 s (step_limit_s)"}
    assert len(server.asked) == 2


# ---- the key


def test_a_key_is_sent_and_in_no_error_log_or_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_JUDGE_KEY", f"{KEY}\n")
    keys = judge(server, api_key_env="MY_JUDGE_KEY")
    place = place_of(keys)
    server.answer = lambda prompt, count: (
        (200, said(prompt)) if prompt == "good" else (401, {"error": f"wrong key {KEY}"})
    )
    replies = Cached(place, keys, VerdictCache(tmp_path)).generate(["good", "bad"], Sampling())
    assert replies[0].text == "of good"
    assert replies[1].error == 'HTTP status 401: {"error": "wrong key ***"}'
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert sorted(server.prompts) == ["bad", "good"], "a key that is refused is not offered again"
    with pytest.raises(ValueError, match="HTTP status 401") as refused:
        probe(keys)
    seen = f"{replies} {refused.value} {place._endpoint!r} {keys} {caplog.text}"
    assert KEY not in seen
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_key_that_json_writes_otherwise_is_not_shown_either(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OGER_JUDGE_API_KEY", 'a"b\\c')
    server.answer = lambda prompt, count: (403, {"error": 'a"b\\c'})
    (reply,) = ask(judge(server), ["a"])
    assert reply.error == 'HTTP status 403: {"error": "***"}'


def test_a_key_that_fits_into_no_header_is_refused_and_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OGER_JUDGE_API_KEY", f"{KEY}\nX: y")
    with pytest.raises(RecipeError, match=r"\$OGER_JUDGE_API_KEY has characters that an HTTP") as refused:
        ServerPlace(judge(server))
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"url": f"http://user:{KEY}@host/v1"},
            "url: the address of host must end with its path; put an API key into ",
        ),
        (
            {"url": f"http://host/v1?key={KEY}"},
            "url: the address of host must end with its path; put an API key into ",
        ),
        ({"url": "host:8000/v1"}, "url: 'host:8000/v1' is not the http"),
        ({"url": "http://host/v1", "api_key_env": KEY}, "api_key_env must be the name of an environment variable"),
        ({"url": "http://host/v1", "place": "engine"}, "place engine has no url"),
        ({"place": "server"}, "place server needs a url"),
        ({"concurrency": 3}, "concurrency is for a server: give a url, or leave it out"),
        ({"url": "http://host/v1", "tensor_parallel_size": 4}, "the server decides tensor_parallel_size"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_asked(entry: dict[str, Any], problem: str) -> None:
    (said,) = JudgeKeys.problems({"model": "judge", "plugin": "binary"} | entry)
    assert said.startswith(problem) and KEY not in said


# ---- before a run


def test_a_server_is_looked_for_before_a_run(server: Server) -> None:
    assert probe(judge(server)) == f"judge answers at {server.url}"
    assert server.asked[0][1]["max_tokens"] == 1
    server.models = (404, {})  # it does not list them
    assert probe(judge(server)) == f"judge answers at {server.url}"
    server.answer = lambda prompt, count: (200, {"data": [{"index": 0, "probs": [0.5]}]})
    assert probe(head(server)) == f"judge answers at {server.url}"
    assert server.asked[-1][0] == "/classify"


def test_what_is_wrong_with_a_server_is_said_in_a_sentence(server: Server) -> None:
    with pytest.raises(ValueError) as refused:
        probe(judge(server, model="judge-32b"))
    assert str(refused.value) == f"{server.url} has no model judge-32b; it has judge, other"
    server.answer = lambda prompt, count: (404, {"detail": "Not Found"})
    with pytest.raises(ValueError) as refused:
        probe(judge(server))
    assert str(refused.value) == (
        f'{server.url} does not answer with judge: HTTP status 404: {{"detail": "Not Found"}}'
    )
    with pytest.raises(ValueError) as refused:
        probe(judge(NOBODY))
    assert str(refused.value).startswith(f"{NOBODY} does not answer: ConnectError: ")


def _critics_problems(**entry: Any) -> list[str]:
    return list(CritiqueKeys.problems({"model": "head", "critic": "critic"} | entry))


def test_a_critics_address_is_an_address_too() -> None:
    (said,) = _critics_problems(critic_url=f"http://host/v1?key={KEY}")
    assert said.startswith("critic_url: the address of host must end with its path") and KEY not in said
    assert _critics_problems(critic_url="http://host/v1", concurrency=3) == []


def test_all_servers_of_a_recipe_are_looked_for(server: Server, read: Callable[..., dict[str, Any]]) -> None:
    """By the run, its dry run and `oger doctor`, in the same sentences."""
    recipe = """
oger: {reward: {sources: [
  {name: rule, kind: verifier},
  {name: good, kind: judge, url: "%s", model: judge, api: completions, plugin: binary},
  {name: both, kind: critique_classifier, url: "%s", model: judge, critic: critic},
  {name: gone, kind: classifier, url: "%s", model: judge}]}}
"""
    value = read(recipe % (server.url, server.url, NOBODY))
    server.answer = lambda prompt, count: (200, said(prompt) | {"data": [{"index": 0, "probs": [0.5]}]})
    job = Job(value, Path("run"), cpu=True)
    (check,) = [each for each in CHECKS if each.what == "judge servers"]
    good, critic, head, gone = check.find(job)
    assert (good.state, good.text) == (OK, f"good: judge answers at {server.url}")
    assert critic.state == PROBLEM and critic.text == (
        f"oger.reward.sources, both: {server.url} has no model critic; it has judge, other; "
        "start it (`oger serve-judge` starts one), or correct url and model"
    )
    assert (head.state, head.text) == (OK, f"both: judge answers at {server.url}")
    assert gone.state == PROBLEM and gone.text.startswith(f"oger.reward.sources, gone: {NOBODY} does not answer: ")


def test_a_server_that_says_how_much_its_model_reads_is_held_against_the_answers(server, read) -> None:
    server.models = (200, {"data": [{"id": "judge", "max_model_len": 2048}, {"id": "other", "max_model_len": 9}]})
    recipe = """
data: {max_len: 1000}
oger: {reward: {sources: [
  {name: good, kind: judge, url: "%s", model: judge, plugin: binary, api: chat, max_new_tokens: %d}]}}
"""
    (check,) = [each for each in CHECKS if each.what == "judges' windows"]
    assert not [*check.find(Job(read(recipe % (server.url, 900)), Path("run"), cpu=True))]
    (finding,) = check.find(Job(read(recipe % (server.url, 1000)), Path("run"), cpu=True))
    assert "judge reads 2,048 tokens in all: prompt and response may have 1,000" in finding.text


# ---- who is to blame for a request without an answer

WINDOWS = {  # as servers say it
    "vLLM": "This model's maximum context length is 64 tokens. However, you requested 70 tokens",
    "vLLM's chat": "Input length (70) exceeds model's maximum context length (64).",
    "vLLM's pooling": "The decoder prompt (length 70) is longer than the maximum model length of 64.",
    "SGLang": "The input (70 tokens) is longer than the model's context length (64 tokens).",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 64.",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "OpenAI": "context_length_exceeded",
}
REFUSED = (400, {"message": "content_filter"})


@pytest.mark.parametrize("text", WINDOWS.values(), ids=WINDOWS)
def test_a_prompt_that_is_too_long_is_told_from_one_that_is_refused(server, text) -> None:
    replies = {"long": (400, {"message": text}), "large": (413, b"too large"), "bad": REFUSED}
    server.answer = lambda prompt, count: replies.get(prompt, (200, said(prompt)))
    found = ask(judge(server), ["long", "fine", "bad", "large"])
    assert [reply.cause for reply in found] == [OVERFLOW, None, ANSWER, OVERFLOW]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((500, b"KeyError"), ANSWER),
        ((403, b"blocked by a filter"), ANSWER),
        ((200, {"choices": []}), ANSWER),
        ((200, b"no JSON"), ANSWER),
        ((422, {}), ANSWER),
        ((503, b"overloaded"), None),
        ((429, b"too many"), None),
        ((401, b"no key"), None),
        ((404, b"no model"), None),
        (None, None),  # the connection ends
    ],
)
def test_a_request_is_to_blame_only_where_the_server_answers_others(server, answer, cause) -> None:
    server.answer = lambda prompt, count: answer if prompt == "odd" else (200, said(prompt))
    fine, odd = ask(judge(server, attempts=1), ["fine", "odd"])
    assert fine.error is None and odd.error is not None and odd.cause == cause
    (alone,) = ask(judge(server, attempts=1), ["odd"])
    assert alone.cause == (ANSWER if cause and answer[0] == 422 else None)  # refused is refused
