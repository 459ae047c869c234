"""How a run ends: what a signal says, what is cleared away, and what a failure is called. Processes, but no Ray."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from forks import Forks
from hang import HANG_S
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError

from oger_recipe.base.errors import RecipeError, RunDied
from oger_recipe.pipeline.driver import start_ray
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
# A run that trains until it is asked to end, and then ends as the second argument says.
ASKED = """
import sys, time
from pathlib import Path
from ray.exceptions import RayTaskError
from oger_recipe.base.errors import RunDied, RunStopped
from oger_recipe.base import signals
from oger_recipe.run.ends import ends_with_checkpoint, explained, stoppable
from oger_recipe.run_folder.records import AT_ONCE, ask_to_stop, stop_asked
run_dir, ends, saves = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "saves"
signals._SAME_S = float(sys.argv[4]) if sys.argv[4:] else signals._SAME_S
ask_to_stop(run_dir, AT_ONCE)  # of an attempt that was killed
with stoppable(run_dir, run_dir / "checkpoints", ["/venv/bin/oger", "train", "--recipe", "r.yaml"]):
    with explained(run_dir, run_dir / "checkpoints", ["oger"]), ends_with_checkpoint(run_dir, saves=saves):
        print("begun", flush=True)
        waits = 200
        while waits and (not stop_asked(run_dir) or ends == "waits"):
            time.sleep(0.05)
            waits -= 1
        if ends == "finishes":
            print(stop_asked(run_dir))
            sys.exit(0)
        if ends == "fails":
            raise RunDied("the policy died (pid 7)")
        wrapped = RayTaskError("fit", "Traceback ...", RunStopped(), proctitle="x", pid=8, ip="")
        raise wrapped.as_instanceof_cause()
