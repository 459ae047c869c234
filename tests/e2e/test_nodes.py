"""One command on each of two nodes: two raylets on this machine, with addresses, sockets and logs of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hang import HANG_S
from runs import ROOT, caches_in, lines

from oger_recipe.run_folder import checkpoints

pytestmark = pytest.mark.full
STEPS = 4


class Nodes:
    """Starts scripts/ray/train_oger.sh on both nodes. Each has one logical GPU: policy and engine lie apart."""

    def __init__(self, run_dir: Path, cache: Path, temporary: Path) -> None:
        self.run_dir, self.cache, self.temporary = run_dir, cache, temporary
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, nodes: int = 2, steps: int = STEPS) -> list[subprocess.Popen[str]]:
        with socket.create_server(("127.0.0.2", 0)) as free:
            port = str(free.getsockname()[1])
        common = {"NNODES": str(nodes), "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": port, "RUN_DIR": str(self.run_dir)}
        common |= {"GPUS_PER_NODE": "1", "CPUS_PER_NODE": "4", "RAY_TMPDIR": str(self.temporary)}
        common["OGER_VENV"] = str(Path(os.sys.prefix))
        command = ["bash", str(ROOT / "scripts" / "ray" / "train_oger.sh"), "configs/countdown_cpu_smoke.yaml"]
        command += [*caches_in(self.cache), "--no-oger.val_before_train", "--no-oger.val_after_train", *flags]
        command += ["--oger.total_training_steps", str(steps), "--ckpt.save_steps", "1"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        for rank in range(nodes):
            own = {"NODE_RANK": str(rank), "NODE_ADDRESS": f"127.0.0.{2 + rank}"}
            self.started.append(subprocess.Popen(command, env=os.environ | common | own, text=True, **pipes))
        return self.started[-nodes:]

    def until(self, running: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def steps(self) -> list[int]:
        metrics = self.run_dir / "metrics.jsonl"
        return [record["step"] for record in lines(metrics)] if metrics.exists() else []

    def saved(self) -> int:
        newest = checkpoints.newest_whole(checkpoints.found(self.run_dir / "checkpoints"))
        return newest.step if newest else 0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Nodes]:
    temporary = Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))  # the paths of sockets have to be short
    both = Nodes(tmp_path_factory.mktemp("runs") / "run", cache, temporary)
    yield both
    for process in both.started:
        process.kill()
    shutil.rmtree(temporary, ignore_errors=True)


def started_by(running: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(running.pid).children(recursive=True)


def titles(running: subprocess.Popen[str]) -> str:
    return " ".join(" ".join(each.cmdline()[:1]) for each in started_by(running))


def ends(running: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit codes and messages."""
    outputs = [process.communicate(timeout=HANG_S) for process in running]
    return [(process.returncode, "".join(output)) for process, output in zip(running, outputs, strict=True)]


def test_a_node_that_dies_ends_the_run_with_its_name(nodes: Nodes) -> None:
    head, worker = nodes.start()
    nodes.until(head, lambda: nodes.saved() == 1)
    processes = [*started_by(head), *started_by(worker)]
    [raylet] = [each for each in started_by(worker) if each.name() == "raylet"]
    apart = ("ray::OgerPolicyModelActor", "ray::OgerRolloutActor")
    placed = [[name in titles(node) for name in apart] for node in (head, worker)]
    assert sorted(placed) == [[False, True], [True, False]], placed
    raylet.send_signal(signal.SIGKILL)
    (code, shown), (of_worker, worker_shown) = ends([head, worker])
    assert code == 1 and of_worker == 1
    assert f"training stopped at step 2 of {STEPS}: node rank-1 ({socket.gethostname()}, 127.0.0.3) of the" in shown
    assert ("the policy ran there" if placed[1][0] else "the engine ran there") in shown
    assert "Traceback" not in shown and "node 1: Ray ended before the run did" in worker_shown
    assert "the last checkpoint is of step 1; resume with: " in shown
    assert not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert not list(nodes.temporary.iterdir())


def test_the_run_resumes_on_the_node_that_is_left(nodes: Nodes) -> None:
    """All roles fit into it: Ray counts as many GPUs as a run on the CPU needs."""
    [(code, shown)] = ends(nodes.start("--ckpt.load_enable", nodes=1, steps=2))
    assert code == 0, shown
    assert nodes.steps() == [1, 2]


def test_it_resumes_on_two_nodes_again_and_both_end_well(nodes: Nodes) -> None:
    (code, shown), (of_worker, worker_shown) = ends(nodes.start("--ckpt.load_enable"))
    assert code == of_worker == 0, shown + worker_shown
    assert nodes.steps() == [1, 2, 3, 4]
    logs = {str(path.relative_to(nodes.run_dir / "logs")) for path in (nodes.run_dir / "logs").rglob("*.log")}
    assert "rank-1/raylet.log" in logs and {"rank-1/policy-0.log", "rank-1/engine-0.log"} & logs, logs
    assert not list(nodes.temporary.iterdir()) and not list(nodes.run_dir.parent.glob("*.ray-token*"))
