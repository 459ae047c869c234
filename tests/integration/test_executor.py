"""From what the engine sampled to its reward, with tokenizers that do not give the prompt's text back."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oger_recipe.plugin.engine.executor import OgerExecutor
from oger_recipe.rewards import reward_func

QUESTION = "Is it 42? </s>"


class Tokenizer:
    """One token a character. Decoding puts a begin-of-sequence in front, and loses the special token ``</s>``."""

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(character) for character in text]])}

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "<s>" + "".join(map(chr, tokens)).replace("</s>", "")


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
    assert found["verdict"] == {
        "score": 0.0, "reward": 0.0, "format": 1.0, "extracted": "41", "reason": "41, not 42", "graded": True,
    }  # fmt: skip
    assert found["extra_logs"] == {"reward_format": 1.0, "reward_error": 0.0, "reward_timeout": 0.0}
    assert found["observation_tokens"] == [ord(character) for character in QUESTION + "so 41"]


def test_a_users_own_reward_function_keeps_its_say(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': 0.25, 'scores': 1.0}\n")
    executor = OgerExecutor(str(own))
    arguments = {"max_length": 100, "hf_tokenizer": Tokenizer(), "llm_engine": Engine("x"), "images": None}
    params = SimpleNamespace(max_tokens=50, logprobs=None)
    found = asyncio.run(executor.execute(prompt="p", label="{}", sampling_params=params, **arguments))
    assert (found["reward"], found["scores"], found["verdict"]) == (0.25, 1.0, None)


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
    if error:
        entry = json.loads(recorded.read_text())
        assert entry["uid"] == "u" and entry["error"].startswith("no reward: ")


class Graders(http.server.BaseHTTPRequestHandler):
    """A reward server that asks for a token."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        right = self.path == "/get_reward?token=secret"
        self.send_response(200 if right else 403)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if right:
            self.wfile.write(json.dumps({"rewards": [0.5], "scores": [1.0], "extra_logs": {}}).encode())

    def log_message(self, *_: Any) -> None: ...


def test_the_token_of_a_reward_server_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OGER_REWARD_TOKEN", "secret")
    with http.server.HTTPServer(("127.0.0.1", 0), Graders) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = _executed("x", grader=f"http://127.0.0.1:{server.server_port}/get_reward?token=$OGER_REWARD_TOKEN")
        server.shutdown()
    assert (found["reward"], found["scores"]) == (0.5, 1.0)
