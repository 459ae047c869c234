"""A run in which nothing happens any more: when that is noticed, and the stacks that its processes answer with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ray
from forks import Forks
from hang import HANG_S
from ray._common.utils import get_default_ray_temp_dir
from ray.cluster_utils import Cluster

from oger_recipe.base import stacks
from oger_recipe.base.files import read_jsonl
from oger_recipe.pipeline.driver import stalls
from oger_recipe.pipeline.driver.stalls import Silence

# A process that answers, and below it: one that answers for itself, one that has put another handler in the place of
# this one, and one that never had it. The signal ends both of these.
PROCESSES = """
import os, signal, subprocess, sys, time
from oger_recipe.base import stacks
def waits_for_ever():
    os.write(1, b"waits\\n")
    time.sleep(600)
def waits_below():
    stacks.answer()
    waits_for_ever()
stacks.answer()
deaf = subprocess.Popen(["sleep", "600"])
if not os.fork():
    waits_below()
if not os.fork():
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    waits_for_ever()
waits_for_ever()
"""
# A controller that may be interrupted at any time.
CONTROLLER = """
import os, sys, time
from pathlib import Path
from oger_recipe.base import stacks
from oger_recipe.pipeline.controller.interrupts import interruptible
stacks.answer()
with interruptible(Path(os.environ["OGER_RUN_DIR"]), lambda: True):
    os.write(1, b"waits\\n")
    time.sleep(600)
"""
# A driver whose main thread waits, as for Ray, or cannot be interrupted.
DRIVER = """
import ctypes, os, signal, sys, time
from pathlib import Path
from oger_recipe.pipeline.driver import stalls
from oger_recipe.pipeline.driver.deaths import Processes
from oger_recipe.run_folder.records import event
run_dir, interruptible = Path(sys.argv[1]), sys.argv[2] == "yes"
stalls._INTERVAL_S, stalls._ENDS_WITHIN_S = 0.05, 1.0
with Processes(os.getpid()) as processes, stalls.StallWatch(run_dir, 0.01, processes, joins=False):
    for phase in ("rollouts", "training", "rollouts"):
        event(run_dir, "phase", phase=phase)
        time.sleep(0.2)
    def deep_inside():
        if not interruptible:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        while True:
            time.sleep(600)
    deep_inside()
