"""Measures time and memory of log-probabilities, entropies and their gradients, ours and OpenRLHF's.

Every measurement is a process of its own; the sides take turns. Time is that of the forward and the backward pass.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.patches import apply_training_patches

Tensors = tuple[torch.Tensor, torch.Tensor]
TEMPERATURE = 0.7


def recipe(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Tensors:
    from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy

    return token_log_probs_and_entropy(hidden, weight, labels, temperature=TEMPERATURE)


def openrlhf(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Tensors:
    """Does what openrlhf.models.actor.Actor does after the last layer."""
    from openrlhf.models.utils import compute_entropy, log_probs_from_logits

    logits = (hidden @ weight.t()).to(torch.float32).div_(TEMPERATURE)
    return log_probs_from_logits(logits, labels), compute_entropy(logits)


def liger(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Tensors:
    """Log-probabilities alone: its fused cross entropy has no entropy."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden / TEMPERATURE, labels)
    return -loss, torch.zeros_like(loss)


def cut_cross_entropy(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Tensors:
    """Log-probabilities alone, as above."""
    from cut_cross_entropy import linear_cross_entropy

    loss = linear_cross_entropy(hidden / TEMPERATURE, weight, labels, reduction="none")
    return -loss, torch.zeros_like(loss)


SIDES: dict[str, Callable[..., Tensors]] = {
    "recipe": recipe, "openrlhf": openrlhf, "liger": liger, "cut_cross_entropy": cut_cross_entropy,
}  # fmt: skip


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Measures seconds, and bytes beside the inputs at the peak, of one forward and backward pass."""
    side, device = SIDES[args.side], torch.device(args.device)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[args.dtype]
    torch.manual_seed(0)
    weight = (torch.randn(args.vocabulary, args.hidden, device=device) / args.hidden**0.5).to(dtype).requires_grad_()

    def once(tokens: int) -> float:
        hidden = torch.randn(tokens, args.hidden, device=device).to(dtype).requires_grad_()
        labels = torch.randint(args.vocabulary, (tokens,), device=device)
        weight.grad = None
        _wait(device)
        started = time.perf_counter()
        log_probs, entropy = side(hidden, weight, labels)
        (log_probs.mean() + 0.1 * entropy.mean()).backward()
        _wait(device)
        return time.perf_counter() - started

    once(16)
    before = _peak(device)
    seconds = once(args.tokens)
    return {"seconds": seconds, "bytes": _peak(device) - before}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_side(name: str, arguments: list[str]) -> dict[str, float] | str:
    """Measures in a process of its own, or says why that was not possible."""
    done = subprocess.run([sys.executable, __file__, *arguments, "--side", name], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"ended by signal {-done.returncode} (too little memory?)"
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_sides(repeats: int, arguments: list[str]) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """Measures each side time after time, and says why some could not be."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    absent: dict[str, str] = {}
    for _ in range(repeats):
        for name in [name for name in SIDES if name not in absent]:
            found = run_side(name, arguments)
            if isinstance(found, str):
                absent[name] = found
            else:
                results[name].append(found)
    return results, absent


def _row(name: str, runs: list[dict[str, float]]) -> str:
    seconds = [run["seconds"] for run in runs]
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
    return f"| {name} | {spread} | {statistics.median(run['bytes'] for run in runs) / 2**30:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="the default is Qwen2.5's")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        if args.device == "cpu":
            os.environ.update(CPU_ENVIRONMENT)
        apply_training_patches()
        print(json.dumps(measure(args)))
        return
    names = ("tokens", "vocabulary", "hidden", "dtype", "device")
    arguments = [f"--{name}={getattr(args, name)}" for name in names]
    results, absent = run_sides(args.repeats, arguments)
    sizes = ", ".join(f"{name} {getattr(args, name)}" for name in names)
    print(f"{sizes}\n\n| side | seconds, median (least to most) | GiB beside the inputs |\n|---|---|---|")
    for name, runs in results.items():
        if runs:
            print(_row(name, runs))
    for name, reason in absent.items():
        print(f"| {name} | did not run: {reason} | |")
    if args.out:
        args.out.write_text(json.dumps({"sizes": sizes, "results": results, "absent": absent}, indent=2))


if __name__ == "__main__":
    main()
