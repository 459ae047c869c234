"""Judges' plugins in their own processes: what they can import, and what their mistakes cost. No model is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hang import HANG_S

from oger_recipe.models.plugin import Plugin
from oger_recipe.rewards.kinds.classifier import ClassifierKeys
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.kinds.step_judge import StepJudgeKeys
from oger_recipe.rewards.place import Reply
from oger_recipe.rewards.sources import ANSWER

Make = Callable[..., Plugin]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """A plugin of a text, with what lies beside it; all end with the test."""
    plugins: list[Plugin] = []

    def make(text: str, shared: str = "", **more: Any) -> Plugin:
        folder = tmp_path / str(len(plugins))
        folder.mkdir()
        for name, written in {"own": text, "shared": shared}.items():
            (folder / f"{name}.py").write_text(written)
        plugins.append(Plugin(folder / "own.py", **more))
        return plugins[-1]

    yield make
    for plugin in plugins:
        plugin.close()


# ---- what a plugin imports

IMPORTS = """
import shared
from . import shared as beside
from verl.workers import reward_function
from verl.workers.reward_function import shared as of_package
from verl.workers.reward_function.shared import WORD
import verl.workers.reward_function.shared as by_name
{more}

def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    words = [shared.WORD, beside.WORD, of_package.WORD, WORD, by_name.WORD, reward_function.shared.WORD]
    return [" ".join([*words, more]) for _ in text_responses]

def rm_postprocess(results):
    return [1.0 for _ in results]
"""


STOCK = {"__init__": "", "workers/__init__": "", "utils/__init__": "", "utils/score": "WORD = 'stock'"}
FORK = STOCK | {
    "workers/reward_function/shared": "WORD = 'not beside'",
    "workers/reward_function/more": "WORD = 'fork'",
}


@pytest.mark.parametrize(
    ("installed", "more", "said"),
    [
        ({}, "", "none"),
        (STOCK, "from verl.utils.score import WORD as more", "stock"),
        (FORK, "from verl.workers.reward_function.more import WORD as more", "fork"),
    ],
    ids=["no verl", "stock verl", "the fork"],
)
def test_a_plugin_imports_what_lies_beside_it_by_each_of_its_names(
    installed: dict[str, str], more: str, said: str, made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As VeRL-with-RMs' plugins do, whose folder is verl/workers/reward_function, with any verl installed or none."""
    for name, text in installed.items():
        path = tmp_path / "site" / "verl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    plugin = made(IMPORTS.format(more=more or "more = 'none'"), shared="WORD = 'beside'")
    assert plugin.preprocess(["?"], ["a"]) == [" ".join(["beside"] * 6 + [said])]


# ---- what a plugin's process may do, and may not

ECHO = """
import os, sys
{above}

def rm_preprocess(text_prompts, text_responses, tgt_tokenizer):
    {before}
    return text_responses

def rm_postprocess(results):
    return [float(len(result)) for result in results]
"""


def test_a_plugin_that_forks_and_returns_twice_shifts_nothing(made: Make) -> None:
    plugin = made(ECHO.format(above="os.fork()", before="'fork' in text_responses and os.fork()"))
    for responses in (["fork", "a"], ["b", "c"], ["fork", "d"], ["e", "f"]):
        assert plugin.preprocess(["?"] * 2, responses) == responses
        assert plugin.postprocess(["four", "one"]) == [4.0, 3.0]


FORGES = """
def forge(values, size):
    return {forged}

sys.modules["__main__"].READ |= dict.fromkeys(["rm_preprocess", "rm_postprocess"], forge)
"""
WRITES = """
import json, struct
def write(*parts):
    os.write(int(sys.argv[1]), b"".join(parts))
forged = json.dumps({"number": 3, "value": ["x", "y"]}).encode()
"""


@pytest.mark.parametrize(
    ("above", "before", "said"),
    [
        (FORGES.format(forged="values[:1]"), "", "gave 1 values for 2"),
        (FORGES.format(forged="dict(enumerate(values))"), "", "gave dict "),
        (FORGES.format(forged="[[value] for value in values]"), "", "gave list "),
        (WRITES, "write(struct.pack('!Q', len(forged)), forged)", "it is the reply to another message"),
        (WRITES, "write(struct.pack('!Q', 2**40))", "1099511627776 bytes are more than 1073741824"),
        (WRITES, "write(struct.pack('!Q', 2), b'no')", "Expecting value"),
    ],
)
def test_what_a_plugins_process_replies_is_looked_at_again(above: str, before: str, said: str, made: Make) -> None:
    """A plugin, or what it has started, can write what it likes in place of its process."""
    plugin = made(ECHO.format(above=above, before=before))
    found = plugin.preprocess(["?"] * 2, ["a", "b"])
    assert all(isinstance(each, Reply) and "cannot be trusted" in each.error for each in found)
    assert [(each.cause, said in each.error) for each in found if isinstance(each, Reply)] == [(ANSWER, True)] * 2


def test_a_value_of_a_plugins_process_that_is_no_number_is_none(made: Make) -> None:
    plugin = made(ECHO.format(above=FORGES.format(forged="[1.0, 'high']"), before=""))
    (reason, same) = (each.error for each in plugin.postprocess(["a", "b"]))
    assert reason == same and reason.endswith(
        "cannot be trusted: rm_postprocess gave str 'high', which is not a finite number"
    )


