"""From what the engine sampled to its reward, with tokenizers that do not give the prompt's text back."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oger_recipe.grading.pool import GradingPool, GradingSettings
from oger_recipe.grading.verdict import Graded, Verdict
from oger_recipe.pipeline.controller.answers import evaluate_samples
from oger_recipe.pipeline.controller.samples_generator import OgerSamplesGenerator
from oger_recipe.pipeline.engine.executor import OgerExecutor
from oger_recipe.rewards import reward_func

QUESTION = "Is it 42? </s>"


class Tokenizer:
    """One token a character. Decoding puts a begin-of-sequence in front, and loses the special token ``</s>``."""

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(character) for character in text]])}

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "<s>" + "".join(map(chr, tokens)).replace("</s>", "")

    def batch_decode(self, texts: list[torch.Tensor], **_: Any) -> list[str]:
        return [self.decode(text.tolist()).removeprefix("<s>") for text in texts]


class Engine:
    def __init__(self, response: str) -> None:
        self.response = response

    async def generate(self, tokens: list[int], params: Any, **_: Any) -> Any:
        ids = [ord(character) for character in self.response]
        output = SimpleNamespace(token_ids=ids, logprobs=None, finish_reason="stop", text=self.response)
        return SimpleNamespace(outputs=[output])


def _executed(response: str, grader: str = reward_func.__file__, **label: Any) -> dict[str, Any]:
    label = {"uid": "u", "answer": "42", "task": "gsm8k"} | label
    executor = OgerExecutor(str(grader))
    params = SimpleNamespace(max_tokens=50, logprobs=None)
    arguments = {"max_length": 100, "hf_tokenizer": Tokenizer(), "llm_engine": Engine(response), "images": None}
    return asyncio.run(executor.execute(prompt=QUESTION, label=json.dumps(label), sampling_params=params, **arguments))


def test_the_answer_in_the_question_is_not_the_policys() -> None:
    assert _executed("I do not know")["reward"] == 0.0
    found = _executed("I do not know")
    assert (found["scores"], found["extra_logs"]["reward_error"]) == (0.0, 0.0)
    assert _executed("42")["reward"] == 1.0


def test_the_verdict_stays_with_the_response_and_only_numbers_go_to_openrlhf() -> None:
    found = _executed("so 41")
    verdict = Verdict(0.0, 0.0, "41, not 42", {"format": 1.0, "correct": 0.0}, "41")
    assert replace(found["graded"], seconds=0.0) == Graded(verdict)
    assert found["extra_logs"] == {"reward_format": 1.0, "reward_error": 0.0, "reward_timeout": 0.0}
    assert found["observation_tokens"] == [ord(character) for character in QUESTION + "so 41"]


@pytest.mark.parametrize(
    ("returned", "scores", "graded"),
    [
        ("'rewards': 0.25, 'scores': 1.0", 1.0, Graded(Verdict(0.25, 1.0, ""))),
        ("'rewards': 0.25", 0.25, Graded(Verdict(0.25, 1.0, ""))),  # right, as solve rates count it
        ("'rewards': -1.0", -1.0, Graded(Verdict(-1.0, 0.0, ""))),
        (
            "'rewards': 1.0, 'scores': 0.0, 'extra_logs': {'length': 7, 'style': [0.5]}",
            0.0,
            Graded(Verdict(1.0, 0.0, "", {"length": 7.0, "style": 0.5})),
        ),
        (
            "'rewards': 0.0, 'extra_logs': {'reward_error': 1}",
            0.0,
            Graded(
                Verdict(0.0, 0.0, "", {"reward_error": 1.0}), "the reward function says that it failed (reward_error)"
            ),
        ),
    ],
)
def test_a_users_own_reward_function_keeps_its_say_and_its_numbers_are_components(
    tmp_path: Path, returned: str, scores: float, graded: Graded
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"def reward_func(queries, prompts, labels):\n    return {{{returned}}}\n")
    found = _executed("x", own)
    assert (found["reward"], found["scores"], found["graded"]) == (graded.verdict.reward, scores, graded)
    assert found["extra_logs"].keys() == {"reward_error"} | graded.verdict.components.keys()


@pytest.mark.parametrize("cut", [[], ["\nUser:"]])
def test_a_stop_text_is_sampled_and_not_graded(cut: list[str]) -> None:
    found = _executed("42\nUser: 7", cut=cut)
    assert found["reward"] == float(bool(cut))


@pytest.mark.parametrize(
    ("returned", "reward", "error"),
    [
        ("1.0", 1.0, 0.0),
        ("[0.5]", 0.5, 0.0),
        ("torch.tensor([0.5])", 0.5, 0.0),
        ("float('nan')", 0.0, 1.0),
        ("1e300", 0.0, 1.0),
        ("-1e20", 0.0, 1.0),
        ("1e12", 1e12, 0.0),
        ("torch.tensor(float('inf'))", 0.0, 1.0),
        ("[1.0, 2.0]", 0.0, 1.0),
        ("None", 0.0, 1.0),
        ("'right'", 0.0, 1.0),
    ],  # fmt: skip
)
def test_what_is_no_finite_number_is_a_failed_grade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str, reward: float, error: float
) -> None:
    """Of a function of the user's own; a verifier's is refused where it is graded."""
    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path))
    grader = tmp_path / "own.py"
    grader.write_text(
        f"import torch\ndef reward_func(queries, prompts, labels):\n    return {{'rewards': {returned}}}\n"
    )
    response = _executed("whatever", grader)
    assert (response["reward"], response["scores"]) == (reward, reward)
    assert response["extra_logs"]["reward_error"] == error
    recorded = tmp_path / "reward_errors.jsonl"
    assert recorded.exists() is bool(error)
    assert (response["graded"].error is not None) is bool(error) and response["graded"].verdict.reward == reward
    if error:
        entry = json.loads(recorded.read_text())
        assert entry["uid"] == "u" and entry["error"].startswith("no reward: ")


class Graders(http.server.BaseHTTPRequestHandler):
    """A reward server that asks for a token."""

    answer: dict[str, Any]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        right = self.path == "/get_reward?token=secret"
        self.send_response(200 if right else 403)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if right:
            self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_: Any) -> None: ...


VERDICT = Verdict(0.5, 1.0, "why", {"format": 1.0}, "7", (0.5,))


@pytest.mark.parametrize(
    ("more", "graded"),
    [
        ({}, Graded(Verdict(0.5, 1.0, "", {"length": 3.0}))),
        ({"graded": [asdict(Graded(VERDICT))]}, Graded(VERDICT)),  # as `oger serve-reward` answers
        ({"graded": ["A+"]}, Graded(Verdict(0.5, 1.0, "", {"length": 3.0}))),
    ],
)
def test_a_reward_server_has_its_say_whole_and_its_token_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], graded: Graded
) -> None:
    monkeypatch.setenv("OGER_REWARD_TOKEN", "secret")
    answer = {"rewards": [0.5], "scores": [1.0], "extra_logs": {"length": 3}} | more
    monkeypatch.setattr(Graders, "answer", answer, raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Graders) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = _executed("x", grader=f"http://127.0.0.1:{server.server_port}/get_reward?token=$OGER_REWARD_TOKEN")
        server.shutdown()
    assert (found["reward"], found["scores"], found["graded"]) == (0.5, 1.0, graded)
    assert found["extra_logs"] == {"reward_error": 0.0, "length": 3}


COUNTING = """
from pathlib import Path

