"""The tutorials, typed as they stand: each file written, each command run, each line of output compared.

A block follows the name of a file (```name`:``), which it is, or has commands (bash), or shows lines of what the
commands before it print (text), `...` for what differs. The word behind bash says when its commands are typed: `full`
with the tests that are marked so, `network` never, because they need a hub or a GPU.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Forks
from hang import HANG_S
from judge_server import Server
from runs import ROOT, caches_in

from oger_recipe.lab import tiny_policy

PAGES = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^(?:`([^`\n]+)`:\n\n)?```(\w+)(?: (\w+))?\n(.*?)^```$", re.M | re.S)
TYPED = {"": True, "full": False, "network": False, "later": False}
TAKE_CACHES = ("train", "eval", "score", "judge_eval")
TO_TERMINALS = ("runs", "show")  # they set up their output, which a fork's does not take
Walk = Callable[..., None]


@pytest.fixture()
def walk(tmp_path: Path, cache: Path, forks: Forks) -> Walk:
    """Types a page in a folder of its own."""

    def typed(command: str) -> subprocess.CompletedProcess[str]:
        words, how = shlex.split(command, comments=True), {"cwd": tmp_path, "text": True, "timeout": HANG_S}
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        if words[0] != "oger" or words[1] in TO_TERMINALS:
            words = [str(ROOT / words[0]), *words[1:], *caches_in(cache)] if words[0].startswith("scripts/") else words
            return subprocess.run(words, **how, env=environment, capture_output=True)
        module = words[1].replace("-", "_")
        caches = caches_in(cache) if module in TAKE_CACHES else []
        return forks.run("-m", f"oger_recipe.cli.{module}", *words[2:], *caches, **how, env=environment)

    def printed_by(block: str) -> str:
        done = [typed(command) for command in commands(block)]
        wrong = next((each for each in done if each.returncode), None)
        assert wrong is None, (block, wrong.stdout[-3000:], wrong.stderr[-3000:])
        return "".join(each.stdout for each in done)

    def walk(page: str, *, full: bool) -> None:
        printed = ""
        for file, language, when, block in BLOCK.findall(page):
            assert when in TYPED, when
            if file:
                (tmp_path / file).write_text(block)
            elif language == "bash":
                printed = printed_by(block) if TYPED[when] or (when == "full" and full) else ""
            elif language == "text" and printed:
                missing = [line for line in block.splitlines() if not shown(line).search(printed)]
                assert not missing, printed

    return walk


def commands(block: str) -> Iterator[str]:
    """Yield the commands of a block: a line each, or more where it ends in a backslash or a quote is open."""
    command = ""
    for line in block.replace("\\\n", "").splitlines(keepends=True):
        command += line
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # a quote is open
            continue
        if words:
            yield command
        command = ""
    assert not command, command


def shown(line: str) -> re.Pattern[str]:
    """Turn a line of a page into a pattern of what is printed: any spaces are some, and `...` is anything."""
    parts = (r"\s+".join(map(re.escape, part.split())) for part in line.split("..."))
    return re.compile(r"[^\n]*".join(parts))


@pytest.fixture()
def model(tmp_path: Path) -> Path:
    """A folder `model` with an untrained policy that has a chat template."""
    tokenizer = tiny_policy.build_tokenizer(f"{n} + {n} = {2 * n}. So the answer is {2 * n}" for n in range(100))
    tokenizer.save_pretrained(tmp_path / "model")
    tiny_policy.build_model(tokenizer, hidden_size=64, num_layers=2).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture()
def judge() -> Iterator[Server]:
    """Knows the three sorts of criteria of the page, the first as a judge that is too kind."""
    server = Server()
    signs = {"Shows": r"[/=]", "Says": r"hours|grams", "Uses": r"\b[a-z] ="}

    def judged(prompt: str, count: int) -> tuple[int, Any]:
        answer = "".join(re.findall(r">\n(.*)\n</answer-", prompt))  # none where the dry run asks whether it answers
        criteria = re.findall(r"^(\d+)\. (\w+)", prompt.rpartition("The criteria:")[2], re.M)
        lines = [f"Criterion {number}: {int(bool(re.search(signs[word], answer)))}" for number, word in criteria]
        return 200, {"choices": [{"message": {"content": "\n".join(lines)}, "finish_reason": "stop"}]}

    server.answer = judged
    yield server
    server.end()


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.full)], ids=["", "full"])
@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_says(walk: Walk, model: Path, judge: Server, page: Path, full: bool) -> None:
    walk(page.read_text().replace("http://127.0.0.1:8000/v1", judge.url), full=full)
