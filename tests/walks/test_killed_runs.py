"""One run that is struck and resumed, by one who types commands and looks at what is left; the quick form
of scripts/chaos.sh.

Its tests follow one another, and each attempt goes on from what those before have left. Steps 1 to 4 are one pass over
the data, so that every problem comes once in them if each attempt goes on exactly where the last checkpoint was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import table
import torch
from attempt import Attempt
from hang import HANG_S
from plan import VICTIMS, Trial
from processes import wait
from runs import ROOT, SCHEDULE, caches_in, differences, lines, samples
from strike import struck

from oger_recipe.base.files import read_jsonl
from oger_recipe.run_folder import checkpoints

STEPS = 4
TO_THE_END = ("--oger.total_training_steps", str(STEPS))
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
        self.run_dir, self.temporary = run_dir, temporary
        self.received = modules / "wandb.jsonl"  # what W&B was given
        self.attempts = 0
        (modules / "wandb.py").write_text(WANDB)
        python_path = filter(None, (str(modules), os.environ.get("PYTHONPATH")))
        self.environment = {"PYTHONPATH": os.pathsep.join(python_path), "WANDB_RECEIVED": str(self.received)}
        self._recipe = ROOT / "configs" / "countdown_cpu_smoke.yaml"
        self._flags = [*caches_in(cache), *TO_THE_END, "--no-oger.val_before_train", "--ckpt.save_steps", "1"]
        self._flags += ["--ckpt.max_num", "1", "--eval.n_samples_per_prompt", "1", *SCHEDULE]

    def attempt(self, key: str = "env") -> Attempt:
        """Start one; ``key``: of W&B, as typed, else from the environment."""
        self.attempts += 1
        environment = self.environment | ({"WANDB_API_KEY": KEY} if key == "env" else {})
        flags = [*self._flags, "--logger.wandb.key", key]
        return Attempt(self._recipe, self.run_dir, self.temporary, *flags, environment=environment)

    def kept(self) -> list[checkpoints.Checkpoint]:
        return checkpoints.found(self.run_dir / "checkpoints")

    def refused(self, *flags: str) -> str:
        command = [sys.executable, "-m", "oger_recipe.cli.train", "--recipe", str(self._recipe)]
        command += ["--oger.run_dir", str(self.run_dir), *self._flags, "--ckpt.load_enable", *flags]
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Terminal]:
    temporary = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))  # the paths of sockets have to be short
    folders = (tmp_path_factory.mktemp("runs") / "run", cache, tmp_path_factory.mktemp("modules"))
    yield Terminal(*folders, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def updates_of(folder: Path, step: int) -> int:
    """Adam's count of the updates that a checkpoint has behind it."""
    (file,) = (folder / "_actor" / f"global_step{step}").glob("*optim_states.pt")
    state = torch.load(file, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"]["state"]
    return int(state[0]["step"])


def test_a_rollout_actor_that_is_killed_ends_the_run_with_a_sentence_and_leaves_nothing(terminal: Terminal):
    """While weights are sent to its engine, which outlived it once, and which everybody else waited for."""
    (actor,) = (each for each in VICTIMS if each.name == "rollout actor")
    with terminal.attempt(key=KEY) as attempt:
        attempt.until_saved(1)
        record = struck(Trial(1, actor, "broadcast", 0.0), attempt, 2, {})
    assert not table.misses(record) and record["end"] == "exit 1"
    printed, pid = attempt.text(), record["pids"][0]
    assert "the rollout actor died (ray::OgerRolloutActor" in printed and f"pid {pid}" in printed
    assert "its memory had peaked at" in printed and f"{terminal.run_dir}/logs/engine-0.log" in printed
    # Weights are sent in a tenth of a second on a fast machine: the strike may land just behind it.
    done = max(each["step"] for each in read_jsonl(terminal.run_dir / "events.jsonl") if each["event"] == "step")
    assert done in (record["step"] - 1, record["step"]) and f"at step {done + 1} of {STEPS}: " in printed
    saved = max(each.step for each in terminal.kept())
    assert f"the last checkpoint is of step {saved}; resume with: python -m oger_recipe.cli.train " in printed
    assert KEY not in printed
    assert "Traceback" in (terminal.run_dir / "logs" / "error.log").read_text()


def test_the_last_attempt_goes_on_to_the_end(terminal: Terminal):
    # Settings that the checkpoint decides cannot change. What was not written to its end does not count.
    other = terminal.refused("--actor.adam.lr", "0.01", "--train.seed", "7")
    assert "actor.adam.lr was 0.0003 -> is 0.01" in other and "train.seed was 42 -> is 7" in other
    done = max(each.step for each in terminal.kept() if each.fault is None)
    (terminal.run_dir / "checkpoints" / "_actor" / f"global_step{done + 1}").mkdir()
    (terminal.run_dir / "checkpoints" / "_actor" / "latest").write_text(f"global_step{done + 1}")

    # Another command beside it is refused.
    with terminal.attempt() as attempt:
        pid = str(attempt.tree.driver.pid)
        assert wait(lambda: pid in (terminal.run_dir / ".oger-lock").read_text(), HANG_S)
        assert f"another run is active in {terminal.run_dir} (process {pid}" in terminal.refused()
        assert attempt.ended(HANG_S) and attempt.code == 0, attempt.text()
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


def test_it_is_the_run_that_nothing_has_stopped(terminal: Terminal, smoke_run: Path):
    assert differences(smoke_run, terminal.run_dir) == []
    assert len({record["actor_lr"] for record in lines(smoke_run / "metrics.jsonl")}) == STEPS
