"""One run that is killed again and again, in one folder, by one who types commands and looks at what is left.

Its tests follow one another, and each attempt goes on from what those before have left. Steps 1 to 4 are one pass over
the data, so that every problem comes once in them if each attempt goes on exactly where the last checkpoint was.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from hang import HANG_S
from runs import ROOT, caches_in, lines, samples

from oger_recipe.run_folder import checkpoints

STEPS = 4
TO_THE_END = ("--oger.total_training_steps", str(STEPS))
RESUMED = (*TO_THE_END, "--ckpt.load_enable")
KEY = "0123456789abcdef0123456789abcdef76543210"
# In the place of W&B's package, which need not be installed: keeps what it is given.
WANDB = """
import json, os, types
api = types.SimpleNamespace(api_key=os.environ.get("WANDB_API_KEY"))
def init(**settings):
    with open(os.environ["WANDB_RECEIVED"], "a") as file:
        json.dump([os.environ.get("WANDB_API_KEY"), os.environ.get("WANDB_DIR"), str(settings)], file)
        file.write(chr(10))
def define_metric(*names, **settings): pass
class Table:
    def __init__(self, columns, data=()): self.columns, self.data = columns, data
    def add_data(self, *values): pass
def log(figures): pass
def finish(): pass
"""


class Terminal:
    """``oger train`` on the smoke recipe in one run folder; Ray and vLLM keep their files below ``temporary``."""

    def __init__(self, run_dir: Path, cache: Path, modules: Path, temporary: Path) -> None:
        self.run_dir, self.cache, self.modules, self.temporary = run_dir, cache, modules, temporary
        self.received = modules / "wandb.jsonl"  # what W&B was given
        self.attempts = 0
        (modules / "wandb.py").write_text(WANDB)

    def type(self, *flags: str, key: str = "env") -> subprocess.Popen[str]:
        self.attempts += 1
        command = [sys.executable, "-m", "oger_recipe.cli.train"]
        command += [
            "--recipe",
            str(ROOT / "configs" / "countdown_cpu_smoke.yaml"),
            "--oger.run_dir",
            str(self.run_dir),
        ]
        command += [*caches_in(self.cache), "--no-oger.val_before_train", "--ckpt.save_steps", "1"]
        command += ["--ckpt.max_num", "1", "--eval.n_samples_per_prompt", "1", "--logger.wandb.key", key]
        python_path = filter(None, (str(self.modules), os.environ.get("PYTHONPATH")))
        environment = os.environ | {
            "RAY_TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join(python_path),
            "WANDB_RECEIVED": str(self.received),
        }
        if key == "env":
            environment["WANDB_API_KEY"] = KEY
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, *flags], text=True, env=environment, **pipes)

    def until(self, running: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def process(self, running: subprocess.Popen[str], title: str) -> psutil.Process:
        """Return its process of a title, which Ray writes anew around every call: for a moment there is none."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [each for each in started_by(running) if "".join(each.cmdline()[:1]).startswith(title)]
            return bool(found)

        self.until(running, is_there)
        return found[0]

    def trained(self, step: int) -> Callable[[], bool]:
        """Its checkpoint is whole: what is next is the generation of another step."""
        return (self.run_dir / "checkpoints" / f"global_step{step}.json").exists

    def kept(self) -> list[checkpoints.Checkpoint]:
        return checkpoints.found(self.run_dir / "checkpoints")

    def refused(self, *flags: str) -> str:
        done = self.type(*flags)
        _, shown = done.communicate(timeout=HANG_S)
        assert done.returncode == 1
        self.attempts -= 1
        return shown


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Terminal]:
    temporary = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))  # the paths of sockets have to be short
    folders = (tmp_path_factory.mktemp("runs") / "run", cache, tmp_path_factory.mktemp("modules"))
    yield Terminal(*folders, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def started_by(running: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(running.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[str]:
    return [str(each) for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def updates_of(folder: Path, step: int) -> int:
    """Adam's count of the updates that a checkpoint has behind it."""
    (file,) = (folder / "_actor" / f"global_step{step}").glob("*optim_states.pt")
    state = torch.load(file, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"]["state"]
    return int(state[0]["step"])


def test_an_engine_that_is_killed_ends_the_run_with_a_sentence_and_leaves_nothing(terminal: Terminal):
    """The rollout actor, while it generates."""
    running = terminal.type(*TO_THE_END, key=KEY)
    terminal.until(running, terminal.trained(1))
    actor = terminal.process(running, "ray::OgerRolloutActor")
    terminal.process(running, "VLLM::EngineCore")  # which it has started, and which outlived it once
    processes = started_by(running)
    actor.send_signal(signal.SIGKILL)
    printed, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == 1 and KEY not in printed + shown
    assert f"training stopped at step 2 of {STEPS}: the engine died" in shown and f"pid {actor.pid}" in shown
    assert "its memory had peaked at" in shown and f"{terminal.run_dir}/logs/engine-0.log" in shown
    assert "the last checkpoint is of step 1; resume with: python -m oger_recipe.cli.train " in shown
    assert "Traceback" not in shown and "Traceback" in (terminal.run_dir / "logs" / "error.log").read_text()
    assert not alive(processes) and not list(terminal.temporary.iterdir())


@pytest.mark.full
def test_ctrl_c_ends_an_attempt_with_a_line(terminal: Terminal):
    running = terminal.type(*RESUMED)
    terminal.until(running, terminal.trained(2))
    processes = started_by(running)
    running.send_signal(signal.SIGINT)
    _, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == 130
    (line,) = shown.splitlines()
    assert line.startswith(f"oger train: stopped by SIGINT at step 3 of {STEPS}; the last checkpoint is of step 2;")
    assert line.endswith("--ckpt.load_enable")
    assert not alive(processes) and not list(terminal.temporary.iterdir())


@pytest.mark.full
def test_a_command_that_is_killed_takes_its_processes_with_it(terminal: Terminal):
    running = terminal.type(*RESUMED)
    terminal.until(running, terminal.trained(3))
    processes = started_by(running)
    running.kill()
    running.communicate()
    deadline = time.monotonic() + HANG_S
    while (left := alive(processes) or list(terminal.temporary.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_the_last_attempt_goes_on_to_the_end(terminal: Terminal):
    # Settings that the checkpoint decides cannot change. What was not written to its end does not count.
    other = terminal.refused(*RESUMED, "--actor.adam.lr", "0.01", "--train.seed", "7")
    assert "actor.adam.lr was 0.0003 -> is 0.01" in other and "train.seed was 42 -> is 7" in other
    done = max(each.step for each in terminal.kept() if each.fault is None)
    (terminal.run_dir / "checkpoints" / "_actor" / f"global_step{done + 1}").mkdir()
    (terminal.run_dir / "checkpoints" / "_actor" / "latest").write_text(f"global_step{done + 1}")

    # Another command beside it is refused.
    running = terminal.type(*RESUMED)
    terminal.until(running, lambda: str(running.pid) in (terminal.run_dir / ".oger-lock").read_text())
    assert f"another run is active in {terminal.run_dir} (process {running.pid}" in terminal.refused(*RESUMED)
    shown, errors = running.communicate(timeout=HANG_S)
    assert running.returncode == 0, errors
    steps = lines(terminal.run_dir / "metrics.jsonl")
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    events = lines(terminal.run_dir / "events.jsonl")
    assert [event["resumed_at"] for event in events if event["event"] == "ready"][-1] == done > 0
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4]
    uids = [{row["uid"] for row in samples(terminal.run_dir, step)} for step in range(1, 5)]
    assert sum(map(len, uids)) == len(set.union(*uids)) == 64
    assert all(record["skipped_updates"] == 0 and record["vllm_logprob_difference"] < 0.02 for record in steps)
    assert updates_of(terminal.run_dir / "checkpoints", STEPS) == STEPS  # a fresh optimizer would have made fewer
    assert json.loads((terminal.run_dir / "summary.json").read_text())["steps"] == STEPS
    logs = {path.name for path in (terminal.run_dir / "logs").iterdir()}
    assert {"controller.log", "policy-0.log", "engine-0.log", "raylet.log"} <= logs
    assert not any(name.startswith("worker-") for name in logs)
    # ckpt.max_num 1: the last one, and the last of a step that solved something where that is another.
    kept = terminal.kept()
    assert kept[-1].step == STEPS and kept[-1].fault is None and len(kept) <= 2
    assert len(list((terminal.run_dir / "checkpoints").glob("*_hf"))) == len(kept)
    assert not list(terminal.temporary.iterdir())

    # W&B had its key in every attempt, and no file has it.
    assert len(lines(terminal.received)) == terminal.attempts
    for key, folder, settings in lines(terminal.received):
        assert (key, folder) == (KEY, str(terminal.run_dir)) and KEY not in settings
    for file in terminal.run_dir.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