"""


def heard(silence: Silence, *gaps: tuple[float, dict]) -> Silence:
    for seconds, record in gaps:
        silence.seconds = seconds
        silence.heard(record)
    return silence


def of(phase: str) -> dict:
    return {"event": "phase", "phase": phase}


def test_a_phase_may_be_silent_for_a_multiple_of_its_longest_silence() -> None:
    silence = Silence(None)
    assert silence.limit == 3600  # the start
    heard(silence, (50, {"event": "ready"}), (0, {"event": "training"}), (0, of("training")))
    assert silence.limit == 3 * 3600  # of a step of which nothing is known; the event of that name is none of it
    heard(silence, (100, {"event": "step"}), (1, of("training")))
    assert silence.limit == 1000
    heard(silence, (120, of("weights")), (2, of("training")))
    assert silence.limit == 1200
    heard(silence, (3, of("rollouts")), (40, of("rollouts")), (400, {"event": "note"}))
    assert (silence.phase, silence.limit) == ("rollouts", 3600)  # it has not ended once, and a note does not end it
    heard(silence, (7, of("saving")), (5, of("rollouts")))
    assert silence.limit == 4000
    heard(silence, (6, of("saving")))
    assert silence.limit == 600


def test_a_limit_of_the_users_holds_from_the_second_time_of_a_phase() -> None:
    silence = heard(Silence(30), (50, of("saving")))
    assert silence.limit == 3600
    heard(silence, (200, {"event": "evaluating"}), (1, of("saving")))
    assert silence.limit == 30
    assert heard(Silence(7200), (50, of("saving"))).limit == 7200


@pytest.fixture
def processes(tmp_path: Path):
    environment = os.environ | {"OGER_RUN_DIR": str(tmp_path)}
    words = [sys.executable, "-c", PROCESSES]
    running = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None and [running.stdout.readline() for _ in range(3)] == ["waits\n"] * 3
    yield running
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()


def test_every_process_answers_with_its_own_stacks_and_others_are_left_alone(processes, tmp_path: Path) -> None:
    root, *below = stacks.ask(str(tmp_path), above=processes.pid)
    assert root.pid == processes.pid and {each.parent for each in below} == {root.pid}
    assert "in waits_for_ever" in root.stacks and "in waits_below" not in root.stacks
    [forked] = [each for each in below if each.stacks]
    assert "in waits_below" in forked.stacks and forked.stacks.count("most recent call first") == 1
    deaf = [each for each in below if each != forked]
    assert len(deaf) == 2 and all("no stacks" in each.text for each in deaf)
    assert all(stacks.state_and_parent(each.pid)[0] in "SR" for each in deaf)
    of_run = [each.pid for each in stacks.ask(str(tmp_path))]
    assert {root.pid, forked.pid} < {*of_run} and len(of_run) == 3  # without the one that never had the handler
    assert stacks.ask(str(tmp_path / "another run")) == []


def test_a_stopped_process_is_named_and_does_not_hold_up_the_others(processes, tmp_path: Path) -> None:
    os.kill(processes.pid, signal.SIGSTOP)
    while Path(f"/proc/{processes.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    stopped, *others = stacks.ask(str(tmp_path))
    assert stopped.is_stopped and not stopped.stacks and "a stopped process cannot answer" in stopped.text
    assert [each.is_stopped for each in others] == [False, False]
    assert any("in waits_below" in each.stacks for each in others)


def test_a_controller_that_may_be_interrupted_answers_and_is_not_interrupted(tmp_path: Path) -> None:
    environment = os.environ | {"OGER_RUN_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", CONTROLLER], env=environment, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and b"waits\n" in iter(running.stdout.readline, b"")  # after imports' words
        (controller,) = stacks.ask(str(tmp_path))
        time.sleep(0.2)
        ended = running.poll()
        running.kill()
    assert (controller.pid, ended) == (running.pid, None) and "interrupts.py" in controller.stacks


@pytest.mark.parametrize("interruptible", ["yes", "no"])
def test_a_silent_run_ends_with_a_sentence_and_the_stacks_of_its_driver(
    interruptible: str, tmp_path: Path, forks: Forks
) -> None:
    (tmp_path / "logs").mkdir()
    done = forks.run("-c", DRIVER, str(tmp_path), interruptible, timeout=HANG_S)
    (path,) = (tmp_path / "logs").glob("stacks-*.txt")
    said = "nothing happened for 0.0 minutes in phase rollouts; the stacks of its processes are in " + str(path)
    if interruptible == "yes":
        assert done.returncode == 1 and done.stderr.endswith(f"RunDied: {said}\n")
    else:
        assert done.returncode == -signal.SIGKILL and f"oger train: training stopped: {said}\n" in done.stdout
        assert read_jsonl(tmp_path / "events.jsonl")[-1]["why"] == f"training stopped: {said}"  # for a supervisor
    assert "in deep_inside" in path.read_text()


@pytest.mark.full
def test_other_nodes_of_a_cluster_are_asked_and_one_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting:
        def ready(self) -> None:
            stacks.answer()

        def wait_for_ever(self) -> None:
            time.sleep(600)

    monkeypatch.setenv("OGER_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(stalls, "_NODES_ANSWER_WITHIN_S", 15.0)
    temporary = Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))  # the paths of sockets have to be short
    Path(get_default_ray_temp_dir()).mkdir(exist_ok=True)  # where the cluster notes its address
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "temp_dir": str(temporary)})
    try:
        other = cluster.add_node(num_cpus=1, resources={"other": 1})
        ray.init(address=cluster.address, log_to_driver=False)
        actor = ray.remote(Waiting).options(resources={"other": 1}).remote()
        ray.get(actor.ready.remote())
        actor.wait_for_ever.remote()
        answers: dict = {}
        stalls._ask_nodes(str(tmp_path), answers)
        [(node, found)] = answers.items()
        assert node.startswith("node ") and any("in wait_for_ever" in each.stacks for each in found)
        os.kill(other.all_processes["raylet"][0].process.pid, signal.SIGSTOP)
        answers.clear()
        stalls._ask_nodes(str(tmp_path), answers)
        assert answers == {node: None}
        os.kill(other.all_processes["raylet"][0].process.pid, signal.SIGCONT)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)