"""
# A driver that is killed: what it has started writes below its temporary folder, or only reads there.
DRIVER = """
import subprocess, sys, time
from pathlib import Path
from oger_recipe.pipeline.driver.start_ray import cleared_up
logs = Path(sys.argv[1])
with (logs / "lock").open("w") as lock, cleared_up(logs, (lock.fileno(),)) as folder:
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
    (run_dir / "events.jsonl").write_text(
        '{"event": "ready", "steps": 60}\n{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n'
    )
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = forks.start("-c", STOPPED, str(run_dir), **piped)
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    save(run_dir)  # since the start: 75, unless somebody at the terminal wants an end
    running.send_signal(number)
    _, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == {signal.SIGTERM: 75}.get(number, 128 + number)
    assert shown == (
        f"oger train: stopped by {number.name} at step 3 of 60; the last checkpoint is of step 2; resume "
        f"with: oger train --recipe r.yaml --oger.run_dir {run_dir} --ckpt.load_enable\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_is_imported_is_a_line_too(number: signal.Signals) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "oger_recipe.cli.train", "--recipe", "countdown_cpu"]
    running = subprocess.Popen([*command, "--dry-run"], stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    for line in running.stderr:
        if line.endswith(" oger_recipe.base.cpu\n"):  # one of the first that take long
            break
    running.send_signal(number)
    _, shown = running.communicate(timeout=HANG_S)
    printed = [line for line in shown.splitlines() if not line.startswith("import time:")]
    assert printed == [f"oger train: stopped by {number.name}"] and running.returncode == -number


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


def test_two_runs_that_start_together_do_not_take_one_another_for_killed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run looks for folders to clear up just before this one has locked its own."""
    found, lock = [], fcntl.flock

    def locked(file: Any, how: int) -> None:
        found.extend(tmp_path.glob("oger-*/.held"))
        lock(file, how)

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(start_ray.fcntl, "flock", locked)
    with start_ray.cleared_up() as folder:
        with (folder / ".held").open("r+") as held, pytest.raises(BlockingIOError):
            lock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert found == []


def test_a_run_starts_where_the_file_system_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of clusters. Nobody can tell a killed run's folder there, so that none is cleared away."""

    def locked(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(start_ray.fcntl, "flock", locked)
    (tmp_path / "oger-other").mkdir()
    (tmp_path / "oger-other" / ".held").touch()
    with start_ray.cleared_up() as folder:
        assert folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["oger-other"]


def test_the_next_start_clears_up_after_a_run_whose_watcher_was_killed_too(run_dir: Path) -> None:
    logs = run_dir / "logs"
    environment = os.environ | {"RAY_TMPDIR": str(run_dir / "ray")}
    piped = {"stdout": subprocess.PIPE, "text": True, "env": environment}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(logs), "60"], **piped)
    assert driver.stdout is not None
    folder, writer, reader = driver.stdout.readline().split()
    try:
        (watcher,) = (each for each in psutil.Process(driver.pid).children() if folder in each.cmdline())
        os.kill(watcher.pid, signal.SIGKILL)
        driver.kill()
        driver.wait(timeout=HANG_S)
        beside = [subprocess.Popen([sys.executable, "-c", DRIVER, str(logs), "60"], **piped) for _ in range(2)]
        others = [each.stdout.readline().split() for each in beside if each.stdout is not None]
        deadline = time.monotonic() + HANG_S
        while Path(folder).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(folder).exists() and _state(writer) in (None, "Z") and _state(reader) == "S"
        assert (logs / "policy-0.log").read_text().count("its last words\n") == 1
        assert all(Path(other).exists() and _state(pid) == "S" for other, pid, _ in others)  # they live
    finally:
        os.kill(int(reader), signal.SIGKILL)
        for each, (_, _, pid) in zip(beside, others, strict=True):
            os.kill(int(pid), signal.SIGKILL)
            each.kill()
            each.wait()


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


@pytest.mark.parametrize(
    "of_ray", ["The current node timed out during startup. This could", "Timed out waiting for file x"]
)
def test_a_ray_that_does_not_start_is_named_with_its_logs(of_ray: str, run_dir: Path) -> None:
    with Processes(os.getpid()) as processes:
        said = why(RuntimeError(of_ray), processes, run_dir, run_dir)
    assert said.startswith("Ray itself did not start in time: this machine is busy; its log: ")
    assert said.endswith(f"{run_dir}/logs/raylet.log, {run_dir}/logs/gcs.log")


@pytest.mark.parametrize("part", ["services.get_node", "node.wait_for_persisted_port"])
def test_ray_has_time_to_start_as_long_as_none_of_its_parts_has_ended(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name = part.split(".")
    module = getattr(ray._private, where)
    answers: list[RuntimeError | str] = [RuntimeError(), RuntimeError(), "there", RuntimeError()]

    def of_ray(folder: str, node: str, timeout_ms: int = 30000) -> str:
        assert (timeout_ms < 30000) == (where == "node")  # it holds Python's lock for so long
        if isinstance(answer := answers.pop(0), RuntimeError):
            raise answer
        return answer

    monkeypatch.setattr(module, name, of_ray)
    program = tmp_path / "raylet"
    program.symlink_to("/bin/true")
    with start_ray._while_its_parts_live():
        assert getattr(module, name)("session", "node") == "there"
        ended = subprocess.Popen([program])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(RuntimeError):
            getattr(module, name)("session", "node")
    ended.wait()
    assert getattr(module, name) is of_ray


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
        f"the rollout actor died (ray::OgerRolloutActor.generate, pid {actor.pid}): it was killed or crash"
    )
    assert "its memory had peaked at 0.2 GiB" in said and "EngineCore" not in said


@pytest.mark.parametrize(("died", "log"), [("gcs_server", "gcs.log"), ("raylet", "raylet.log")])
def test_a_run_ends_with_the_part_of_ray_that_died_also_where_nothing_else_notices(
    run_dir: Path, tmp_path: Path, died: str, log: str
) -> None:
    parts = {}
    for name in ("log_monitor", "raylet", "gcs_server"):  # they are known by their programs' names
        (tmp_path / name).symlink_to("/bin/sleep")
        parts[name] = subprocess.Popen([tmp_path / name, "60"])
    parts["log_monitor"].kill()  # without which a run goes on
    actor = subprocess.Popen(["ray::OgerPolicyModelActor.fit", "600"], executable="/bin/sleep")
    with Processes(os.getpid()) as processes:
        with pytest.raises(ConnectionError) as lost, processes.needing_ray():
            time.sleep(1.5)
            while processes.role(actor.pid) is None:
                time.sleep(0.1)
            parts[died].kill()
            time.sleep(HANG_S)
        said = why(lost.value, processes, run_dir, run_dir)
        assert actor.wait(HANG_S) == -signal.SIGKILL  # it would train on while the rest of Ray ends
        time.sleep(1.5)  # outside the block nobody is interrupted
    assert said == f"Ray itself died ({died}, pid {parts[died].pid}) of SIGKILL; its log: {run_dir}/logs/{log}"
    for each in parts.values():
        each.kill()
        each.wait()


ENDED_IN_C = """
import os, subprocess, sys, time
from pathlib import Path
from oger_recipe.pipeline.driver.start_ray import cleared_up
run_dir, part = Path(sys.argv[1]), Path(sys.argv[2], "gcs_server")
part.symlink_to("/bin/sleep")
gcs = subprocess.Popen([part, "60"])
with cleared_up(run_dir / "logs"):
    gcs.kill()
    print(gcs.pid, flush=True)
    time.sleep(6)
    if sys.argv[3] == "in C++":
        os._exit(1)
"""


@pytest.mark.parametrize("how", ["in C++", "in order"])
def test_what_the_driver_could_not_say_any_more_is_said_by_its_watcher(
    how: str, run_dir: Path, tmp_path: Path, forks: Forks
) -> None:
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / "events.jsonl").write_text('{"event": "ready", "steps": 9}\n{"event": "step", "step": 2}\n')
    done = forks.run("-c", ENDED_IN_C, str(run_dir), str(tmp_path), how)
    pid, *said = done.stdout.splitlines()
    reason = f"Ray itself died (gcs_server, pid {pid}) of SIGKILL; its log: {run_dir}/logs/gcs.log"
    assert said == ([f"oger train: training stopped at step 3 of 9: {reason}"] if how == "in C++" else [])


