"""A SLURM on this machine as two nodes: its own ports, folders, munge key and socket, on loopback alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hang import HANG_S

PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])  # where daemons are
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
# A job in `high` preempts one in `low` after a grace period, and one in `cheap` at once.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=20
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=8000 Gres=gpu:8
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=8000 Gres=gpu:8
PartitionName=low Nodes=node1,node2 Default=YES PriorityTier=1 GraceTime=60
PartitionName=cheap Nodes=node1,node2 PriorityTier=1
PartitionName=high Nodes=node1,node2 PriorityTier=10
"""


# slurmd wants a file for every GPU; terminals are files that every machine has.
GPUS = "NodeName=node1 Name=gpu File=/dev/tty[0-7]\nNodeName=node2 Name=gpu File=/dev/tty[0-7]\n"


@dataclass
class Slurm:
    folder: Path  # of its own, and where jobs start

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str, **variables: str) -> str:
        """What a command prints."""
        environment = self.environment | variables
        done = subprocess.run(command, text=True, capture_output=True, env=environment, cwd=self.folder)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *words: str, **variables: str) -> str:
        """Return the job's number."""
        return self.call("sbatch", "--parsable", *words, **variables)

    def of(self, job: str, key: str) -> str:
        """A field of a job, such as JobState."""
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return next(word.removeprefix(f"{key}=") for word in words if word.startswith(f"{key}="))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < deadline, [path.read_text()[-5000:] for path in self.folder.glob("*.log")]
            time.sleep(0.2)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def cancel_all(self) -> None:
        self.call("scancel", "--user=root")
        self.until(lambda: not self.call("squeue", "--noheader"))


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Slurm]:
    """Yield a SLURM whose two nodes are up; afterwards its jobs and daemons are gone."""
    folder.chmod(0o755)  # munged wants its folders so
    for name in ("munge", "state", "spool-node1", "spool-node2"):
        (folder / name).mkdir(mode=0o755)
    key, host = folder / "munge" / "key", socket.gethostname().split(".")[0]
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3)))
    (folder / "gres.conf").write_text(GPUS)
    slurm, daemons = Slurm(folder), contextlib.ExitStack()
    with daemons:
        files = [f"--{name}-file={key.parent}/{name}" for name in ("key", "pid", "log", "seed")]
        daemons.callback(_end, slurm.start("munged", "--foreground", f"--socket={key.parent}/socket", *files))
        slurm.until((key.parent / "socket").exists)
        daemons.callback(_end, slurm.start("slurmctld", "-D"))
        for node in ("node1", "node2"):
            daemons.callback(_end, slurm.start("slurmd", "-D", "-N", node))
        slurm.until(lambda: "2 idle" in slurm.call("bash", "-c", "sinfo --noheader --format '%D %t' || true"))
        daemons.callback(slurm.cancel_all)
        yield slurm


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
