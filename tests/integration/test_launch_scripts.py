"""The scripts that launch runs, on a machine or cluster of stand-ins that note their calls."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest
import stand_ins
from hang import HANG_S

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.combinations import combination_problems
from oger_recipe.checks.settings import out_of_range
from oger_recipe.cli import train, train_ppo_ray
from oger_recipe.lab import study_solutions
from oger_recipe.run_folder import checkpoints
from oger_recipe.settings.parser import build_parser

ROOT = Path(__file__).parents[2]
NOTE = 'printf "%s\\n" "$(basename "$0") $*" >>"$NOTES/calls"\n'
# Of the steps' own programs: one that starts Ray, and one that clears up.
PYTHON = 'if [[ "$1" == -[cm] ]]; then exec "$REAL_PYTHON" "$@"; fi\n'
STAND_INS = {
    "slurm/scontrol": NOTE + 'case "$*" in\n'
    '"show hostnames"*) printf "%s\\n" $NODES ;;\n'
    '"show config") echo "KillWait                = ${KILL_WAIT:-30} sec" ;;\n'
    '"-o show job 77") echo "JobId=77 JobState=$(cat "$NOTES/state") Requeue=1 PreemptTime=${PREEMPTED:-None} " ;;\n'
    "esac\n",
    # The step's command starts behind srun's flags.
    "slurm/srun": NOTE + 'while [[ "$1" == -* ]]; do shift; done\n'
    'case "$1" in\n'
    'hostname) echo "10.0.0.1 fe80::1" ;; true) exit "${NODE_LOST:-0}" ;; *) exec "$@" ;; esac\n',
    "venv/bin/ray": NOTE + 'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >>"$NOTES/tokens"\n'
    'if [[ -n "${RAY_FAILS:-}" ]]; then exit 1; fi\n'
    'echo $$ >>"$NOTES/ray_pids"\nexec sleep 3600\n',
    # It spreads a recipe over the nodes, or counts them.
    "venv/bin/python": PYTHON + 'if [[ -n "${READS:-}" && $# -gt 1 ]]; then exec "$READS" "$@"; fi\n'
    "if [[ $# -gt 1 ]]; then echo; exit; fi\n"
    'echo $(($(cat "$NOTES/ray_pids" 2>/dev/null | wc -l) - ${NODES_MISSING:-0}))\n',
    "venv/bin/oger": NOTE + 'echo "$RAY_ADDRESS" >"$NOTES/address"\n'
    'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >>"$NOTES/tokens"\n'
    'if [[ -n "${TRAINS_FOR:-}" ]]; then exec sleep "$TRAINS_FOR"; fi\n'
    # Asked to end after its step, which takes a while: by now the script has heard the signal.
    'if [[ -n "${STEP:-}" ]]; then\n'
    'asked="" signals=""\n'
    'for each in TERM USR1; do trap "asked=yes signals+=$each" "$each"; done\n'
    'echo >"$NOTES/trains"\n'
    'while [[ -z "$asked" ]]; do sleep 0.05 || true; done\n'
    "for ((n = 0; n < STEP * 10; n++)); do sleep 0.1 || true; done\n"
    'echo "$signals $(ps -o pid= -p "$(paste -sd, "$NOTES/ray_pids")" | wc -l)" >"$NOTES/ended"\n'
    'exit "${RESULT:-75}"\n'
    "fi\n"
    'exit "${RESULT:-0}"\n',
}


@dataclass
class Cluster:
    """Runs the batch file on nodes that do not exist."""

    folder: Path

    def start(self, nodes: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        job = {"SLURM_JOB_NODELIST": "some[1-9]", "SLURM_JOB_NAME": "oger", "SLURM_JOB_ID": "77"}
        job |= {"SLURM_SUBMIT_DIR": str(ROOT), "OGER_VENV": str(self.folder / "venv"), "POLL_SECONDS": "0.05"}
        job |= {"NODES": nodes, "NOTES": str(self.folder), "CPUS_PER_NODE": "16", "REAL_PYTHON": sys.executable}
        job |= {"RUN_DIR": str(self.folder / "run"), "RAY_TMPDIR": str(self.temporary)}
        self.temporary.mkdir(exist_ok=True)
        self.is_in("RUNNING")
        path = {"PATH": f"{self.folder / 'slurm'}:{os.environ['PATH']}"}
        command = ["bash", str(ROOT / "scripts" / "slurm" / "train_oger.sbatch"), *arguments]
        return subprocess.Popen(
            command,
            env=os.environ | job | path | variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, nodes: str, *arguments: str, **variables: str) -> tuple[int, str]:
        """Exit code and messages."""
        return stand_ins.outcome(self.start(nodes, *arguments, **variables), self.folder)

    def calls(self, program: str) -> list[str]:
        return [line for line in self.lines("calls") if line.startswith(program + " ")]

    def ray_runs(self) -> list[str]:
        """Processes of Ray that are still there."""
        return [pid for pid in self.lines("ray_pids") if Path(f"/proc/{pid}").exists()]

    def is_in(self, state: str) -> None:
        """Set what SLURM says of the job."""
        (self.folder / "state").write_text(state)

    @property
    def temporary(self) -> Path:
        """Where the nodes, which are one machine here, keep Ray's files."""
        return self.folder / "temporary"

    def trains(self) -> None:
        """Wait until the training has begun."""
        deadline = time.monotonic() + HANG_S
        while not (self.folder / "trains").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def queued_again(self) -> bool:
        return "scontrol requeue 77" in self.calls("scontrol")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture()
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    for name, body in STAND_INS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}")
        path.chmod(0o755)
    yield Cluster(tmp_path)
    stand_ins.end_all(tmp_path)