def _count():
    with Path(__file__).with_name("calls").open("a") as file: file.write("x")

def verify(response, answer):
    _count()
    return {"reward": 1.0, "extracted": "seven", "style": 0.5}

def reward_func(queries, prompts, labels):
    _count()
    return {"rewards": 1.0, "extra_logs": {"style": 0.5}}
"""


@pytest.mark.parametrize("who", ["a verifier", "a reward function"])
def test_an_evaluated_answer_is_graded_once_whoever_grades_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: Callable[..., Any], who: str
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    if who == "a verifier":
        settings = GradingSettings(allowed=("counting:verify",))
        monkeypatch.setattr("oger_recipe.grading.pool._shared", GradingPool(settings))
        response = _executed("7", task="counting:verify")
    else:
        response = _executed("7", grader=tmp_path / "counting.py")
    generator = OgerSamplesGenerator(SimpleNamespace(args=nested()), [], [], Tokenizer(), [])
    sample = generator._process_response_into_experience(response | {"place": 0}, max_len=100)
    problems = [(["bench"], [QUESTION], [response["label"]], [None])]
    found = evaluate_samples([sample], problems, Tokenizer())
    (record,) = found.records
    assert found.metrics == {"avg_at_1": 1.0, "n_problems": 1}  # pass@1 is the same number, and nobody votes
    assert (tmp_path / "calls").read_text() == "x"
    assert (record["text"], record["score"], record["graded"]) == ("7", 1.0, True)
    assert record["components"] == {"style": 0.5}
    assert record["extracted"] == ("seven" if who == "a verifier" else None)
