"""Measures texts and tokens per second of the encoder, beside SentenceTransformer.encode as it comes.

``python scripts/bench/encoder.py --data FOLDER``: FOLDER holds gsm8k/train.jsonl. Short texts are GSM8K's solutions,
long ones are made of its sentences, 2,000 to 8,000 tokens each. Both sides read what the model's limit leaves, then
whole long texts in windows. Then the cache: 10,000 texts with a kill in between, and what a warm start costs.
"""

import argparse
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from oger_recipe.base.cpu import CORES
from oger_recipe.base.files import read_jsonl
from oger_recipe.embedding.cache import EmbeddingCache
from oger_recipe.embedding.encoder import TrajectoryEncoder, model_location
from oger_recipe.embedding.settings import PACKAGED_MODEL, EncoderSettings

BATCH_SIZE = 64  # the recipe's default; SentenceTransformer's own is 32


def texts_of(solutions: list[str], count: int) -> dict[str, list[str]]:
    rng = random.Random(0)
    sentences = [sentence for solution in solutions for sentence in solution.split("\n")]

    def long_text() -> str:
        return "\n".join(rng.choices(sentences, k=rng.randint(60, 240)))  # about 33 tokens each

    return {"GSM8K solutions": rng.sample(solutions, count), "2k-8k tokens": [long_text() for _ in range(count // 16)]}


def plain(model, texts: list[str]) -> torch.Tensor:
    return torch.from_numpy(model.encode(texts, show_progress_bar=False))


def plain_windows(model, texts: list[str]) -> torch.Tensor:
    """Embeds whole texts by the library alone: windows of tokens, encoded as texts and averaged."""
    tokenizer, size = model.tokenizer, model.max_seq_length - 2
    vectors = []
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        windows = [tokenizer.decode(tokens[start : start + size]) for start in range(0, len(tokens), size)]
        vectors.append(plain(model, windows).mean(dim=0))
    return torch.stack(vectors)


def compare(name: str, texts: list[str], sides: dict[str, Callable], tokens: int, rounds: int) -> dict:
    """Times the sides in turns, and returns the lowest cosine between their vectors."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    vectors = {}
    for _ in range(rounds):
        for side, encode in sides.items():
            started = time.perf_counter()
            vectors[side] = encode(texts)
            seconds[side].append(time.perf_counter() - started)
    library, ours = (torch.nn.functional.normalize(rows.float()) for rows in vectors.values())
    ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
    cosine = float((library * ours).sum(dim=1).min())
    rates = " | ".join(f"{tokens / statistics.median(values):,.0f}" for values in seconds.values())
    print(f"| {name} | {len(texts)} | {rates} | {ratio:.2f} | {cosine:.5f} |", flush=True)
    return {"name": name, "texts": len(texts), "tokens": tokens, "seconds": seconds, "ratio": ratio, "cosine": cosine}


def fill(root: str, texts: list[str]) -> None:
    encoder = TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, max_tokens=256, long_texts="head"), BATCH_SIZE)
    EmbeddingCache(encoder, Path(root)).encode(texts)


def cache(texts: list[str]) -> dict[str, float]:
    """Times a cold build that is killed half-way, its continuation, and a warm start."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as root:
        started = time.perf_counter()
        process = context.Process(target=fill, args=(root, texts))
        process.start()
        while process.is_alive() and _kept(root) < len(texts) // 2:
            time.sleep(0.05)
        process.kill()
        process.join()
        kept, first = _kept(root), time.perf_counter() - started
        process = context.Process(target=fill, args=(root, texts))
        started = time.perf_counter()
        process.start()
        process.join()
        second = time.perf_counter() - started
        encoder = TrajectoryEncoder(
            EncoderSettings(PACKAGED_MODEL, None, max_tokens=256, long_texts="head"), BATCH_SIZE
        )
        started = time.perf_counter()
        EmbeddingCache(encoder, Path(root)).encode(texts)
        warm = time.perf_counter() - started
    print(
        f"\ncache of {len(texts)} texts: killed after {first:.0f} s with {kept} kept; finished in {second:.0f} s more"
    )
    print(f"(both with the encoder's start); a warm start looks them all up in {warm:.2f} s")
    return {"texts": len(texts), "kept_at_kill": kept, "until_kill_s": first, "rest_s": second, "warm_s": warm}


def _kept(root: str) -> int:
    return sum(path.stat().st_size for path in Path(root).rglob("keys.bin")) // 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--cached", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(CORES)
    model = SentenceTransformer(model_location(PACKAGED_MODEL))
    head, chunks = (
        TrajectoryEncoder(EncoderSettings(PACKAGED_MODEL, None, max_tokens=256, long_texts=how), BATCH_SIZE)
        for how in ("head", "chunks")
    )
    print(
        "| texts | number | tokens/s, SentenceTransformer | tokens/s, recipe | ratio | lowest cosine |\n|" + "---|" * 6
    )
    results = []
    solutions = [row["answer"] for row in read_jsonl(args.data / "gsm8k" / "train.jsonl")]
    samples = texts_of(solutions, args.texts)
    for name, texts in samples.items():
        lengths = [len(tokens) for tokens in model.tokenizer(texts, verbose=False, truncation=False)["input_ids"]]
        read = sum(min(length, model.max_seq_length) for length in lengths)
        sides = {"library": lambda t: plain(model, t), "recipe": head.encode}
        results.append(compare(f"{name}, beginning", texts, sides, read, args.rounds))
        if max(lengths) > 2 * model.max_seq_length:
            sides = {"library": lambda t: plain_windows(model, t), "recipe": chunks.encode}
            results.append(compare(f"{name}, whole", texts, sides, sum(lengths), args.rounds))
    more = [f"{text}\nAgain: {text}" for text in solutions]
    summary = cache([*solutions, *more][: args.cached])
    if args.out:
        args.out.write_text(json.dumps({"rates": results, "cache": summary}, indent=2))


if __name__ == "__main__":
    main()