UNREACHED = """
import os, sys
from pathlib import Path
import ray
from oger_recipe.base.errors import RunDied
from oger_recipe.pipeline.driver import launch
os.environ["RAY_ADDRESS"] = "nowhere"
try:
    launch.launch([], Path(sys.argv[1]), cpu=True, logical_gpus=1, verbose=True, environment={}, held=())
except RunDied as died:
    print(died, ray.is_initialized())
"""


def test_a_cluster_that_cannot_be_joined_is_named_and_not_joined_once_more(run_dir: Path, forks: Forks) -> None:
    """Ray's question for the job's number would join again, or start a Ray of its own."""
    done = forks.run("-c", UNREACHED, str(run_dir))
    assert done.stdout == "ValueError: Invalid address format: nowhere False\n", done.stderr


def test_a_signal_is_none_of_rays_deaths(run_dir: Path) -> None:
    with Processes(os.getpid()) as processes, pytest.raises(KeyboardInterrupt), processes.needing_ray():
        raise KeyboardInterrupt


# Ray starts for real, and takes seconds for it.
STARTING = """
import os, signal, sys, threading
import ray
from oger_recipe.pipeline.driver.start_ray import cleared_up, run_environment, start_ray
def stop(number, _):
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
with cleared_up() as folder:
    threading.Timer(0.35, os.kill, (os.getpid(), signal.SIGTERM)).start()
    if sys.argv[1:]:
        threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        start_ray(run_environment(True), True, 1, False, folder)
    except KeyboardInterrupt:
        print("interrupted with Ray:", ray.is_initialized(), flush=True)
        ray.shutdown()
"""


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_signal_while_ray_starts_waits_for_ray(again: bool, forks: Forks) -> None:
    """An exception in the middle of ray.init has aborted the process."""
    done = forks.run("-c", STARTING, *(["again"] if again else []))
    expected = (-signal.SIGINT, "") if again else (0, "interrupted with Ray: True\n")
    assert (done.returncode, done.stdout) == expected, done.stderr


