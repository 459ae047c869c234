"""Puts load on the reward service: ``python scripts/bench/reward_service.py --seconds 60 --clients 200 --out FILE``.

Starts the service on a free port of this machine and lets clients ask as OpenRLHF does: a new connection for every
request. Every answer is unique and its verdict known beforehand; one in a hundred is hostile. The exit code is 1 when
a request was lost, a verdict was not the expected one, or the service did not end cleanly.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from hostile_answers import HOSTILE
from prometheus_client.parser import text_string_to_metric_families

PROMPT = "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
HOSTILE_SHARE = 0.01
BATCH_SHARE, BATCH = 1 / 8, 8  # a batch's verdicts are a pattern, which also shows answers that change places
CLIENT_TIMEOUT_S = 180  # OpenRLHF's


@dataclass(frozen=True)
class Sample:
    """task, response, reference answer; right: the expected verdict; hostile: whether only its end is of interest."""

    task: str
    response: str
    answer: str
    right: bool
    hostile: bool = False


@dataclass
class Tally:
    """What the clients saw. seconds: latencies of the answered requests."""

    requests: int = 0
    answers: int = 0
    hostile: int = 0
    hostile_timeouts: int = 0
    lost: int = 0
    mixed_up: int = 0
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def countdown(number: int, right: bool) -> Sample:
    numbers, target = [number, 3, 5], (number + 3) * 5
    text = f"<think>try {number}</think>\n<answer>({number}+3)*5</answer>"
    return Sample("countdown", text, json.dumps({"numbers": numbers, "target": target + (not right)}), right)


def gsm8k(number: int, right: bool) -> Sample:
    return Sample("gsm8k", f"So there are 12 boxes.\n#### {number}", f"all in all\n#### {number + (not right)}", right)


def mathematics(number: int, right: bool) -> Sample:
    response = rf"<think>halve it</think> so it is \boxed{{\frac{{{2 * number + 1}}}{{14}}}}"
    return Sample("math", response, rf"\frac{{{2 * (2 * number + 1) + (not right)}}}{{28}}", right)


def hostile(number: int, text: str) -> Sample:
    # No text of the list is a fraction with this denominator.
    return Sample("math", f"attempt {number}: {text}", rf"\frac{{{19 * number + 1}}}{{19}}", False, hostile=True)


def samples(seed: int = 0) -> Iterator[Sample]:
    """Yields requests without end, each one unique, tasks and verdicts in random order."""
    rng = random.Random(seed)
    for number in itertools.count(100):
        if rng.random() < HOSTILE_SHARE:
            yield hostile(number, rng.choice(HOSTILE)[1])
        else:
            yield rng.choice((countdown, gsm8k, mathematics))(number, rng.random() < 0.5)


def payload(batch: list[Sample]) -> dict[str, list[str]]:
    labels = [{"uid": str(i), "task": sample.task, "answer": sample.answer} for i, sample in enumerate(batch)]
    return {
        "query": [PROMPT + sample.response for sample in batch],
        "prompts": [PROMPT] * len(batch),
        "labels": [json.dumps(label) for label in labels],
    }


def check(batch: list[Sample], result: dict[str, Any], tally: Tally) -> None:
    """Counts a result whose scores are not the expected ones, or that is no number for one and no list for several."""
    scores, timeouts = result["scores"], result["extra_logs"]["reward_timeout"]
    if len(batch) == 1:
        scores, timeouts = [scores], [timeouts]
    expected = [float(sample.right) for sample in batch]
    if scores != expected:
        tally.mixed_up += 1
        tally.problems.append(f"expected {expected}, got {json.dumps(result)[:500]}")
    else:
        tally.hostile_timeouts += sum(t == 1.0 for s, t in zip(batch, timeouts, strict=True) if s.hostile)


async def client(url: str, source: Iterator[Sample], rng: random.Random, end: float, tally: Tally) -> None:
    timeout = aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S)
    while time.monotonic() < end:
        batch = list(itertools.islice(source, BATCH if rng.random() < BATCH_SHARE else 1))
        tally.requests += 1
        tally.answers += len(batch)
        tally.hostile += sum(sample.hostile for sample in batch)
        started = time.monotonic()
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                async with session.post(url, json=payload(batch)) as response:
                    response.raise_for_status()
                    result = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            tally.lost += 1
            tally.problems.append(f"lost: {type(error).__name__}: {error}")
            continue
        tally.seconds.append(time.monotonic() - started)
        check(batch, result, tally)


async def load(url: str, clients: int, seconds: float) -> tuple[Tally, float, dict[str, float]]:
    """The clients' tally, the seconds until the last answer, and the service's own counts."""
    tally, source, started = Tally(), samples(), time.monotonic()
    end = started + seconds
    await asyncio.gather(*(client(url, source, random.Random(number), end, tally) for number in range(clients)))
    wall = time.monotonic() - started
    async with aiohttp.ClientSession() as session:
        async with session.get(url.replace("/get_reward", "/metrics")) as response:
            families = list(text_string_to_metric_families(await response.text()))
    counted = {"requests": 0.0, "answers": 0.0}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "oger_reward_requests_total" and sample.labels["status"] == "200":
            counted["requests"] += sample.value
        if sample.name == "oger_reward_answers_total":
            counted["answers"] += sample.value
    return tally, wall, counted


def start(flags: list[str], log: Any) -> tuple[subprocess.Popen[str], str]:
    """Starts the service, and returns it with the address that it prints."""
    command = [sys.executable, "-m", "oger_recipe.cli.serve_reward", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    found = re.search(r"--reward\.remote_url (\S+)", process.stdout.readline())
    if found is None:
        process.wait()
        log.seek(0)
        sys.exit(f"the service did not start: {log.read()[-2000:]}")
    return process, found[1]


def stop(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Returns the exit code after SIGTERM, and how many of the service's processes live 5 seconds longer."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=60)
    return code, len(psutil.wait_procs(children, timeout=5)[1])


def summary(tally: Tally, wall: float, counted: dict[str, float], code: int, left: int) -> dict[str, Any]:
    cuts = statistics.quantiles(tally.seconds, n=100) if len(tally.seconds) > 1 else [float("nan")] * 99
    return {
        "requests": tally.requests,
        "answers": tally.answers,
        "seconds": round(wall, 1),
        "answers_per_s": round(tally.answers / wall, 1),
        **{f"latency_p{p}_s": round(cuts[p - 1], 3) for p in (50, 95, 99)},
        "lost": tally.lost,
        "mixed_up": tally.mixed_up,
        "graded_twice_or_never": int(
            abs(counted["answers"] - tally.answers) + abs(counted["requests"] - tally.requests)
        ),
        "hostile": tally.hostile,
        "hostile_timeouts": tally.hostile_timeouts,
        "exit_code": code,
        "processes_left": left,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--out", type=Path, help="JSON file")
    args, flags = parser.parse_known_args()  # the others are the service's
    with tempfile.TemporaryFile("w+") as log:
        process, url = start(flags, log)
        try:
            tally, wall, counted = asyncio.run(load(url, args.clients, args.seconds))
            code, left = stop(process)
        finally:
            process.kill()
    result = summary(tally, wall, counted, code, left)
    for problem in tally.problems[:10]:
        print(problem, file=sys.stderr)
    print("\n".join(f"{name.replace('_', ' '):24} {value:>12}" for name, value in result.items()))
    if args.out:
        args.out.write_text(json.dumps({"clients": args.clients, "flags": flags} | result, indent=2) + "\n")
    failures = ("lost", "mixed_up", "graded_twice_or_never", "exit_code", "processes_left")
    sys.exit(int(any(result[name] for name in failures)))


if __name__ == "__main__":
    main()
