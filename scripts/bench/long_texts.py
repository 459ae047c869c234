"""Does the divergence of two long trajectories follow how much of them differs? By what the encoder reads of each.

``python scripts/bench/long_texts.py --data FOLDER``: FOLDER holds gsm8k/train.jsonl. A trajectory is a thought of some
7,000 tokens, made of GSM8K's solutions, ``</think>``, and one more solution as its answer. Its counterparts have the
same first solutions and others in place of a share of the rest; the answer is another where the share is not 0.
Prints mean divergences (1 - cosine) by share, their rank correlation with the share, and seconds a text.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

from oger_recipe.base.files import read_jsonl
from oger_recipe.embedding.encoder import TrajectoryEncoder
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings

SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
WAYS = {
    "all, head": ("head", "all"),
    "all, tail": ("tail", "all"),
    "all, chunks": ("chunks", "all"),
    "thought, chunks": ("chunks", "thought"),
    "answer, chunks": ("chunks", "answer"),
}
OPENING, BODY = 4, 50  # solutions of about 130 tokens each


def trajectories(solutions: list[str], rng: random.Random) -> dict[float, str]:
    """Makes the trajectory (share 0) and its counterparts by the share of other solutions in the body."""
    body = rng.sample(solutions, OPENING + BODY)
    others, answers = rng.sample(solutions, BODY), rng.sample(solutions, 2)
    order = rng.sample(range(BODY), BODY)
    texts = {}
    for share in SHARES:
        replaced = set(order[: round(share * BODY)])
        rest = [others[place] if place in replaced else body[OPENING + place] for place in range(BODY)]
        texts[share] = "\n\n".join([*body[:OPENING], *rest]) + "\n</think>\n" + answers[share > 0]
    return texts


def ranks(values: torch.Tensor) -> torch.Tensor:
    """Ranks values; equal ones share their mean rank."""
    below = (values.unsqueeze(1) > values.unsqueeze(0)).sum(dim=1).double()
    equal = (values.unsqueeze(1) == values.unsqueeze(0)).sum(dim=1).double()
    return below + (equal - 1) / 2


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    pair = torch.stack([ranks(first), ranks(second)])
    return float(torch.corrcoef(pair)[0, 1]) if pair.std(dim=1).min() > 0 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rng = random.Random(0)
    solutions = [row["answer"] for row in read_jsonl(args.data / "gsm8k" / "train.jsonl")]
    made = [trajectories(solutions, rng) for _ in range(args.texts)]
    measured: dict[str, dict[str, Any]] = {}
    columns = ["read", *(f"{share:.0%}" for share in SHARES), "rank correlation", "share read", "s a text"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for name, (long_texts, part) in WAYS.items():
        encoder = TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, 256, long_texts, part), 64)
        started = time.perf_counter()
        vectors = [encoder.encode(list(texts.values())) for texts in made]
        seconds = (time.perf_counter() - started) / (len(made) * len(SHARES))
        divergence = torch.stack([1 - rows @ rows[0] for rows in vectors]).clamp(min=0)  # [texts, shares]
        correlation = [rank_correlation(row, torch.tensor(SHARES)) for row in divergence.round(decimals=5)]
        measured[name] = {
            "divergence": divergence.mean(dim=0).tolist(),
            "rank_correlation": sum(correlation) / len(correlation),
            "share_read": encoder.share_read([texts[0.0] for texts in made]),
            "seconds_per_text": seconds,
        }
        means = " | ".join(f"{value:.4f}" for value in measured[name]["divergence"])
        print(
            f"| {name} | {means} | {measured[name]['rank_correlation']:.2f} | {measured[name]['share_read']:.0%} | "
            f"{seconds:.3f} |",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
