"""Measures what a reward for steps of reasoning adds to a training step: the default job with its rule alone, and
the same with a process reward model (PRM) of the policy's size, in the controller's process and in an engine.

The sides take turns. All of them estimate advantages by steps (process_rloo) and have no teachers; the learning rate
is nearly zero, so that all sample from the same policy. The PRM has random weights.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch
from recipe_runs import run, step_events, step_seconds, train_command
from transformers import Qwen3Config, Qwen3ForTokenClassification

from oger_recipe.lab.tiny_policy import build_tokenizer

SIDES = {"rule alone": None, "PRM in the controller": "in_process", "PRM in an engine": "engine"}
PHASES = ("generation", "make_experience", "ppo_train", "step_total")


def make_prm(folder: Path) -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer([], vocab_size=3 + 256 + 4)
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64, hidden_size=128, intermediate_size=384, head_dim=32,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id, num_labels=2,
    )  # fmt: skip
    Qwen3ForTokenClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def side_flags(place: str | None, prm: Path) -> list[str]:
    sources, uncached = [{"name": "rule", "kind": "verifier"}], []
    if place is not None:
        sources.append({"name": "prm", "kind": "process", "model": str(prm), "place": place, "format": "trl"})
        uncached = ["--oger.reward.cache", ""]
    return [
        "--algo.advantage.estimator", "process_rloo", "--oger.max_replace_num", "0", "--oger.steps.delimiters", ", ",
        f"--oger.reward.sources={json.dumps(sources)}", *uncached,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {side: [] for side in args.sides}
    phases: dict[str, list[dict]] = {side: [] for side in args.sides}
    with tempfile.TemporaryDirectory() as base:
        make_prm(Path(base) / "prm")
        for turn in range(args.rounds):
            for number, side in enumerate(args.sides):
                folder = Path(base) / f"{turn}-{number}"
                settings = {"oger.task.train_problems": 32 * args.steps}
                command = train_command(folder, settings, side_flags(SIDES[side], Path(base) / "prm"))
                run(command, folder.with_suffix(".log"))
                events = step_events(folder)
                seconds[side].append(statistics.median(step_seconds([event["time"] for event in events])))
                phases[side] += [
                    {name: event[f"timing/{name}"] for name in PHASES} for event in events[3:]
                ]  # fmt: skip
    print(f"{args.rounds} rounds of {args.steps} steps, 32 prompts x 8 rollouts; the first two of each are left out\n")
    print(f"| side | seconds a step: median (least to most of the runs) | to the rule | {' | '.join(PHASES)} |")
    print("|---" * (3 + len(PHASES)) + "|")
    for side, medians in seconds.items():
        to_rule = statistics.median(
            mine / theirs for mine, theirs in zip(medians, seconds[args.sides[0]], strict=True)
        )
        parts = " | ".join(f"{statistics.median(each[name] for each in phases[side]):.2f}" for name in PHASES)
        spread = f"{statistics.median(medians):.2f} ({min(medians):.2f} to {max(medians):.2f})"
        print(f"| {side} | {spread} | {to_rule:.2f} | {parts} |")
    if args.out:
        args.out.write_text(json.dumps(seconds, indent=2))


if __name__ == "__main__":
    main()
