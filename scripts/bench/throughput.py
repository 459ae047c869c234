"""Measures samples per second of training on a CPU: the recipe's pipeline beside TRL's GRPOTrainer with HF generate.

Same policy (random weights, so every response has its full length), prompts, group, lengths and verifier; one
optimizer step per batch of rollouts, whose old log-probabilities are the update's own but for one side that has a
forward pass for them; the learning rate is nearly zero. Start-up is a column of its own.
TRL is not among the packages: ``pip install --no-deps --target DIR trl==1.16.0``, then ``throughput.py --trl DIR``.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import yaml
from recipe_runs import ROOT, run, step_events, step_seconds, train_command

HERE = Path(__file__).parent
# hidden size, layers, prompts, group, new tokens, rows per micro-batch
SIZES = {
    "0.6M x 32": (128, 3, 32, 8, 32, 64),
    "5M x 128": (256, 6, 16, 8, 128, 32),
    "25M x 256": (512, 7, 8, 8, 256, 16),
}
GRPO = ["--oger.max_replace_num", "0", "--oger.bonus_weight", "0"]
OF_UPDATE = ["--oger.old_log_probs", "of_update"]  # as TRL does where a batch is one optimizer step
SIDES = {
    "TRL": [],
    "recipe, GRPO": [*GRPO, *OF_UPDATE],
    "recipe, GRPO with a pass before": GRPO,
    "recipe, OGER": OF_UPDATE,
}


def recipe_run(folder: Path, size: str, steps: int, flags: list[str]) -> list[float]:
    """Returns when training began, and when each step ended."""
    hidden, layers, prompts, group, tokens, micro_batch = SIZES[size]
    settings = {
        "oger.task.hidden_size": hidden, "oger.task.num_layers": layers, "oger.task.warm_start_steps": 1,
        "oger.task.train_problems": prompts * steps, "oger.task.eval_problems": 8,
        "rollout.batch_size": prompts, "rollout.n_samples_per_prompt": group, "rollout.max_new_tokens": tokens,
        "rollout.micro_batch_size": micro_batch, "train.batch_size": prompts * group,
        "train.micro_batch_size": micro_batch, "data.max_len": tokens + 64,
    }  # fmt: skip
    run(train_command(folder, settings, flags), folder.with_suffix(".log"))
    return [event["time"] for event in step_events(folder)]


def trl_run(folder: Path, size: str, steps: int, packages: Path, earlier: Path) -> list[float]:
    _, _, prompts, group, tokens, micro_batch = SIZES[size]
    model = yaml.safe_load((earlier / "recipe.yaml").read_text())["actor"]["model_name_or_path"]
    out = folder.with_suffix(".json")
    job = {
        "model": model, "data": str(earlier / "data" / "train.jsonl"), "out": str(out), "prompts": prompts,
        "group": group, "max_new_tokens": tokens, "micro_batch": micro_batch, "steps": steps,
    }  # fmt: skip
    command = [str(HERE / "trl_grpo.py"), json.dumps(job)]
    run(command, folder.with_suffix(".log"), {"PYTHONPATH": f"{packages}:{ROOT}"})
    return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl", type=Path, required=True, help="the folder that trl was installed into")
    parser.add_argument("--size", choices=SIZES, action="append", help="default: all three")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    print(
        "| size | side | samples/s, median (least to most of the runs) | to TRL | start-up, s |\n|---|---|---|---|---|"
    )
    for size in args.size or SIZES:
        found[size] = measure(size, args)
        trl = [rate for _, rate in found[size]["TRL"]]
        for side, runs in found[size].items():
            rates = [rate for _, rate in runs]
            ratio = statistics.median(mine / theirs for mine, theirs in zip(rates, trl, strict=True))
            spread = f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"
            startup = statistics.median(seconds for seconds, _ in runs)
            print(f"| {size} | {side} | {spread} | {ratio:.2f} | {startup:.0f} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=2))


def measure(size: str, args: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Returns start-up seconds and samples per second of each side, by round, without the first two steps."""
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    rows = SIZES[size][2] * SIZES[size][3]
    with tempfile.TemporaryDirectory() as base:
        earlier = None
        for turn in range(args.rounds):
            for number, side in reversed(list(enumerate(SIDES))):  # TRL last: it takes a run's policy and prompts
                folder = Path(base) / f"{turn}-{number}"
                started = time.time()
                if side == "TRL":
                    times = trl_run(folder, size, args.steps, args.trl, earlier)
                else:
                    times = recipe_run(folder, size, args.steps, SIDES[side])
                    earlier = folder
                runs[side].append((times[0] - started, rows / statistics.median(step_seconds(times))))
    return runs


if __name__ == "__main__":
    main()