KILLED = """
import sys, threading
from pathlib import Path
import ray
from oger_recipe.base.errors import RunDied
from oger_recipe.pipeline.driver import launch
of_ray, after = ray._private.services.start_gcs_server, float(sys.argv[2])
def start(*args, **options):
    started = of_ray(*args, **options)
    if after:
        threading.Timer(after, started.process.kill).start()
    else:
        started.process.kill()
    return started
ray._private.services.start_gcs_server = start
try:
    launch.launch([], Path(sys.argv[1]), cpu=True, logical_gpus=1, verbose=True, environment={}, held=())
except RunDied as died:
    print(died)
"""


@pytest.mark.parametrize("after", ["0", "0.3"])
def test_a_gcs_that_dies_while_ray_starts_is_named(after: str, run_dir: Path, forks: Forks) -> None:
    """Ray's start stands in C++ then, and after a minute ends the process without a word.

    Before the GCS has opened its port, Ray would wait half a minute for it, and there is nothing in its log yet.
    """
    done = forks.run("-c", KILLED, str(run_dir), after)
    log = run_dir / "logs" / "gcs.log"
    assert re.fullmatch(rf"Ray itself died \(gcs_server, pid \d+\) of SIGKILL; its log: {log}\n", done.stdout), done
    assert "== gcs_server.out" in log.read_text()


def test_of_an_actor_whose_process_was_not_seen_the_log_is_named(run_dir: Path) -> None:
    (run_dir / "worker-ab-01000000-7.out").write_text(":actor_name:OgerPPOTrainer\n")
    facts = {"class_name": "OgerPPOTrainer", "actor_id": b"a" * 16, "pid": 7, "node_ip_address": "127.0.0.1"}
    died = ActorDiedError(ActorDiedErrorContext(error_message="The actor is dead because of x.", **facts))
    with Processes(os.getpid()) as processes:
        said = why(died, processes, run_dir, run_dir)
    log = run_dir / "logs" / "controller.log"
    facts["pid"] = 8
    unseen = ActorDiedError(ActorDiedErrorContext(error_message="The actor is dead because of x.", **facts))
    with Processes(os.getpid()) as processes:
        assert why(unseen, processes, run_dir, run_dir).endswith("because of x.; it had no log yet")
    assert said == f"the controller died (pid 7 on 127.0.0.1): The actor is dead because of x.; its log: {log}"


def test_an_engine_that_dies_while_it_starts_is_named_with_its_log(run_dir: Path) -> None:
    (run_dir / "worker-ab-01000000-7.out").write_text(":actor_name:OgerRolloutActor\n")
    page = "The actor died because of an error raised in its creation task, ray::OgerRolloutActor.__init__()\n"
    failed = RuntimeError(f"{page}RuntimeError: Engine core initialization failed. See root cause above.")
    with Processes(os.getpid()) as processes:
        said = why(failed, processes, run_dir, run_dir)
        log = run_dir / "logs" / "engine-0.log"
        assert said == f"the engine died while it started, or failed to; its log: {log}"
        logged = "(EngineCore pid=9) ERROR 11-26 12:02:26 [core.py:1374] "
        lines = (f"{logged}ValueError: an earlier one", f"{logged}ModuleNotFoundError: No module named 'flashinfer'")
        output = "\n".join((*lines, f"{logged}  File of no error", "RuntimeError: of another process"))
        (run_dir / "worker-ab-01000000-7.err").write_text(output)
        said = why(failed, processes, run_dir, run_dir)
    cause = "ModuleNotFoundError: No module named 'flashinfer'"
    assert said == f"the engine died while it started, or failed to ({cause}); its log: {log}"


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


READY = '{"event": "began", "time": 1}\n{"event": "ready", "steps": 60}\n{"event": "step", "step": 2}\n'
RESUMABLE = (
    "the last checkpoint is of step 2; resume with: oger train --recipe r.yaml --oger.run_dir {} --ckpt.load_enable"
)
OF_STEP_2 = "oger train: stopped by {} after step 2 of 60; "
DIED = "oger train: after {}, training stopped at step 3 of 60: the policy died (pid 7); "