def flag(call: str, name: str) -> str:
    words = call.split()
    return words[words.index(name) + 1]


def test_one_node_is_a_ray_cluster_of_one(cluster: Cluster) -> None:
    code, output = cluster.run("n1", "configs/oger_paper.yaml", "--train.seed", "3", READS=sys.executable)
    assert code == 0, output
    starts = cluster.calls("ray")
    assert len(starts) == 1 and "start --head" in starts[0] and "--num-gpus=8" in starts[0]
    (training,) = cluster.calls("oger")
    assert training.startswith("oger train --recipe configs/oger_paper.yaml ")
    assert training.endswith(" --train.seed 3")
    assert flag(training, "--oger.run_dir") == str(cluster.folder / "run")
    assert flag(training, "--actor.num_nodes") == "1" and flag(training, "--vllm.num_engines") == "4"
    assert "--ckpt.load_enable" not in training
    assert (cluster.folder / "address").read_text() == "10.0.0.1:20077\n"
    assert not cluster.ray_runs()


def test_further_nodes_join_the_first(cluster: Cluster) -> None:
    variables = {"GPUS_PER_NODE": "4", "TENSOR_PARALLEL": "1", "READS": sys.executable}
    code, output = cluster.run("n1 n2 n3", "configs/luffy.yaml", **variables)
    assert code == 0, output
    steps = {
        next(word for word in call.split() if word.startswith("--nodelist=")): call
        for call in cluster.calls("srun")
        if "ray_node.sh" in call
    }
    assert sorted(steps) == ["--nodelist=n1", "--nodelist=n2", "--nodelist=n3"]
    assert "--head --node-ip-address=10.0.0.1 --port=20077" in steps["--nodelist=n1"]
    logs = cluster.folder / "run" / "logs"
    for number, node in enumerate(("n2", "n3"), 1):  # with a folder and logs of its own
        its_own = f"ray_node.sh {cluster.temporary}/oger-77-{number} {logs}/{node} "
        assert its_own + "--address=10.0.0.1:20077 --num-gpus=4 --num-cpus=16" in steps[f"--nodelist={node}"]
    for call in cluster.calls("srun"):
        assert "--overlap" in call and "--nodes=1 --ntasks=1 --cpus-per-task=16" in call
    (training,) = cluster.calls("oger")
    for role in ("actor", "ref", "critic"):
        assert flag(training, f"--{role}.num_nodes") == "3" and flag(training, f"--{role}.num_gpus_per_node") == "4"
    assert flag(training, "--vllm.num_engines") == "12" and flag(training, "--vllm.tensor_parallel_size") == "1"
    assert "3 nodes joined" in output
    assert not cluster.ray_runs()


def test_every_process_of_a_job_has_its_token_and_no_command_line_shows_it(cluster: Cluster) -> None:
    tokens = set()
    for _ in range(2):
        cluster.run("n1 n2", "configs/oger_paper.yaml")
        given = cluster.lines("tokens")
        assert len(given) == 3 and len(set(given)) == 1  # Ray on two nodes, and the trainer
        mode, token = given[0].split()
        assert mode == "token" and len(token) == 64
        assert token not in (cluster.folder / "calls").read_text()
        tokens.add(token)
        for name in ("tokens", "ray_pids"):  # by the latter a job counts its nodes
            (cluster.folder / name).unlink()
    assert len(tokens) == 2  # another job has another one


def test_the_log_of_a_job_that_starts_again_is_continued() -> None:
    assert "#SBATCH --open-mode=append\n" in (ROOT / "scripts" / "slurm" / "train_oger.sbatch").read_text()


