"""Supervised examples: the tokens of the teachers' store, with an end where the trajectory has one."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.files import read_jsonl
from oger_recipe.checks.job import Job
from oger_recipe.pipeline.policy import adapters
from oger_recipe.pipeline.policy.sft import TeacherDataset, WholeModels
from oger_recipe.run.sft import _flags, _write_examples, supervise
from oger_recipe.teachers.store import Teacher, write_teacher_store


@pytest.fixture
def examples(tmp_path: Path, parser: argparse.ArgumentParser, policy_folder: Path) -> tuple:
    """A prompt with a whole trajectory and one with a cut one, as the run writes and reads them; and the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    whole = [*tokenizer("3*4=12")["input_ids"], tokenizer.eos_token_id]
    cut = tokenizer("3+4=")["input_ids"]
    teachers = {uid: [Teacher(uid, "", tokens, 1.0, 1.0)] for uid, tokens in (("whole", whole), ("cut", cut))}
    write_teacher_store(teachers, tmp_path / "teachers.arrow")
    rows = [{"prompt": f"make {uid}", "label": json.dumps({"uid": uid})} for uid in teachers]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = parser.parse_args(["--actor.model_name_or_path", str(policy_folder), "--data.apply_chat_template"])
    assert _write_examples(vars(settings), tmp_path, tmp_path / "supervised.jsonl") == 2
    dataset = TeacherDataset(
        list(read_jsonl(tmp_path / "supervised.jsonl")), tokenizer, 128, SimpleNamespace(), pretrain_mode=False
    )
    return dataset, tokenizer, {"whole": whole, "cut": cut}


def test_examples_are_the_prompt_as_sampled_and_the_tokens_of_the_store_cut_ones_without_an_end(examples) -> None:
    dataset, tokenizer, responses = examples
    found = {}
    for number in range(len(dataset)):
        tokens, attention, loss_mask = dataset[number]
        learnt = tokens[0, 1:][loss_mask[0, :-1].bool()].tolist()  # the mask speaks of the token that follows
        prompt = tokens[0].tolist()[: -len(learnt)]
        assert attention.tolist() == [[1] * tokens.shape[1]] and loss_mask[0, -1] == 0
        found[tokenizer.decode(prompt)] = learnt
    assert found == {
        tokenizer.apply_chat_template(
            [{"role": "user", "content": f"make {uid}"}], tokenize=False, add_generation_prompt=True
        ): tokens
        for uid, tokens in responses.items()
    }


def test_a_batch_is_padded_on_the_right(examples) -> None:
    dataset, tokenizer, _ = examples
    tokens, attention, loss_mask = dataset.collate_fn([dataset[0], dataset[1]])
    for row in range(2):
        length = dataset[row][0].shape[1]
        assert tokens[row].tolist() == dataset[row][0][0].tolist() + [tokenizer.pad_token_id] * (
            tokens.shape[1] - length
        )
        assert attention[row].sum() == length and loss_mask[row, length - 1 :].sum() == 0


# In place of the training: ranks that exchange a number, and what listens then of them and of torchrun.
RANK = """
import json, os, sys
from pathlib import Path
if sys.argv[1] == os.devnull:
    sys.exit(1)
import psutil, torch
import torch.distributed as dist
from oger_recipe.patches import torch_store_address
torch_store_address.apply()
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
if dist.get_rank() == 0:
    torchrun = psutil.Process(os.getppid())
    each = [one for process in (torchrun, *torchrun.children()) for one in process.net_connections("tcp")]
    addresses = [one.laddr.ip for one in each if one.status == psutil.CONN_LISTEN]
    Path(sys.argv[1]).mkdir()
    chosen = [os.environ.get(name) for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME")]
    (Path(sys.argv[1]) / "config.json").write_text(json.dumps([total.item(), addresses, chosen]))
dist.barrier()
"""


