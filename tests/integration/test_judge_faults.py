"""What a judge's server does wrong costs its own rows what oger.reward.on_error says: composer, plugin and place."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from judge_servers import Answer, Server

from oger_recipe.rewards.compose import Rewards, Surroundings, make_source, rewards_of, sources_of
from oger_recipe.rewards.sources import Group
from oger_recipe.rewards.verdict import Graded, Verdict
from oger_recipe.rewards.verifiers import look_in
from oger_recipe.settings.oger import OgerSettings

PLUGIN = """
def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    return [f"{prompt}|{response}" for prompt, response in zip(text_prompts, text_responses)]

def rm_postprocess(results):
    return [float(result) for result in results]
"""
# What the server does with each response; the judge's verdict is the number in it.
RESPONSES = [["says 0.25", "breaks 0.5", "says 0.75"], ["says 0.125", "says 0.5", "says 1"], ["hangs 0.5"] * 3]
RESPONSES[2][1:] = ["garbles 0.5", "says 0.5"]
FAILED = {
    1: "HTTP status 500: {}",
    6: "no answer within 0.5 s",
    7: "the answer is not one text (KeyError: 'choices')",
}


def _group(uid: str, responses: list[str]) -> Group:
    size = len(responses)
    return Group(
        uid=uid, prompt=f"<user>{uid}", question=uid, task="math", answer="2", row={}, teachers=[],
        responses=responses, graded=[Graded(Verdict(1.0, 1.0, ""))] * size, is_teacher=[False] * size,
        truncated=[False] * size, may_earn=[True] * size, similarity=[0.0] * size, entropy=[0.0] * size,
    )  # fmt: skip


@pytest.fixture()
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("OGER_JUDGE_API_KEY", raising=False)
    server, over = Server(), threading.Event()

    def answer(prompt: str, count: int) -> Answer:
        verb, number = prompt.partition("|")[2].split()
        if verb == "hangs":
            over.wait(20)
        message = {"message": {"content": number}, "finish_reason": "stop"}
        wrong: dict[str, Answer] = {"breaks": (500, {}), "garbles": (200, {})}
        return wrong.get(verb, (200, {"choices": [message]}))

    server.answer = answer
    yield server
    over.set()
    server.end()


@pytest.fixture()
def compose(server: Server, tmp_path: Path, parser: argparse.ArgumentParser) -> Iterator[Callable[[str], Rewards]]:
    """The rewards of the groups: the rule's 1, and the judge's verdict with a weight of 2."""
    (tmp_path / "verdicts.py").write_text(PLUGIN)
    look_in([str(tmp_path)])
    keys = {"model": "judge", "url": server.url, "api": "chat", "attempts": 1, "request_limit_s": 0.5}
    judge = {"name": "judged", "kind": "judge", "plugin": "verdicts.py", "weight": 2.0, **keys}
    flags = ["--oger.reward.sources", json.dumps([{"name": "rule", "kind": "verifier"}, judge])]
    flags += ["--oger.reward.cache", str(tmp_path / "kept")]
    settings = OgerSettings.of(vars(parser.parse_args(flags)))
    surroundings = Surroundings.of(settings, lambda keys: pytest.fail("no engine"), seed=7)
    groups = [_group(f"p{number}", responses) for number, responses in enumerate(RESPONSES)]
    specs = sources_of(settings.reward.sources)

    def rewards(on_error: str) -> Rewards:
        return rewards_of(groups, [make_source(each, surroundings) for each in specs], specs, on_error=on_error)

    yield rewards
    look_in([])


def test_a_row_that_got_no_verdict_is_counted_and_costs_no_other(
    compose: Callable[[str], Rewards], server: Server
) -> None:
    right = [[1.5, 1.0, 2.5], [1.25, 2.0, 3.0], [1.0, 1.0, 2.0]]  # 1 + 2 * verdict, and the rule alone
    for on_error, dropped in {"zero": [], "neutral": [], "drop_group": [0, 2], "stop": []}.items():
        rewards = compose(on_error)
        torch.testing.assert_close(rewards.total, torch.tensor(right))
        assert rewards.errors["judged"] == FAILED and rewards.errors["rule"] == {}
        assert rewards.dropped.nonzero().flatten().tolist() == dropped
        assert rewards.said["judged"].flatten().isnan().nonzero().flatten().tolist() == list(FAILED)
    asked = server.prompts  # the same step again, as a resumed run has it, asks about what failed alone
    assert {prompt: asked.count(prompt) for prompt in asked if not asked.count(prompt) == 1} == {
        "p0|breaks 0.5": 4, "p2|hangs 0.5": 4, "p2|garbles 0.5": 4
    }  # fmt: skip


def test_a_server_that_is_gone_costs_all_its_rows_and_the_next_step_asks_again(
    compose: Callable[[str], Rewards], server: Server
) -> None:
    server.end()
    gone = compose("zero")
    assert gone.total.tolist() == [[1.0] * 3] * 3 and len(gone.errors["judged"]) == 9
    assert {why.partition(":")[0] for why in gone.errors["judged"].values()} == {"ConnectError"}
    back = Server(server.server_port)
    back.answer = server.answer
    assert compose("zero").errors["judged"] == FAILED
    back.end()