def test_a_job_that_starts_again_continues_from_its_checkpoint_or_anew(cluster: Cluster, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "mine"
    (run_dir / "checkpoints").mkdir(parents=True)
    checkpoints.seal(run_dir / "checkpoints", 2)
    again = {"SLURM_RESTART_COUNT": "1", "RUN_DIR": str(run_dir), "READS": sys.executable}
    cluster.run("n1", "configs/oger_paper.yaml", "--overwrite", **again)
    assert "--ckpt.load_enable" in cluster.calls("oger")[-1] and run_dir.exists()
    assert "--overwrite" not in cluster.calls("oger")[-1]  # that was said to the job's first start
    checkpoints.begin(run_dir / "checkpoints", 2)  # and was killed
    (run_dir / "metrics.jsonl").write_text("{}")
    cluster.run("n1", "configs/oger_paper.yaml", **again)
    assert "--ckpt.load_enable" not in cluster.calls("oger")[-1]
    assert [path.name for path in run_dir.parent.iterdir()] == ["mine.attempt-1"]


@pytest.mark.parametrize("said", ["in the recipe", "by a flag"])
def test_a_job_that_starts_again_looks_for_checkpoints_where_its_recipe_and_flags_put_them(
    cluster: Cluster, said: str, tmp_path: Path
) -> None:
    run_dir, elsewhere, recipe = tmp_path / "run", tmp_path / "large disk", tmp_path / "mine.yaml"
    in_recipe = elsewhere if said == "in the recipe" else tmp_path / "of the recipe"
    recipe.write_text(f"extends: {ROOT}/configs/grpo.yaml\nckpt: {{path: '{in_recipe}'}}\n")
    flags = [] if said == "in the recipe" else [f"--ckpt.path={elsewhere}"]
    again = {"SLURM_RESTART_COUNT": "1", "RUN_DIR": str(run_dir), "READS": sys.executable}
    for folder in (run_dir, elsewhere):
        folder.mkdir()
    checkpoints.begin(elsewhere, 2)  # and was killed: this start may overwrite it, as it is no use
    cluster.run("n1", str(recipe), *flags, **again)
    words = cluster.calls("oger")[-1].split()
    assert "--overwrite" in words and "--ckpt.load_enable" not in words
    assert not run_dir.exists() and (tmp_path / "run.attempt-1").is_dir()
    run_dir.mkdir()
    checkpoints.seal(elsewhere, 2)
    cluster.run("n1", str(recipe), *flags, **again)
    words = cluster.calls("oger")[-1].split()
    assert "--overwrite" not in words and "--ckpt.load_enable" in words and run_dir.exists()


def test_the_result_of_the_training_is_the_jobs(cluster: Cluster) -> None:
    code, _ = cluster.run("n1 n2", "configs/oger_paper.yaml", RESULT="3")
    assert code == 3
    assert not cluster.ray_runs()


def test_nodes_that_do_not_join_end_the_job(cluster: Cluster) -> None:
    (cluster.folder / "venv" / "bin" / "python").write_text(f"#!/usr/bin/env bash\n{PYTHON}echo 1\n")
    code, output = cluster.run("n1 n2", "configs/oger_paper.yaml", JOIN_SECONDS="1")
    assert code == 1 and "not all of n1 n2 joined within 1 s" in output
    assert not cluster.calls("oger") and not cluster.ray_runs()


def test_a_ray_that_does_not_start_ends_the_job(cluster: Cluster) -> None:
    code, output = cluster.run("n1", "configs/oger_paper.yaml", RAY_FAILS="1")
    assert code == 1 and "Ray did not start on every node" in output
    assert not cluster.calls("oger")


def steps_of(script: subprocess.Popen[str]) -> list[psutil.Process]:
    """The programs that run on the nodes."""
    found = []
    for each in psutil.Process(script.pid).children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "ray_node.sh" in " ".join(each.cmdline()):
                found.append(each)
    return found


def everything(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [below for each in processes for below in (*each.children(recursive=True), each)]


def send_term(processes: list[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.Error):  # the sleep of a moment has ended
            each.terminate()


def ended(cluster: Cluster, script: subprocess.Popen[str]) -> int:
    """The exit code, once it is seen that nothing is left."""
    code, messages = stand_ins.outcome(script, cluster.folder)
    assert not list(cluster.temporary.iterdir()), messages
    return code


@pytest.mark.parametrize("signals_all", [True, False], ids=["and its processes", "alone"])
def test_a_job_that_is_preempted_after_a_grace_period_saves_a_checkpoint_and_is_queued_again(
    cluster: Cluster, signals_all: bool
) -> None:
    """SLURM signals the steps and not the script; Ray is needed until the trainer has ended."""
    script = cluster.start("n1 n2", "configs/oger_paper.yaml", STEP="1", PREEMPTED="2026-11-23T16:35:57")
    cluster.trains()
    send_term(everything(steps_of(script)) if signals_all else steps_of(script))
    assert ended(cluster, script) == 75
    assert cluster.lines("ended") == ["TERM 2"]  # one signal, and Ray on both nodes
    assert cluster.queued_again()


@pytest.mark.parametrize(
    ("variables", "queued"),
    [
        ({"PREEMPTED": "2026-11-23T16:35:57", "RESULT": "143"}, True),  # without a checkpoint
        ({"PREEMPTED": "2026-11-23T16:35:57", "RESULT": "0"}, False),  # it was at its end
        ({}, False),  # `scancel --signal TERM`
        ({"REQUEUE": "yes"}, True),
        ({"REQUEUE": "yes", "RESULT": "143"}, False),
    ],
)
def test_a_job_whose_steps_get_sigterm_is_queued_again_where_it_is_preempted_or_asks_for_it(
    cluster: Cluster, variables: dict[str, str], queued: bool
) -> None:
    script = cluster.start("n1", "configs/oger_paper.yaml", STEP="0", **variables)
    cluster.trains()
    send_term(steps_of(script))
    assert ended(cluster, script) == int(variables.get("RESULT", "75"))
    assert cluster.queued_again() == queued


@pytest.mark.parametrize("signals_all", [True, False], ids=["and its processes", "alone"])
def test_a_job_that_slurm_ends_has_one_signal_for_its_trainer_and_is_not_queued_again(
    cluster: Cluster, signals_all: bool
) -> None:
    """By scancel, at its time limit, or where SLURM itself queues it again: preempted without a grace period."""
    script = cluster.start("n1 n2", "configs/oger_paper.yaml", STEP="1", REQUEUE="yes")
    cluster.trains()
    cluster.is_in("COMPLETING")
    main = psutil.Process(script.pid)
    send_term(everything([main]) if signals_all else [*steps_of(script), main])
    assert ended(cluster, script) == 75
    assert cluster.lines("ended") == ["TERM 2"]
    assert not cluster.queued_again()


def test_a_job_that_slurm_ends_is_done_before_slurm_kills_it(cluster: Cluster) -> None:
    script = cluster.start("n1 n2", "configs/oger_paper.yaml", STEP="3600", KILL_WAIT="11")
    cluster.trains()
    cluster.is_in("COMPLETING")
    script.terminate()
    assert ended(cluster, script) == 128 + signal.SIGKILL


def test_a_job_that_is_preempted_before_it_trains_is_queued_again(cluster: Cluster) -> None:
    script = cluster.start("n1 n2", "configs/oger_paper.yaml", NODES_MISSING="1", PREEMPTED="2026-11-23T16:35:57")
    deadline = time.monotonic() + HANG_S
    while len(cluster.ray_runs()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    send_term(steps_of(script))
    assert ended(cluster, script) == 143
    assert cluster.queued_again() and not cluster.calls("oger")


def test_a_cancelled_job_leaves_nothing_behind(cluster: Cluster) -> None:
    script = cluster.start("n1 n2", "configs/oger_paper.yaml", TRAINS_FOR="3600")
    deadline = time.monotonic() + HANG_S
    while not cluster.calls("oger") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(cluster.ray_runs()) == 2
    cluster.is_in("CANCELLED")
    script.terminate()
    assert ended(cluster, script) == 143


def test_processes_that_block_sigterm_still_do_after_they_have_started_others() -> None:
    """As an engine's actor does, whose own Ray blocks it."""
    program = (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\nimport oger_recipe.pipeline\n"
        "from multiprocessing import resource_tracker\nresource_tracker.ensure_running()\n"
        "print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"


@pytest.mark.parametrize("lost", [True, False])
def test_a_job_that_fails_is_queued_again_only_if_a_node_does_not_answer(cluster: Cluster, lost: bool) -> None:
    code, output = cluster.run("n1 n2", "configs/oger_paper.yaml", RESULT="1", NODE_LOST=str(int(lost)))
    assert code == 1
    assert cluster.queued_again() == lost == ("not all of n1 n2 answer" in output)


def test_files_of_an_earlier_start_that_was_killed_are_removed(cluster: Cluster) -> None:
    (cluster.temporary / "oger-77-0" / "session").mkdir(parents=True)
    code, output = cluster.run("n1", "configs/oger_paper.yaml")
    assert code == 0, output
    assert not list(cluster.temporary.iterdir())


def test_the_batch_file_wants_a_recipe(cluster: Cluster) -> None:
    code, output = cluster.run("n1", "--train.seed", "3")
    assert code == 2 and output.startswith("usage: sbatch")
    assert not cluster.calls("srun")


@pytest.fixture()
def trained(cluster: Cluster) -> Callable[..., list[str]]:
    """The words of the command that train_oger.sh runs."""

    def words(*arguments: str, **variables: str) -> list[str]:
        script = cluster.folder / "venv" / "bin" / "oger"
        script.write_text('#!/usr/bin/env python3\nimport json, sys\nprint("RAN " + json.dumps(sys.argv[1:]))\n')
        result = subprocess.run(
            ["bash", str(ROOT / "scripts" / "train_oger.sh"), *arguments],
            env=os.environ | {"OGER_VENV": str(cluster.folder / "venv")} | variables,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        shown, ran = result.stdout.splitlines()
        assert shown.startswith("train_oger: ") and "oger train --recipe" in shown
        return json.loads(ran.removeprefix("RAN "))

    return words


def test_train_oger_takes_a_recipe_and_flags(trained: Callable[..., list[str]]) -> None:
    words = trained("configs/grpo.yaml", "--oger.stop", "a b", MODEL="", DATA="", VAL="")
    assert words == ["train", "--recipe", "configs/grpo.yaml", "--oger.stop", "a b"]


def test_train_oger_takes_model_and_data_from_variables(trained: Callable[..., list[str]]) -> None:
    words = trained("configs/grpo.yaml", "--train.seed=3", MODEL="my model", DATA="d.parquet", VAL="aime24")
    assert words[3:] == [
        *("--actor.model_name_or_path", "my model", "--data.prompt_dataset", "d.parquet"),
        *("--eval.dataset", "aime24", "--train.seed=3"),
    ]


def test_train_oger_without_a_recipe_says_how_it_is_called() -> None:
    result = subprocess.run(["bash", str(ROOT / "scripts" / "train_oger.sh")], capture_output=True, text=True)
    assert result.returncode == 2 and "scripts/train_oger.sh configs/oger_paper.yaml" in result.stderr


# Trains by leaving what a run leaves; the values in $REFUSED fail in a dry run, those in $FAIL after a checkpoint.
TRAINS = r"""#!/usr/bin/env python3
import json, os, pathlib, sys, time
words = sys.argv[1:]
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps(words) + "\n")
if words[1] == "oger_recipe.cli.train":
    value = next((word.split("=", 1)[1] for word in words if word.startswith("--x.value=")), "")
    dry, run = "--dry-run" in words, pathlib.Path(words[words.index("--oger.run_dir") + 1])
    if dry:
        sys.exit("oger train: no such value" if value in os.environ.get("REFUSED", "").split() else 0)
    for name in ("checkpoints", "samples"):
        (run / name).mkdir(parents=True, exist_ok=True)
    (run / "samples" / "step_00001.jsonl").touch()
    if os.environ.get("HANGS"):
        pathlib.Path(os.environ["HANGS"]).write_text(str(os.getpid()))
        time.sleep(60)
    (run / "checkpoints" / "global_step1.json").write_text(os.environ.get("MANIFEST", '{"facts": {}}'))
    if os.environ.get("METRICS"):
        (run / "metrics.jsonl").write_text("{}")
    if (value or run.parent.name) in os.environ.get("FAIL", "").split():
        sys.exit(int(os.environ.get("CODE", "1")))
    (run / "summary.json").write_text(json.dumps({"finished": True}, indent=1))
elif words[2] == "has":
    sys.exit(0 if os.environ.get("HAS") else 1)
"""


@dataclass
class Sweep:
    """scripts/sweep.sh over --x.value, or another script that trains one run after the other."""

    folder: Path

    def run(self, *words: str, **variables: str) -> tuple[int, str]:
        return self.script("sweep.sh", "--x.value", *words, **variables)

    def script(self, name: str, *words: str, **variables: str) -> tuple[int, str]:
        begun = self.begin(name, *words, **variables)
        output, _ = begun.communicate()
        return begun.returncode, output

    def begin(self, name: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        environment = {"OGER_VENV": str(self.folder / "venv"), "NOTES": str(self.folder / "notes")}
        (self.folder / "notes").write_text("")
        return subprocess.Popen(
            ["bash", str(ROOT / "scripts" / name), *words],
            env=os.environ | environment | {"SWEEP_DIR": "sweep"} | variables,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def calls(self) -> list[list[str]]:
        """The words of every training, and of the drawing."""
        return [json.loads(line)[1:] for line in (self.folder / "notes").read_text().splitlines()]

    def trained(self) -> list[str]:
        """The values that were trained, after all the dry runs."""
        calls = [call[1:] for call in self.calls() if call[0] == "oger_recipe.cli.train"]
        dry = ["--dry-run" in call for call in calls]
        assert dry == sorted(dry, reverse=True)
        trained = [call for call in calls if "--dry-run" not in call]
        return [word.removeprefix("--x.value=") for call in trained for word in call if word.startswith("--x.value=")]


@pytest.fixture()
def sweep(tmp_path: Path) -> Sweep:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(TRAINS)
    python.chmod(0o755)
    made_of = b"".join((ROOT / name).read_bytes() for name in ("requirements.lock", "setup.cfg"))
    # By which scripts/setup.sh knows an environment that it has finished.
    (tmp_path / "venv" / f".oger-lock-{hashlib.sha256(made_of).hexdigest()}").write_text(str(ROOT.resolve()))
    return Sweep(tmp_path)


def test_a_sweep_trains_nothing_until_every_value_is_checked(sweep: Sweep) -> None:
    kept = sweep.folder / "sweep" / "2" / "metrics.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    code, output = sweep.run("1", "2", "3", "--recipe", "no_such.yaml", REFUSED="2")
    assert code == 1 and not sweep.trained() and kept.exists()
    assert "oger train: no such value\nsweep: --x.value 2 is refused\nsweep: nothing was started\n" in output


def test_a_sweep_loses_no_run_to_a_value_that_fails(sweep: Sweep) -> None:
    code, output = sweep.run("1", "2", "3", "--recipe", "a b.yaml", FAIL="2")
    assert code == 1 and sweep.trained() == ["1", "2", "3"]
    assert output.endswith("sweep: failed: --x.value 2; their messages are above\n")
    folder = sweep.folder / "sweep"
    of_finished = [str(folder / "1"), str(folder / "3"), "--out", str(folder / "report.html")]
    assert sweep.calls()[-1] == ["oger_recipe.cli.report", *of_finished]
    assert sweep.calls()[3] == [
        "oger_recipe.cli.train", "--recipe", "a b.yaml", "--x.value=1", "--oger.run_dir",
        str(sweep.folder / "sweep" / "1"),
    ]  # fmt: skip


def test_a_sweep_that_goes_on_keeps_what_is_done_and_resumes_what_is_not(sweep: Sweep) -> None:
    sweep.run("1", "2", FAIL="2")
    code, output = sweep.run("1", "2")
    assert code == 0 and sweep.trained() == ["2"] and "sweep: --x.value 1 is done" in output
    assert all("--ckpt.load_enable" in call for call in sweep.calls()[:-1])


def test_a_sweep_removes_only_when_it_is_told_to(sweep: Sweep) -> None:
    """By the flag of oger train, which it hands on; and a checkpoint without end is nothing to go on from."""
    sweep.run("1", "2", FAIL="2")
    code, _ = sweep.run("1", "2", "--overwrite")
    assert code == 0 and sweep.trained() == ["2"]
    for call in sweep.calls()[:-1]:
        assert "--overwrite" in call and "--ckpt.load_enable" not in call
    sweep.run("3", FAIL="3", MANIFEST='{"step": 1}')
    sweep.run("3")
    assert not any({"--overwrite", "--ckpt.load_enable"} & set(call) for call in sweep.calls())


@pytest.mark.parametrize("stopped", ["130", "143", "138", "75"])
def test_a_sweep_that_is_stopped_trains_no_further_value(sweep: Sweep, stopped: str) -> None:
    """By a signal, or after a step, as a run was asked to: 75 and 138."""
    code, output = sweep.run("1", "2", FAIL="1", CODE=stopped)
    assert code == int(stopped) and sweep.trained() == ["1"] and "failed" not in output
    code, _ = sweep.run("1", "2")
    assert code == 0 and sweep.trained() == ["1", "2"]


@pytest.mark.parametrize("script", [("sweep.sh", "--x.value", "1"), ("study.sh",)], ids=lambda script: script[0])
def test_a_script_that_is_killed_ends_its_run(sweep: Sweep, script: tuple[str, ...]) -> None:
    hangs = sweep.folder / "hangs"
    begun = sweep.begin(*script, HANGS=str(hangs), STUDY_DIR=str(sweep.folder / "study"))
    while begun.poll() is None and not (hangs.exists() and hangs.read_text()):
        time.sleep(0.05)
    run = psutil.Process(int(hangs.read_text()))
    begun.terminate()
    assert begun.wait() == -signal.SIGTERM
    run.wait(10)


def test_no_value_of_a_sweep_leads_out_of_its_folder(sweep: Sweep) -> None:
    values = ["-1e-6", "../..", ".", "models/a b", "models_a b", "50%", "50%2F"]
    code, output = sweep.run(*values)
    assert code == 0, output
    assert sweep.trained() == values
    folders = {unquote(path.name) for path in (sweep.folder / "sweep").iterdir()}
    assert folders == set(values) and all(path.is_dir() for path in (sweep.folder / "sweep").iterdir())
    code, output = sweep.run("1", "")
    assert code == 1 and not sweep.trained() and "a value of --x.value is empty" in output


def test_a_study_leaves_it_to_the_run_what_of_its_folder_goes(sweep: Sweep) -> None:
    """oger train --overwrite checks first, and removes its own files alone."""
    kept = sweep.folder / "study" / "beyond_reach" / "grpo" / "1" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    chosen = {"STUDY_DIR": str(sweep.folder / "study"), "SEEDS": "1", "ARMS": "grpo", "REGIMES": "beyond_reach"}
    code, output = sweep.script("study.sh", **chosen)
    assert code == 0, output
    (training,) = [call for call in sweep.calls() if call[0] == "oger_recipe.cli.train"]
    assert training[training.index("--oger.run_dir") + 1] == str(kept.parent) and "--overwrite" in training
    assert kept.read_text() == "mine"


def test_a_study_of_rivals_runs_every_arm_where_it_belongs_and_one_that_fails_is_kept(sweep: Sweep) -> None:
    """A run that fails after a step is a line of the results, and the others go on; one that cannot begin ends all."""
    chosen = {"STUDY_DIR": str(sweep.folder / "study"), "SEEDS": "10"}
    code, output = sweep.script("study.sh", "rivals", **chosen)
    assert code == 0, output
    runs = [call[3:] for call in sweep.calls() if call[1] == "add"]
    within, beyond = (
        [arm for regime, arm, _ in runs if regime == f"rivals_{of}_reach"] for of in ("within", "beyond")
    )
    both = ["luffy", "oger", "chord", "hpt", "luffy_clip", "luffy_low", "oger_clip", "oger_low"]
    assert within == ["start", "grpo", "grpo_kl", "grpo_entropy", "grpo_low", "grpo_unclipped", *both]
    assert beyond == ["start", "sft_grpo", *both]
    assert {seed for _, _, seed in runs} == {"10"} and "study: 0 runs are left" in output
    assert _problems(sweep) == []
    code, output = sweep.script("study.sh", "rivals", **chosen, ARMS="luffy hpt", FAIL="luffy", METRICS="1")
    assert code == 0, output
    ended = [(call[1], *call[4:]) for call in sweep.calls() if call[1] in ("add", "failed")]
    assert ("failed", "luffy", "10", "1") in ended and ("add", "hpt", "10") in ended
    code, _ = sweep.script("study.sh", "rivals", **chosen, ARMS="luffy hpt", FAIL="luffy")
    assert code == 1 and "failed" not in [call[1] for call in sweep.calls()]


def test_a_study_of_solutions_runs_every_arm_that_its_table_knows(sweep: Sweep) -> None:
    chosen = {"STUDY_DIR": str(sweep.folder / "study"), "SEEDS": "20"}
    code, output = sweep.script("study.sh", "solutions", **chosen, ARMS=" ".join(list(study_solutions.ARMS)[1:]))
    assert code == 0, output
    assert [call[4] for call in sweep.calls() if call[1] == "add"] == list(study_solutions.ARMS)
    trained = [call for call in sweep.calls() if "--train.seed" in call]
    flags = {Path(call[call.index("--oger.run_dir") + 1]).parent.name: " ".join(call) for call in trained}
    assert {arm for arm in flags if "teacher_solutions same" in flags[arm]} == {"luffy_same"}
    assert {arm for arm in flags if '"kind":"uniqueness"' in flags[arm]} == {"uniqueness", "darling"}
    assert {arm for arm in flags if "--no-oger.loss_remove_clip" not in flags[arm]} == {"start"}
    assert _problems(sweep) == []


def test_a_confirmation_trains_clipped_arms_for_longer_from_both_policies(sweep: Sweep) -> None:
    code, output = sweep.script("study.sh", "confirm", STUDY_DIR=str(sweep.folder / "study"), SEEDS="30 31")
    assert code == 0, output
    runs = [call[3:] for call in sweep.calls() if call[:2] == ["oger_recipe.lab.study_solutions", "add"]]
    of_seeds = {seed: [(regime, arm) for regime, arm, number in runs if number == seed] for seed in ("30", "31")}
    regimes, arms = ("many_solutions", "many_solutions_other"), ("start", "grpo_low", "luffy", "luffy_low")
    assert of_seeds["30"] == [(regime, arm) for regime in regimes for arm in arms]
    assert of_seeds["31"] == [(regime, arm) for regime in regimes for arm in arms[1:]]
    calls = [" ".join(call) for call in sweep.calls() if "--train.seed" in call]
    trained = [call for call in calls if "/start/" not in call]
    longer = "--oger.total_training_steps 100 --train.num_episodes 2 --eval.steps 20"
    assert all(longer in call and "--no-oger.loss_remove_clip" in call for call in trained)
    assert not [call for call in calls if call not in trained and longer in call]
    assert sum("--actor.adam.lr 1e-4" in call for call in trained) == 8  # two of three arms
    assert _problems(sweep) == []


def test_a_study_on_text_starts_every_arm_from_one_policy_and_its_own_data(sweep: Sweep) -> None:
    folder = sweep.folder / "study"
    code, output = sweep.script("study.sh", "text", STUDY_DIR=str(folder), SEEDS="40 41", BASE="a/model")
    assert code == 0, output
    assert ["oger_recipe.lab.word_problems", str(folder / "data")] in [call[:2] for call in sweep.calls()]
    start, *others = [" ".join(call) for call in sweep.calls() if "--train.seed" in call]
    assert "--actor.model_name_or_path a/model" in start and "--oger.sft.max_samples" in start
    policy = folder / "word_problems" / "start" / "40" / "supervised_model"
    assert len(others) == 10 and all(f"--actor.model_name_or_path {policy}" in each for each in others)
    assert not [each for each in others if "--oger.sft" in each]
    assert all("--no-oger.loss_remove_clip" in each for each in others)
    data = f"--data.prompt_dataset {folder}/data/train.jsonl --eval.dataset {folder}/data/held_out.jsonl"
    assert all(data in each for each in (start, *others))
    assert sum("--oger.teacher_sources forward" in each for each in others) == 2  # one teacher
    assert sum("--oger.grader initial" in each for each in others) == 2
    assert _problems(sweep) == []
    # Lines of another machine lack the policy: it is made once more, and its line is not.
    (folder / "data").mkdir(exist_ok=True)
    for is_policy, trained in ((False, [start]), (True, [])):
        if is_policy:
            policy.mkdir(parents=True)
        code, output = sweep.script("study.sh", "text", STUDY_DIR=str(folder), SEEDS="40 41", BASE="a/model", HAS="1")
        assert code == 0, output
        assert [" ".join(call) for call in sweep.calls() if "--train.seed" in call] == trained
        assert not [call for call in sweep.calls() if call[1] == "add"]


def test_a_study_of_a_fair_prm_makes_it_once_and_evaluates_it_on_rollouts_that_it_has_not_seen(sweep: Sweep) -> None:
    folder = sweep.folder / "study"
    chosen = {"STUDY_DIR": str(folder), "SEEDS": "51", "ARMS": "sum_outcome appo_rule"}
    regimes = ("fair_steps_beyond_reach", "fair_steps_within_reach")
    for regime in regimes:  # labels of runs that are not run here
        (folder / "prm" / regime).mkdir(parents=True)
        for seed in range(5):
            (folder / "prm" / regime / f"{seed}.labels.jsonl").write_text("{}\n")
    code, output = sweep.script("study.sh", "fair", **chosen)
    assert code == 0, output
    of_prm = [call[1:] for call in sweep.calls() if call[:2] == ["oger_recipe.cli.main", "prm"]]
    learnt, *evaluated = ([path for path in call if path.endswith("labels.jsonl")] for call in of_prm)
    assert learnt == [f"{folder}/prm/{regime}/{seed}.labels.jsonl" for regime in regimes for seed in range(4)]
    assert evaluated == [[f"{folder}/prm/{regime}/4.labels.jsonl"] for regime in regimes]
    trained = [" ".join(call) for call in sweep.calls() if "--train.seed" in call]
    assert len(trained) == 4 and all(f'"model":"{folder}/prm/model"' in each for each in trained)
    weights = [re.findall(r'"weight":(\d)', each) for each in trained]
    assert weights == [["1", "1"], ["0", "1"]] * 2
    # What is there is not made again: of a PRM that is trained, the figures.
    (folder / "prm" / "model").mkdir()
    code, output = sweep.script("study.sh", "fair", **chosen)
    assert code == 0 and {call[2] for call in sweep.calls() if call[:2] == ["oger_recipe.cli.main", "prm"]} == {"eval"}
    for regime in regimes:
        (folder / "prm" / f"{regime}.json").touch()
    code, output = sweep.script("study.sh", "fair", **chosen)
    assert code == 0 and not [call for call in sweep.calls() if call[:2] == ["oger_recipe.cli.main", "prm"]]


@pytest.mark.parametrize(("study", "seed"), [("parts", "0"), ("steps", "1"), ("fair", "50")])
def test_what_the_other_studies_train_with_are_settings_that_go_together(sweep: Sweep, study: str, seed: str) -> None:
    """Those of the PRM's rollouts and of its base, too."""
    code, output = sweep.script("study.sh", study, STUDY_DIR=str(sweep.folder / "study"), SEEDS=seed)
    assert code == 0, output
    assert _problems(sweep) == []


def _problems(sweep: Sweep) -> list[str]:
    """Return what ``oger train`` would refuse of the settings of a script's trainings."""
    calls = [call[1:] for call in sweep.calls() if call[0] == "oger_recipe.cli.train"]
    assert len(calls) > 3
    parser, found = build_parser(cpu=True), []
    for call in calls:
        known, flags = train.options().parse_known_args(call)
        value = train_ppo_ray.settings_of(parser, flags, ROOT / known.recipe, train_judges=False)
        found += [*out_of_range(value), *combination_problems(value)]
    return found


def test_setup_empties_no_folder_that_it_has_not_made(tmp_path: Path) -> None:
    """OGER_VENV names a folder that is somebody's, with a log of its own in it."""
    for name in ("setup.log", "precious.csv"):
        (tmp_path / name).write_text("mine")
    nowhere = {"OGER_VENV": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
    command = ["bash", str(ROOT / "scripts" / "setup.sh")]
    result = subprocess.run(command, env=os.environ | nowhere, capture_output=True, text=True)
    assert result.returncode == 1 and "is not a working Python 3.11 environment with pip" in result.stderr
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {"setup.log": "mine", "precious.csv": "mine"}


def layout(call: str, *names: str) -> list[str]:
    """The value of each flag by the script; a dash where it gives none."""
    return [flag(call, f"--{name}") if f"--{name} " in call else "-" for name in names]


ENGINES = ("vllm.tensor_parallel_size", "vllm.num_engines", "actor.num_gpus_per_node")


@pytest.mark.parametrize(
    ("recipe", "words", "variables", "engines"),
    [
        ("grm_multi_rm.yaml", ["--max-restarts", "2"], {}, ["4", "2", "8"]),
        ("oger.yaml", ["--vllm.tensor_parallel_size=8", "--overwrite"], {}, ["8", "1", "8"]),
        ("oger.yaml", [], {"TENSOR_PARALLEL": "4"}, ["4", "2", "8"]),
        # The policy and the engines have GPUs of their own.
        pytest.param("oat_countdown_grpo.yaml", [], {}, ["-", "-", "-"], marks=pytest.mark.full),
    ],
)
def test_engines_are_as_wide_as_the_recipe_says_unless_the_user_says_otherwise(
    cluster: Cluster, recipe: str, words: list[str], variables: dict[str, str], engines: list[str]
) -> None:
    code, output = cluster.run("n1", f"configs/{recipe}", *words, READS=sys.executable, **variables)
    assert code == 0, output
    assert layout(cluster.calls("oger")[0], *ENGINES) == engines
    assert cluster.calls("oger")[0].endswith(" ".join(words))


@pytest.mark.parametrize(
    ("recipe", "gpus", "tensor_parallel", "reason"),
    [
        ("oger.yaml", 8, "3", "engines of 3 GPUs do not fit the job's 8: set TENSOR_PARALLEL"),
        ("oger.yaml", 1, "", "engines of 2 GPUs do not fit the job's 1: set TENSOR_PARALLEL"),
        ("oger.yaml", 8, "two", "TENSOR_PARALLEL is two, not a number of GPUs"),
        ("oger.yaml", 8, "0", "TENSOR_PARALLEL is 0, not a number of GPUs"),
        ("oat_countdown_grpo.yaml", 8, "2", "is for recipes with train"),
        ("no_such.yaml", 8, "", "configs/no_such.yaml"),
    ],
)
def test_what_does_not_fit_the_jobs_gpus_is_refused(
    recipe: str, gpus: int, tensor_parallel: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    machine_flags = runpy.run_path(str(ROOT / "scripts" / "machine_flags.py"))["machine_flags"]
    with pytest.raises(RecipeError, match=re.escape(reason)):
        machine_flags(1, gpus, tensor_parallel, f"configs/{recipe}")


def test_a_job_that_does_not_fit_starts_nothing(cluster: Cluster) -> None:
    code, output = cluster.run("n1", "configs/oger.yaml", TENSOR_PARALLEL="3", READS=sys.executable)
    assert code != 0 and "train_oger: engines of 3 GPUs" in output and "Traceback" not in output
    assert not cluster.calls("srun") and not cluster.calls("oger")


def test_slurm_signals_the_script_before_the_time_limit() -> None:
    """And nobody else: to Ray's steps the signal would be the end."""
    assert "#SBATCH --signal=B:USR1@" in (ROOT / "scripts" / "slurm" / "train_oger.sbatch").read_text()


@pytest.mark.parametrize(("requeue", "queued"), [("", []), ("yes", ["scontrol requeue 77"])])
def test_a_job_whose_time_is_nearly_up_ends_after_its_step_and_is_queued_again_where_that_is_asked_for(
    cluster: Cluster, requeue: str, queued: list[str]
) -> None:
    process = cluster.start("n1 n2", "configs/oger_paper.yaml", STEP="1", REQUEUE=requeue)
    cluster.trains()
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 75, errors
    assert [call for call in cluster.calls("scontrol") if "show" not in call] == queued
    assert not cluster.ray_runs()


def test_a_job_that_ended_otherwise_is_not_queued_again(cluster: Cluster) -> None:
    for result in ("0", "1"):
        code, _ = cluster.run("n1", "configs/oger_paper.yaml", RESULT=result, REQUEUE="yes")
        assert code == int(result)
    assert not [call for call in cluster.calls("scontrol") if "requeue" in call]


def test_a_job_whose_time_is_nearly_up_before_it_trains_ends_at_once(cluster: Cluster) -> None:
    (cluster.folder / "venv" / "bin" / "python").write_text(
        f'#!/usr/bin/env bash\n{PYTHON}if [[ $# -gt 1 ]]; then echo 2; else touch "$NOTES/waits"; echo 0; fi\n'
    )
    process = cluster.start("n1", "configs/oger_paper.yaml")
    deadline = time.monotonic() + HANG_S
    while not (cluster.folder / "waits").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 138 and "nothing is trained yet" in errors
    assert not cluster.calls("oger") and not cluster.ray_runs()
