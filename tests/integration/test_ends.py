"""How a run ends: what a signal says, what is cleared away, and what a failure is called. Processes, but no Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import Forks
from hang import HANG_S
from ray.exceptions import RayTaskError

from oger_recipe.base.errors import RecipeError, RunDied
from oger_recipe.pipeline.driver.deaths import Processes, _last_error, _out_of_memory, why
from oger_recipe.run.ends import explained
from oger_recipe.run_folder import worker_logs
from oger_recipe.run_folder.checkpoints import seal

STOPPED = """
import sys, time
from pathlib import Path
from oger_recipe.base.errors import RunDied
from oger_recipe.run.ends import explained, stoppable
run_dir = Path(sys.argv[1])
with stoppable(run_dir, run_dir / "checkpoints", ["/venv/bin/oger", "train", "--recipe", "r.yaml"]):
    print("begun", flush=True)
    with explained(run_dir, run_dir / "checkpoints", []):
        try:
            time.sleep(30)
        except KeyboardInterrupt:
            raise RuntimeError("a worker that heard the signal first") from None
"""
# A run that trains until it is asked to end after its step, or fails then as the second argument says.
ASKED = """
import sys, time
from pathlib import Path
from ray.exceptions import RayTaskError
from oger_recipe.base.errors import RunStopped
from oger_recipe.run.ends import explained, stoppable, stops_after_step
from oger_recipe.run_folder.records import STOP_ASKED
run_dir = Path(sys.argv[1])
(run_dir / STOP_ASKED).touch()  # of an attempt that was killed
with stoppable(run_dir, run_dir / "checkpoints", ["/venv/bin/oger", "train", "--recipe", "r.yaml"]):
    with explained(run_dir, run_dir / "checkpoints", ["oger"]), stops_after_step(run_dir):
        print("begun", flush=True)
        while not (run_dir / STOP_ASKED).exists():
            time.sleep(0.05)
        ended = RunStopped() if sys.argv[2] == "stops" else MemoryError()
        raise RayTaskError("fit", "Traceback ...", ended, proctitle="x", pid=8, ip="").as_instanceof_cause()