def save(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "_actor" / "global_step2").mkdir(parents=True)
    (run_dir / "checkpoints" / "_actor" / "global_step2" / "states.pt").write_bytes(b"s")
    seal(run_dir / "checkpoints", 2)


@pytest.mark.parametrize(
    ("number", "ends", "saved", "code", "last_line"),
    [
        ("SIGUSR1", "stops", "then", 75, OF_STEP_2 + RESUMABLE),
        ("SIGUSR1", "stops", "before", 138, OF_STEP_2 + RESUMABLE),
        ("SIGUSR1", "stops", "never", 138, OF_STEP_2 + "there is no checkpoint to resume from"),
        ("SIGUSR1", "fails", "then", 1, "oger_recipe.base.errors.RunFailed: training stopped at step 3 of 60: "),
        ("SIGTERM", "stops", "then", 75, OF_STEP_2 + RESUMABLE),
        ("SIGTERM", "stops", "before", 143, OF_STEP_2 + RESUMABLE),
        ("SIGTERM", "fails", "never", 143, DIED + "there is no checkpoint to resume from"),
        ("SIGTERM", "fails", "then", 75, DIED + RESUMABLE),
        ("SIGTERM", "finishes", "then", 0, ""),
    ],
)  # fmt: skip
def test_a_run_that_is_asked_ends_with_a_code_of_its_own(
    run_dir: Path, number: str, ends: str, saved: str, code: int, last_line: str, forks: Forks
) -> None:
    """75 only with a checkpoint that the start did not have. A failure after SIGUSR1 is one; SIGTERM may cause one."""
    if saved == "before":
        save(run_dir)
    (run_dir / "events.jsonl").write_text(READY)
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = forks.start("-c", ASKED, str(run_dir), ends, "saves", **piped)
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    if saved == "then":
        save(run_dir)
    running.send_signal(signal.Signals[number])
    said, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == code, shown
    when = {
        "SIGUSR1": "the run ends after this step",
        "SIGTERM": "the run saves a checkpoint of its last step and ends; ",
    }
    assert said.startswith(f"oger train: {number}: {when[number]}")
    assert last_line.format(number, run_dir) in shown
    assert not (run_dir / ".oger-stop").exists()


@pytest.mark.parametrize(
    ("saves", "events", "signals"),
    [
        ("saves", READY, 2),
        ("saves", READY + '{"event": "began", "time": 1}\n', 1),
        ("saves", "", 1),
        ("does not", READY, 1),
    ],
    ids=["the second one", "in a start that is not ready", "in the first start", "without checkpoints"],
)
def test_a_sigterm_that_no_checkpoint_can_follow_ends_the_run_at_once(
    run_dir: Path, saves: str, events: str, signals: int, forks: Forks
) -> None:
    (run_dir / "events.jsonl").write_text(events)
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = forks.start("-c", ASKED, str(run_dir), "waits", saves, **piped)
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    for already in range(signals):
        if already:
            assert running.stdout.readline().startswith("oger train: SIGTERM: the run saves a checkpoint")
        running.send_signal(signal.SIGTERM)
    said, shown = running.communicate(timeout=HANG_S)
    assert (running.returncode, said) == (143, "")
    assert shown.startswith("oger train: stopped by SIGTERM ") and shown.endswith(
        "there is no checkpoint to resume from\n"
    )


@pytest.mark.parametrize(
    ("events", "code", "ended"),
    [(READY, 75, OF_STEP_2 + RESUMABLE), ("", 143, "oger train: stopped by {} before the first step; ")],
    ids=["asked", "ended"],
)
def test_the_same_signal_twice_in_a_moment_is_one(
    run_dir: Path, events: str, code: int, ended: str, forks: Forks
) -> None:
    """As `pkill -f "oger train"` sends it to a run with a supervisor, which passes it on."""
    (run_dir / "events.jsonl").write_text(events)
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = forks.start("-c", ASKED, str(run_dir), "stops", "saves", "1", **piped)
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    if code == 75:
        save(run_dir)
    for _ in range(3):
        running.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    _, shown = running.communicate(timeout=HANG_S)
    assert running.returncode == code and shown.startswith(ended.format("SIGTERM", run_dir))
