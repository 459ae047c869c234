"""What engines of the run's own take: memory over many loads, and replies per second, staged and resident.

Reward models with random weights, of the size of --hidden and --layers: one that writes and one with a head. Prints
what all processes of the run have in main memory after each round in which both were loaded, asked and ended: their
own and what they share with each other. Not in it are the files of libraries, of which a process's share falls and
rises with others on the machine, and Ray's spare workers, of which there is one or none. Then the seconds of steps in
which both end after their turns, and in which both stay.
"""

import argparse
import os
import re
import tempfile
import time
from pathlib import Path

import ray
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.lab.tiny_policy import build_tokenizer
from oger_recipe.models.keys import ModelKeys
from oger_recipe.pipeline.driver.start_ray import cleared_up, run_environment, start_ray
from oger_recipe.pipeline.judges.engines import EnginePlace, RunEngines
from oger_recipe.rewards.place import Sampling

LONGEST = 512  # tokens
SAMPLING = Sampling(temperature=0.7, max_new_tokens=64, seed=0)


def make_models(folder: Path, hidden: int, layers: int) -> list[Path]:
    tokenizer = build_tokenizer([], vocab_size=3 + 256 + 4)
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": hidden, "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32,
        "head_dim": 32, "max_position_embeddings": LONGEST, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder / "judge")
    LlamaForSequenceClassification(LlamaConfig(**shape, num_labels=1)).save_pretrained(folder / "head")
    for name in ("judge", "head"):
        tokenizer.save_pretrained(folder / name)
    return [folder / "judge", folder / "head"]


def in_memory(root: int) -> float:
    """Returns the GiB of this process and all that it has started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family, size = {root}, 0
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::IDLE"):
                continue
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:  # it ended meanwhile
            continue
        size += sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", text, re.M)))
    return size / 2**20


def step(places: list[EnginePlace], prompts: list[str]) -> int:
    """One step of staged sources; returns how many replies came."""
    judge, head = places
    judge.open()
    replies = judge.generate(prompts, SAMPLING)
    judge.close()
    head.open()
    replies += head.classify(prompts)
    head.close()
    assert not [reply.error for reply in replies if reply.error]
    return len(replies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cleared_up() as temporary:
        models = make_models(Path(folder), args.hidden, args.layers)
        start_ray(run_environment(True) | {"VLLM_LOGGING_LEVEL": "ERROR"}, True, 1, False, temporary)
        prompts = [f"{number}: is 2 + {number} = 4? yes or no:" for number in range(args.prompts)]

        def places(memory_gb: float) -> tuple[RunEngines, list[EnginePlace]]:
            engines = RunEngines(cpu=True, memory_gb=memory_gb)
            return engines, [engines.place(ModelKeys(model=str(model), max_model_len=LONGEST)) for model in models]

        engines, staged = places(0)
        sizes = []
        for number in range(args.rounds):
            step(staged, prompts)
            sizes.append(in_memory(os.getpid()))
            print(f"round {number + 1:>3}: {sizes[-1]:.3f} GiB", flush=True)
        if sizes:
            print(f"last against first: {sizes[-1] / sizes[0] - 1:+.2%}", flush=True)
        for name, memory_gb in (("staged", 0.0), ("resident", 100.0)):
            engines.end()
            engines, there = places(memory_gb)
            for number in range(args.steps):
                began = time.perf_counter()
                count = step(there, prompts)
                seconds = time.perf_counter() - began
                kept = sum(engines._kept.values()) / 2**30
                speed = f"{seconds:6.2f} s, {count / seconds:6.1f} replies/s"
                print(f"{name} step {number + 1}: {speed}, {kept:.2f} GiB stay", flush=True)
        engines.end()
        ray.shutdown()


if __name__ == "__main__":
    os.environ |= CPU_ENVIRONMENT
    main()