def test_a_plugin_that_takes_too_much_memory_costs_the_rows_that_make_it_do_so(made: Make) -> None:
    text = ECHO.format(above="", before="kept = bytearray(2**29 if 'much' in text_responses else 2**26)")
    failed = Reply(error="it took more memory than plugin_memory_limit_mb allows", cause=ANSWER)
    assert made(text, memory_limit_mb=256).preprocess(["?"] * 3, ["a", "much", "b"]) == ["a", failed, "b"]
    assert made(text, memory_limit_mb=32).preprocess(["?"], ["a"]) == [failed]


@pytest.mark.parametrize("keys", [JudgeKeys, StepJudgeKeys, ClassifierKeys])
def test_the_limits_of_an_entry_are_those_of_its_plugin(
    keys: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy_folder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    much = "kept = bytearray(2**26) if 'much' in text_responses else time.sleep(600 * ('slow' in text_responses))"
    (tmp_path / "own.py").write_text(ECHO.format(above="import time", before=much))
    entry = {"model": "m", "url": "http://localhost:1/v1", "plugin": "own.py", "tokenizer": str(policy_folder)}
    plugin = keys(**entry, plugin_memory_limit_mb=32, plugin_limit_s=5.0).questions()[0].plugin
    try:
        memory, late = plugin.preprocess(["?"], ["much"]) + plugin.preprocess(["?"], ["slow"])
        assert "plugin_memory_limit_mb" in memory.error and "took more than 5 s" in late.error
    finally:
        plugin.close()


PRINTS = "[print(each, os.environ['MY_API_KEY']) for each in text_responses for _ in range(100_000)]"


def test_what_a_plugin_prints_goes_to_the_log_up_to_a_limit_for_each_step_and_without_keys(
    made: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_API_KEY", key := "0123456789" * 4)
    monkeypatch.setenv("OGER_PASS_ENV", "MY_API_KEY")
    plugin = made(ECHO.format(above="", before=PRINTS))
    for word in ("first", "second"):
        assert plugin.preprocess(["?"], [word]) == [word]
    plugin.close()
    out, log = capfd.readouterr()
    assert not out and key not in log
    first, second = (log.count(f"{word} $MY_API_KEY\n") for word in ("first", "second"))
    most = 2**16 // len(f"first {key}\n")
    assert first >= most and second > 1000 and first + second <= 2 * most
    assert log.count("note: plugin own.py prints more than 65536 bytes about a step; ") == 1


def test_what_a_plugin_says_last_is_in_the_log(made: Make, capfd: pytest.CaptureFixture[str]) -> None:
    plugin = made(ECHO.format(above="", before="os.system('echo a child'); sys.stderr.write('my end'); os._exit(3)"))
    (lost,) = plugin.preprocess(["?"], ["a"])
    assert isinstance(lost, Reply) and capfd.readouterr().err == "a child\nmy end"
    plugin = made(ECHO.format(above="", before="print('a word') if 'a' in text_responses else os._exit(3)"))
    assert plugin.preprocess(["?"], ["a"]) == ["a"] and isinstance(plugin.preprocess(["?"], ["b"])[0], Reply)
    assert capfd.readouterr().err == "a word\n"


def test_a_plugin_that_is_killed_between_two_calls_costs_no_row(made: Make) -> None:
    plugin = made(ECHO.format(above="", before=""))
    assert plugin.preprocess(["?"], ["a"]) == ["a"]
    assert plugin._process is not None
    child = plugin._process._child
    for below in psutil.Process(child.pid).children():
        below.kill()
    child.wait(HANG_S)
    assert plugin.preprocess(["?"] * 2, ["b", "c"]) == ["b", "c"]


@pytest.mark.parametrize(
    ("before", "said", "passed_on"),
    [
        ("raise ConnectionError(f'401 for {KEY}')", "ConnectionError: 401 for $MY_API_KEY (", True),
        (
            "raise ConnectionError(f'401 for {KEY}')",
            "ConnectionError: 401 for $MY_API_KEY (",
            False,
        ),  # found in a file
        ("raise ConnectionError('x' * 970 + KEY)", "xx$MY_API_KEY (", True),  # where it is cut
        ("return {KEY}", "gave set {'$MY_API_KEY'}, which is not a list", True),
        ("return [['x' * 60, KEY]]", "gave list ", True),
        ("sys.exit(KEY)", "it called sys.exit('$MY_API_KEY')", True),
    ],
)
def test_no_error_of_a_plugin_has_a_key(
    before: str, said: str, passed_on: bool, made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(key := "k-" + "0123456789" * 4)
    monkeypatch.setenv("MY_API_KEY", key)
    monkeypatch.setenv("OGER_PASS_ENV", "MY_API_KEY" if passed_on else "")
    above = f"KEY = open({str(tmp_path / 'key')!r}).read()"
    (lost,) = made(ECHO.format(above=above, before=before)).preprocess(["?"], ["a"])
    assert isinstance(lost, Reply) and said in lost.error and "k-0" not in lost.error
