"""Programs that are forked from a server behave as those that Python starts, and a stand-in for Python as Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Forks
from hang import HANG_S

from oger_recipe.base import fork_request
from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.pipeline.driver import template

FORKED = "--multiprocessing-fork"  # a word of programs that the stand-in has forked
FACTS = """
import json, os, sys, tempfile
said = sys.stdin.read()
facts = {"words": sys.argv, "cwd": os.getcwd(), "said": said, "variable": os.environ.get("OF_TEST")}
facts |= {"group": os.getpgrp(), "niceness": os.nice(0), "imported": "torch" in sys.modules}
facts["temporary"] = tempfile.gettempdir()
with open(int(os.environ["FILE"]), "w") as file:
    file.write("written")
print(json.dumps(facts))
print("an error", file=sys.stderr)
sys.exit(7)
"""


class StandIn:
    """Starts programs by the script that takes Python's place."""

    def __init__(self, address: str) -> None:
        self._words = [sys.executable, "-IS", fork_request.__file__, sys.executable, address]

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
        return subprocess.Popen([*self._words, *words], text=True, **how)


@pytest.fixture()
def stand_in(forks: Forks) -> StandIn:
    return StandIn(forks.address)


@pytest.fixture()
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("word", [FORKED, "--another"], ids=["forked", "started"])
def test_a_program_has_what_python_would_give_it(stand_in: StandIn, tmp_path: Path, file: int, word: str) -> None:
    environment = os.environ | {"OF_TEST": "its own", "FILE": str(file), "TMPDIR": str(tmp_path)}
    process = stand_in.start(
        "-c", FACTS, word, "a word", cwd=tmp_path, env=environment, pass_fds=[file], stdin=subprocess.PIPE,
        process_group=0, preexec_fn=lambda: os.nice(3),
    )  # fmt: skip
    printed, errors = process.communicate("to it", timeout=HANG_S)
    assert (process.returncode, errors) == (7, "an error\n")
    niceness = os.nice(0) + 3
    assert json.loads(printed) == {
        "words": ["-c", word, "a word"], "cwd": str(tmp_path), "said": "to it", "variable": "its own",
        "group": process.pid, "niceness": niceness, "imported": word == FORKED, "temporary": str(tmp_path),
    }  # fmt: skip
    assert (tmp_path / "file").read_text() == "written"


def test_an_interpreters_own_words_are_not_the_programs(stand_in: StandIn) -> None:
    process = stand_in.start("-B", "-X", "dev", "-c", "import sys; print(sys.argv, 'torch' in sys.modules)", FORKED)
    printed, _ = process.communicate(timeout=HANG_S)
    assert printed == f"['-c', '{FORKED}'] True\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_signal_that_ends_a_program_ends_its_stand_in(stand_in: StandIn, number: signal.Signals) -> None:
    process = stand_in.start("-c", f"import os; os.kill(os.getpid(), {int(number)})", FORKED)
    assert process.wait(HANG_S) == -number


def test_a_program_ends_with_its_stand_in(stand_in: StandIn) -> None:
    process = stand_in.start("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)", FORKED)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert pid != process.pid
    process.kill()
    process.wait()
    _until_gone(pid)


def test_programs_end_with_their_server_and_without_one_python_is_started(tmp_path: Path) -> None:
    server = Forks(os.environ | {"OMP_NUM_THREADS": "1"})
    stand_in = StandIn(server.address)
    process = stand_in.start("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)", FORKED)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    server.end()
    assert process.wait(HANG_S) == -signal.SIGKILL
    _until_gone(pid)
    printed, _ = stand_in.start("-c", "import sys; print('torch' in sys.modules)", FORKED).communicate(timeout=HANG_S)
    assert printed == "False\n"


def test_what_a_runs_template_forks_has_its_imports_and_title_and_random_numbers_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template, "_OF_CUDA", Path("/is/not/there"))
    program = """
import sys, ray
from vllm.utils.system_utils import set_process_title

def title():
    return open("/proc/self/cmdline").read().split("\\0")[0].strip()

ray._raylet.setproctitle("ray::Actor")
print(title())
set_process_title("Engine")
print(title(), "sklearn" in sys.modules)
print(ray.ObjectID.from_random())
"""
    folder = tempfile.TemporaryDirectory(prefix="f", dir="/tmp")
    with folder, template.begun():
        [(process, _)] = template._begun
        with template.template(Path(folder.name)) as python:
            words, environment = [str(python), "-c", program, FORKED], os.environ | CPU_ENVIRONMENT
            printed = [
                subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANG_S).stdout
                for _ in range(2)
            ]
        assert process.returncode is not None
    titles, ids = zip(*(each.rsplit("\n", 2)[:2] for each in printed), strict=True)
    assert titles == ("ray::Actor\nVLLM::Engine False",) * 2
    assert ids[0] != ids[1]


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_a_template_that_is_not_asked_for_ends_with_its_command(end: str) -> None:
    command = f"""
import os
from oger_recipe.pipeline.driver import template
with template.begun():
    print(template._begun[0][0].pid, flush=True)
    {end}
"""
    printed = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=HANG_S).stdout
    _until_gone(int(printed))


def _until_gone(pid: int) -> None:
    until = time.monotonic() + HANG_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
