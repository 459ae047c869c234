"""One command that is to survive the night: its policy stops, then its engine is killed, and every step comes once."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hang import HANG_S
from runs import SMALL, lines, typed

from oger_recipe.run_folder import checkpoints

STEPS = 4
FLAGS = ["--ckpt.save_steps", "1", "--oger.total_training_steps", str(STEPS), "--oger.stall_minutes", "0.5"]


def until(running: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def actor(running: subprocess.Popen[str], title: str) -> psutil.Process:
    """Return its process of a title, which Ray writes anew around every call: for a moment there is none."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        below = psutil.Process(running.pid).children(recursive=True)
        found[:] = [each for each in below if _title(each).startswith(title)]
        return bool(found)

    until(running, is_there)
    return found[0]


def _title(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:  # it has ended
        return ""


@pytest.mark.full
def test_a_stall_and_a_death_cost_two_restarts_and_no_step(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    events = run_dir / "events.jsonl"

    def seen(name: str) -> list[dict]:
        return [each for each in lines(events) if each["event"] == name] if events.exists() else []

    def saved(step: int) -> Callable[[], object]:
        return lambda: any(
            one.step == step and one.fault is None for one in checkpoints.found(run_dir / "checkpoints")
        )

    command = typed(run_dir, cache, *SMALL, *FLAGS, "--max-restarts", "2")
    running = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(running, saved(1))
    policy = actor(running, "ray::OgerPolicyModelActor")
    policy.send_signal(signal.SIGSTOP)
    until(running, lambda: len(seen("began")) == 2)
    assert not policy.is_running()
    reached = seen("began")[-1]["resumed_at"]
    until(running, saved(reached + 1))
    engine = actor(running, "ray::OgerRolloutActor")
    engine.send_signal(signal.SIGKILL)
    _, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == 0, shown

    stalled, died = (line for line in shown.splitlines() if line.startswith("oger train: training stopped"))
    (stacks,) = (run_dir / "logs").glob("stacks-*.txt")
    assert re.search(rf"nothing happened for 0\.\d minutes in phase \w+; .*OgerPolicyModelActor.* \(the policy\), pid "
                     rf"{policy.pid} on this node, is stopped \(SIGSTOP\); the stacks of its processes are in "
                     rf"{stacks}; restart 1 of 2 in 10 s from the checkpoint of step {reached}$", stalled)  # fmt: skip
    assert f"pid {engine.pid}" in died and "restart 2 of 2 in 10 s from the checkpoint of step" in died
    dumps = stacks.read_text().split("\n== ")[1:]  # a process each, its title first
    for title, text in (
        ("ray::OgerPPOTrainer", "in _fit"), ("ray::OgerRolloutActor", "monitor_engine_cores"),
        ("VLLM::", "run_busy_loop"), ("", "in _run_openrlhf"),  # of the driver
        ("ray::OgerPolicyModelActor", "no stacks: a stopped process cannot"),
    ):  # fmt: skip
        assert [dump for dump in dumps if dump.startswith(title) and text in dump], title

    steps = lines(run_dir / "metrics.jsonl")
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert [each["step"] for each in seen("step")] == [1, 2, 3, 4]
    assert len(seen("began")) == 3 and [each["restart"] for each in seen("restarting")] == [1, 2]
    assert not [pid for pid in psutil.pids() if str(run_dir) in _environment(pid)]


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