@pytest.mark.parametrize("struck", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_the_stage_ends_with_the_command(tmp_path: Path, struck: signal.Signals) -> None:
    """torchrun as it is; its process, which has a session of its own, goes on for as long as it may."""
    rank, driver, pid = tmp_path / "rank.py", tmp_path / "driver.py", tmp_path / "pid"
    rank.write_text(
        "import os, sys, time, pathlib\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\ntime.sleep(300)"
    )
    driver.write_text(
        "import signal, sys\nfrom pathlib import Path\nfrom oger_recipe.run.sft import _run, _torchrun\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"  # raises, as a run's handler does
        f"_run([*_torchrun(1, Path({str(tmp_path / 'meeting')!r})), {str(rank)!r}, {str(pid)!r}])"
    )
    command = subprocess.Popen([sys.executable, str(driver)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < deadline and command.poll() is None
        time.sleep(0.1)
    process = psutil.Process(int(pid.read_text()))
    command.send_signal(struck)
    command.wait(60)
    gone, _ = psutil.wait_procs([process], timeout=45)
    assert gone == [process]


def test_nothing_of_the_supervised_stage_listens_beyond_loopback(
    tmp_path: Path, parser: argparse.ArgumentParser, policy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many processes as on two GPUs, and torchrun as it is; a failed attempt before it leaves nothing."""
    run_dir, rank, python = tmp_path / "run", tmp_path / "rank.py", tmp_path / "python"
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "data").mkdir()
    write_teacher_store({}, run_dir / "data" / "teachers.arrow")
    (run_dir / "data" / "train.jsonl").touch()
    rank.write_text(RANK)
    until_program = 'words=()\nwhile [[ "$2" != oger_recipe.* ]]; do words+=("$1"); shift; done\n'
    python.write_text(f'#!/usr/bin/env bash\n{until_program}exec {sys.executable} "${{words[@]}}" {rank} "$PLACE"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    settings = vars(parser.parse_args(["--actor.model_name_or_path", str(policy_folder)]))
    job = Job({**settings, "actor.num_gpus_per_node": 2}, run_dir, cpu=False)
    monkeypatch.setenv("PLACE", os.devnull)
    with pytest.raises(RecipeError, match="supervised training failed: .*ChildFailedError"):
        supervise(job)
    monkeypatch.setenv("PLACE", str(run_dir / "supervised_model"))
    total, addresses, chosen = json.loads((supervise(job) / "config.json").read_text())
    assert total == 1 + 2
    assert len(addresses) >= 3 and set(addresses) == {"127.0.0.1"}  # the store, and gloo of both
    assert chosen == ["127.0.0.1", "lo"]  # not by what this machine's name stands for
    assert not list(tmp_path.glob("oger-*"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], []),
        (["--ds.lora.alpha=32"], []),  # of no adapter
        (["--ds.lora.rank=8"], ["--ds.lora.rank=8", "--ds.lora.alpha=16", "--ds.lora.dropout=0"]),
        (
            ["--ds.lora.rank=8", "--ds.lora.alpha=32", "--ds.lora.dropout=0.1", "--ds.lora.target_modules=all-linear"],
            ["--ds.lora.rank=8", "--ds.lora.alpha=32", "--ds.lora.dropout=0.1"],
        ),
        (
            ["--ds.lora.rank=8", "--ds.lora.target_modules", "q_proj", "v_proj"],
            ["--ds.lora.rank=8", "--ds.lora.alpha=16", "--ds.lora.dropout=0", "--ds.lora.target_modules", "q_proj",
             "v_proj"],
        ),
    ],
)  # fmt: skip
def test_the_stage_trains_adapters_where_the_run_does(
    parser: argparse.ArgumentParser, asked: list[str], expected: list[str]
) -> None:
    flags = _flags(vars(parser.parse_args(asked)), Path("data"), Path("model"))
    first = next((place for place, flag in enumerate(flags) if "lora" in flag), len(flags))
    assert flags[first:] == expected


@pytest.mark.parametrize("adapted", [True, False])
def test_the_stage_saves_a_whole_model(
    policy_folder: Path, tmp_path: Path, monkeypatch, nested, adapted: bool
) -> None:
    monkeypatch.setattr(adapters, "torch_dist_barrier_and_cuda_sync", lambda: None)  # one process
    base: Any = WholeModels.__base__
    monkeypatch.setattr(base, "save_model", lambda self, model, tokenizer, folder: Path(folder).write_text("theirs"))
    policy = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    start = {name: weight.clone() for name, weight in policy.state_dict().items()}
    if adapted:
        policy = get_peft_model(policy, LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"]))
        for name, weight in policy.named_parameters():
            torch.nn.init.normal_(weight, std=0.1) if ".lora_" in name else None
    strategy = WholeModels(args=nested())
    monkeypatch.setattr(base, "is_rank_0", lambda self: True)
    actor = SimpleNamespace(model=SimpleNamespace(module=policy))
    strategy.save_model(actor, AutoTokenizer.from_pretrained(policy_folder), str(tmp_path / "model"))
    if not adapted:
        assert (tmp_path / "model").read_text() == "theirs"
        return
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert saved.keys() == start.keys()
    changed = {name for name, weight in saved.items() if not torch.equal(weight, start[name])}
    assert changed == {name for name in start if "q_proj.weight" in name}