"""
# A driver that is killed: what it has started writes below its temporary folder, or only reads there.
DRIVER = """
import subprocess, sys, time
from pathlib import Path
from oger_recipe.pipeline.driver.start_ray import cleared_up
logs = Path(sys.argv[1])
with (logs / "lock").open("w") as lock, cleared_up(logs, lock.fileno()) as folder:
    session = folder / "session_2026" / "logs"
    session.mkdir(parents=True)
    name = f"worker-aa-01000000-7"
    (session / f"{name}.out").write_text(":job_id:01000000\\n:actor_name:OgerPolicyModelActor\\nits words\\n")
    (session / f"{name}.err").write_text("its last words\\n")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    writer = subprocess.Popen(sleep, stdout=(session / "x.out").open("a"), start_new_session=True)
    reader = subprocess.Popen(sleep, stdin=(session / f"{name}.out").open())
    print(folder, writer.pid, reader.pid, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture()
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_in_one_line_that_says_how_to_go_on(run_dir: Path, number: signal.Signals, forks: Forks) -> None:
    (run_dir / "checkpoints" / "_actor" / "global_step2").mkdir(parents=True)
    (run_dir / "checkpoints" / "_actor" / "global_step2" / "states.pt").write_bytes(b"s")
    seal(run_dir / "checkpoints", 2)
    (run_dir / "events.jsonl").write_text(
        '{"event": "ready", "steps": 60}\n{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n'
    )
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = forks.start("-c", STOPPED, str(run_dir), **piped)
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    running.send_signal(number)
    _, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == 128 + number
    assert shown == (
        f"oger train: stopped by {number.name} at step 3 of 60; the last checkpoint is of step 2; resume "
        f"with: oger train --recipe r.yaml --oger.run_dir {run_dir} --ckpt.load_enable\n"
    )


@pytest.mark.parametrize("seconds", ["60", "0"], ids=["killed", "finished"])
def test_nothing_is_left_of_a_run_however_its_driver_ends(run_dir: Path, seconds: str) -> None:
    logs = run_dir / "logs"
    command = [sys.executable, "-c", DRIVER, str(logs), seconds]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    folder, writer, reader = driver.stdout.readline().split()
    try:
        if seconds != "0":
            driver.kill()
        driver.wait(timeout=HANG_S)
        deadline = time.monotonic() + HANG_S
        while Path(folder).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(folder).exists()
        assert _state(writer) in (None, "Z") and _state(reader) == "S"
        assert "its words\n" in (logs / "policy-0.log").read_text()
        assert (logs / "policy-0.log").read_text().endswith("its last words\n")
    finally:
        os.kill(int(reader), signal.SIGKILL)


def _state(pid: str) -> str | None:
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else None


def test_logs_are_named_by_role_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    actors = {30: "OgerPolicyModelActor", 4: "OgerPolicyModelActor", 50: "OgerRolloutActor", 60: "OgerPPOTrainer"}
    for pid, actor in actors.items():
        (tmp_path / f"worker-ab{pid}-01000000-{pid}.out").write_text(f"warnings\n:actor_name:{actor}\n")
    (tmp_path / "worker-cd-01000000-70.out").write_text("idle\n")
    (tmp_path / "worker-ef-02000000-80.out").write_text(":actor_name:OgerPPOTrainer\n")  # another job of the cluster
    expected = {4: "policy-0", 30: "policy-1", 50: "engine-0", 60: "controller"}
    assert worker_logs.workers(tmp_path, "01000000") == expected


def test_an_error_under_rays_wrapping_is_named_with_its_process(run_dir: Path) -> None:
    def wrapped(title: str, pid: int, below: str) -> RayTaskError:
        text = f"Traceback (most recent call last):\n{below}"
        return RayTaskError(title, text, ValueError("no such layer"), proctitle=title, pid=pid, ip="127.0.0.1")

    inner = wrapped("ray::OgerPolicyModelActor.fit", 7, "ValueError: no such layer")
    outer = wrapped("ray::OgerPPOTrainer.fit", 8, f"ray.exceptions.RayTaskError(ValueError): {inner}")
    with Processes(os.getpid()) as processes:
        said = why(outer.as_instanceof_cause(), processes, run_dir, run_dir)
    assert said == "the policy (pid 7) stopped with ValueError: no such layer"


def test_what_the_controller_refuses_is_said_as_it_is(run_dir: Path) -> None:
    bad = RecipeError("step 2 went wrong and is not saved: the policy's loss is nan")
    with Processes(os.getpid()) as processes:
        wrapped = RayTaskError("fit", "Traceback ...", bad, proctitle="x", pid=8, ip="").as_instanceof_cause()
        assert isinstance(wrapped, RecipeError) and str(wrapped) != str(bad)  # as ray.get raises it
        said = why(wrapped, processes, run_dir, run_dir)
    assert said == str(bad)


def test_a_full_disk_is_one_sentence(run_dir: Path) -> None:
    with Processes(os.getpid()) as processes:
        said = why(OSError(28, "No space left on device"), processes, run_dir, run_dir)
    assert said.startswith("no space is left on a disk: [Errno 28] No space left on device; make room, or send files")


def test_of_a_process_that_died_role_number_and_peak_are_known(run_dir: Path) -> None:
    """It looks like Ray's worker by its title, and a process that it started ended with it."""
    wait = "import subprocess, sys, time; x = b'x' * (200 << 20); c = subprocess.Popen(['VLLM::EngineCore', '60'], "
    wait += "executable='/bin/sleep'); time.sleep(60)"
    actor = subprocess.Popen(["ray::OgerRolloutActor.generate", "-c", wait], executable=sys.executable)
    with Processes(os.getpid()) as processes:
        deadline = time.monotonic() + HANG_S
        while len(processes._seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        engine = max(processes._seen)
        processes.look()
        os.kill(engine, signal.SIGKILL)
        actor.kill()
        actor.wait()
        said = why(RuntimeError("a broadcast that broke off"), processes, run_dir, run_dir)
    assert said.startswith(
        f"the engine died (ray::OgerRolloutActor.generate, pid {actor.pid}): it was killed or crash"
    )
    assert "its memory had peaked at 0.2 GiB" in said and "EngineCore" not in said


def test_of_an_actor_that_could_not_start_the_reason_alone_is_shown() -> None:
    text = (
        "The actor died because of an error raised in its creation task, ray::OgerRolloutActor.__init__()\n"
        '  File "x.py", line 3, in __init__\n    super().__init__()\n'
        "pydantic_core.ValidationError: 1 validation error\n  Value error, max_model_len (4096) is greater"
    )
    assert _last_error(text) == (
        "pydantic_core.ValidationError: 1 validation error\n  Value error, max_model_len (4096) is greater"
    )


def test_a_failure_is_told_without_its_traceback_which_is_kept(run_dir: Path) -> None:
    with pytest.raises(RecipeError) as told:
        with explained(run_dir, run_dir / "checkpoints", ["oger"]):
            try:
                raise KeyError("deep inside")
            except KeyError as error:
                raise RunDied("the policy died (pid 7)") from error
    assert str(told.value) == (
        "training stopped before the first step: the policy died (pid 7)\n  there is no checkpoint to resume from\n"
        f"  traceback: {run_dir}/logs/error.log"
    )
    assert "deep inside" in (run_dir / "logs" / "error.log").read_text()


def test_no_key_that_somebody_printed_stays_in_logs_and_messages(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OGER_REWARD_TOKEN", "hunter2-hunter2")
    address = "http://127.0.0.1:1/get_reward?token=hunter2-hunter2"
    (tmp_path / "worker-ab-01000000-7.out").write_text(f":actor_name:OgerRolloutActor\n403 of {address}\n")
    worker_logs.keep(tmp_path, run_dir / "logs")
    assert (
        "403 of http://127.0.0.1:1/get_reward?token=$OGER_REWARD_TOKEN\n"
        in (run_dir / "logs" / "engine-0.log").read_text()
    )
    with pytest.raises(RecipeError) as told, explained(run_dir, run_dir / "checkpoints", ["oger"]):
        raise ValueError(f"no answer from {address}")
    kept = (run_dir / "logs" / "error.log").read_text()
    assert "hunter2" not in str(told.value) + kept and "token=$OGER_REWARD_TOKEN" in kept


def test_rays_page_on_full_memory_is_a_sentence() -> None:
    text = (
        "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1, ID: 5d) "
        "was 22.83GB / 23.54GB (0.97), which exceeds the memory usage threshold of 0.950000; Ray killed 1 worker(s) "
        "based on the killing policy: [(Actor(42f5): job ID=01, lease ID=02, task name=OgerPolicyModelActor.fit, "
        "required resources={GPU: 1}, pid=8872, actual memory used=14.52GB, worker ID=acc3)]"
    )
    assert _out_of_memory(text).startswith(
        "the machine's memory was full (22.83 of 23.54 GB), and Ray ended the policy (pid 8872, 14.52 GB); lower "
    )
    assert _out_of_memory("something else") == "OutOfMemoryError: something else"


@pytest.mark.parametrize(
    ("ends", "saved", "code", "last_line"),
    [
        ("stops", "then", 75, "oger train: stopped by SIGUSR1 after step 2 of 60; the last checkpoint is "
         "of step 2; resume with: oger train --recipe r.yaml --oger.run_dir {} --ckpt.load_enable"),
        ("stops", "before", 138, "the last checkpoint is of step 2; resume with: oger train --recipe r.yaml "),
        ("stops", "never", 138, "stopped by SIGUSR1 after step 2 of 60; there is no checkpoint to resume from"),
        ("fails", "then", 1, "oger_recipe.base.errors.RecipeError: training stopped at step 3 of 60: "),
    ],
    ids=["with a checkpoint", "without a new one", "without one", "a failure"],
)  # fmt: skip
def test_a_run_that_is_asked_ends_after_its_step_with_a_code_of_its_own(
    run_dir: Path, ends: str, saved: str, code: int, last_line: str, forks: Forks
) -> None:
    """A failure after that is one, not an end that was asked for; an attempt that got no further is none to repeat."""

    def save() -> None:
        (run_dir / "checkpoints" / "_actor" / "global_step2").mkdir(parents=True)
        (run_dir / "checkpoints" / "_actor" / "global_step2" / "states.pt").write_bytes(b"s")
        seal(run_dir / "checkpoints", 2)

    if saved == "before":
        save()
    (run_dir / "events.jsonl").write_text('{"event": "ready", "steps": 60}\n{"event": "step", "step": 2}\n')
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = forks.start("-c", ASKED, str(run_dir), ends, **piped)
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    if saved == "then":
        save()
    running.send_signal(signal.SIGUSR1)
    said, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == code
    assert said == "oger train: SIGUSR1: the run ends after this step\n"
    assert last_line.format(run_dir) in shown
    assert not (run_dir / ".oger-stop").exists()
