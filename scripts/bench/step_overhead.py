"""Measures a training step beside one of plain OpenRLHF GRPO: seconds, and each process's peak of memory.

Sides: plain OpenRLHF (its own trainer, maker, policy and loss on the recipe's machine patches), the recipe with
teachers in the groups but no encoder, and the whole recipe with MiniLM. The sides take turns; the learning rate is
nearly zero, so that all sample from the same policy. ``--size default`` is the default job's; ``--size
100M`` is a policy of about 100 M random parameters on 4 prompts x 4 rollouts x 128 tokens; ``--size 600M``, for one
GPU, has the shape of Qwen3-0.6B, random parameters, and 32 prompts x 8 rollouts x 512 tokens.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from recipe_runs import HERE, ROLES, SIDES, run, step_events, step_seconds, train_command
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.checks.gpu_checks import ONE_GPU
from oger_recipe.lab import tiny_policy
from oger_recipe.settings.flags import flags_of
from oger_recipe.settings.parser import build_parser
from oger_recipe.settings.recipe_file import read_recipe

SIZES = {
    "default": [],
    "100M": [
        "--oger.task.hidden_size", "768", "--oger.task.num_layers", "10", "--oger.task.warm_start_steps", "1",
        "--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "128",
        "--rollout.micro_batch_size", "8", "--train.batch_size", "16", "--train.micro_batch_size", "8",
        "--data.max_len", "192",
    ],
    "600M": [
        *ONE_GPU, "--vllm.gpu_memory_utilization", "0.4",
        "--ds.packing_samples", "--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "16384",
        "--rollout.max_tokens_per_gpu", "32768", "--actor.gradient_checkpointing_enable",
        "--oger.embedding_num_gpus", "0.1", "--rollout.max_new_tokens", "512", "--data.max_len", "1024",
    ],
}  # fmt: skip
WITHOUT_ENCODER = ["--oger.bonus_weight", "0", "--oger.replace_mode", "random"]


def side_command(side: str, size: str, steps: int, folder: Path, earlier: Path | None) -> tuple[list[str], dict]:
    """Returns a side's command and environment; plain OpenRLHF takes data and flags of an ``earlier`` run."""
    if side == SIDES[0]:
        parser = build_parser(cpu=is_without_cuda())
        flags = flags_of(read_recipe(earlier / "recipe.yaml", parser), parser)
        environment = {"PREPARED_DATA": str(earlier / "data")}
        return [str(HERE / "plain_openrlhf.py"), str(folder), *flags], environment
    prompts = 4 if size == "100M" else 32
    flags = [*SIZES[size], *(WITHOUT_ENCODER if side == SIDES[1] else [])]
    if size == "600M":
        flags += ["--actor.model_name_or_path", str(random_policy(folder.parent / "policy"))]
    return train_command(folder, {"oger.task.train_problems": prompts * steps}, flags), {}


def random_policy(folder: Path) -> Path:
    """Saves a policy of Qwen3-0.6B's shape, once; its tokenizer names a word for every token."""
    if folder.is_dir():
        return folder
    tokenizer = tiny_policy.build_tokenizer([])
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = parts["model"]["vocab"]
    words = 151_936 - len(tokenizer)
    for token in parts["added_tokens"]:
        token["id"] += words if token["id"] >= len(vocabulary) else 0
    vocabulary |= {f"\u0120word{number}": number for number in range(len(vocabulary), len(vocabulary) + words)}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(parts))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def take_turns(rounds: int, measure: Callable[[str, Path, Path | None], dict]) -> dict[str, list[dict]]:
    """Measures every side in every round: ``measure(side, folder, folder of an earlier run of the recipe)``."""
    results: dict[str, list[dict]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as base:
        earlier = None
        for turn in range(rounds):
            for side in reversed(SIDES):  # plain OpenRLHF last: it takes an earlier run's data and flags
                folder = Path(base) / f"{turn}-{SIDES.index(side)}"
                results[side].append(measure(side, folder, earlier))
                earlier = folder if side != SIDES[0] else earlier
    return results


def run_side(size: str, steps: int, side: str, folder: Path, earlier: Path | None) -> dict:
    """Measures seconds of each step after the second, phases, and peak bytes by role."""
    command, environment = side_command(side, size, steps, folder, earlier)
    peaks = run(command, folder.with_suffix(".log"), environment, watch)
    events = step_events(folder)
    phases = [
        {key.removeprefix("timing/"): value for key, value in event.items() if key.startswith("timing/")}
        for event in events[1:]
    ]
    return {
        "steps": step_seconds([event["time"] for event in events]),
        "phases": {key: statistics.median(phase[key] for phase in phases[2:]) for key in phases[0]},
        "peaks": peaks,
    }


def watch(process: subprocess.Popen) -> dict[str, int]:
    """Reads peak bytes by role from the kernel's high-water marks while the run lasts."""
    peaks: dict[str, int] = {}
    while process.poll() is None:
        time.sleep(0.5)
        try:
            children = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            break
        for child in children:
            try:
                role = next((role for title, role in ROLES.items() if title in child.cmdline()[0]), None)
                status = Path(f"/proc/{child.pid}/status").read_text()
            except (psutil.Error, OSError, IndexError):
                continue
            if role and "VmHWM" in status:
                kib = int(status.split("VmHWM:")[1].split()[0])
                peaks[role] = max(peaks.get(role, 0), kib * 1024)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = take_turns(args.rounds, lambda *run: run_side(args.size, args.steps, *run))
    print(table(args, results))
    if args.out:
        args.out.write_text(json.dumps({"size": args.size, "results": results}, indent=2))


def table(args: argparse.Namespace, results: dict[str, list[dict]]) -> str:
    plain = results[SIDES[0]]
    phases = ("generation", "make_experience", "ppo_train", "broadcast")
    lines = [
        f"size {args.size}, {args.rounds} rounds of {args.steps} steps; the first two of each are left out", "",
        f"| side | seconds a step: median (least to most of the runs) | to plain | {' | '.join(phases)} | peak GiB |",
        "|---" * (4 + len(phases)) + "|",
    ]  # fmt: skip
    for side, runs in results.items():
        medians = [statistics.median(run["steps"]) for run in runs]
        ratio = statistics.median(
            mine / statistics.median(theirs["steps"]) for mine, theirs in zip(medians, plain, strict=True)
        )
        parts = " | ".join(f"{statistics.median(run['phases'][phase] for run in runs):.2f}" for phase in phases)
        peaks = ", ".join(
            f"{role} {statistics.median(run['peaks'][role] for run in runs) / 2**30:.2f}" for role in ROLES.values()
        )
        spread = f"{statistics.median(medians):.2f} ({min(medians):.2f} to {max(medians):.2f})"
        lines.append(f"| {side} | {spread} | {ratio:.2f} | {parts} | {peaks} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
