"""Checks of a small policy on the device: packed rows, its engine, and its training by OpenRLHF's ranks."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.engine_agreement import Agreement
from oger_recipe.base.cpu import CPU_ENVIRONMENT
from oger_recipe.base.files import to_json
from oger_recipe.checks.gpu_here import Here, Numbers, require
from oger_recipe.checks.memory import GIB, estimate, shape_of
from oger_recipe.lab import tiny_policy


def _policy(folder: Path, *, width: int = 64, layers: int = 2, seed: int | None = 1) -> Any:
    """Save an untrained bfloat16 model with its tokenizer, and return both; ``seed`` sharpens its distributions."""
    tokenizer = tiny_policy.build_tokenizer([], vocab_size=3 + 256 + 4)
    torch.manual_seed(0)
    model = tiny_policy.build_model(tokenizer, hidden_size=width, num_layers=layers).to(torch.bfloat16).eval()
    if seed is not None:
        tiny_policy.renew(model, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def packing(here: Here) -> Numbers:
    """Compare log-probabilities of packed rows with those of padded ones, by the distance of either from float32's.

    The padded rows show how far bfloat16 is off; packed ones are held to the rule that a run has for its engine.
    """
    from oger_recipe.pipeline.policy.chunked_actor import ChunkedActor

    folder = here.folder / "packing"
    _policy(folder)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([64, 5, 33, 17])
    attention = (torch.arange(64) < lengths[:, None]).long().to(here.device)
    sequences = torch.randint(3, 250, (4, 64), generator=generator).to(here.device) * attention
    actions = attention[:, 1:]

    def of(dtype: torch.dtype, attention_by: str, packing: bool) -> Tensor:
        actor = ChunkedActor(str(folder), attention_by, packing_samples=packing).to(here.device, dtype).eval()
        with torch.no_grad():
            return actor(sequences, actions, attention)[actions.bool()].float().cpu()

    attention_by = "flash_attention_2" if here.cuda else "eager"
    exact = of(torch.float32, "eager", False)
    padded = Agreement.of(of(torch.bfloat16, attention_by, False) - exact, top_p=1.0, top_k=-1)
    packed = Agreement.of(of(torch.bfloat16, attention_by, True) - exact, top_p=1.0, top_k=-1)
    return _as_far_as("packed rows", packed, padded)


def _as_far_as(what: str, found: Agreement, rounding: Agreement, **more: float | str) -> Numbers:
    numbers: Numbers = {"difference": found.difference, "kl": found.kl, "limit": rounding.limit(), **more}
    numbers = {name: round(value, 5) if isinstance(value, float) else value for name, value in numbers.items()}
    return require(
        not found.is_stale(rounding.limit()),
        f"log-probabilities of {what} differ from the policy's by more than bfloat16 explains",
        numbers,
    )


STARTED = contextlib.ExitStack()  # closed when the process of the checks ends


def _visible() -> list[str]:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")


@cache
def _engine(here: Here, runner: str, eager: bool) -> Any:
    """Start a policy with its engine as a run does; ``runner`` is vLLM's V1 or V2."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner == "V2"))
    if here.cuda:  # the policy's GPU, where its weights reach the engine
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible()[0]
    from oger_recipe.pipeline.driver.install import install
    from oger_recipe.pipeline.driver.local_engines import ray_here
    from oger_recipe.pipeline.driver.trial import EngineTrial

    STARTED.enter_context(ray_here(verbose=True))  # into the log, which then has why an engine did not start
    install()
    folder = here.folder / f"engine {runner} {eager}"
    trial = EngineTrial(folder, *_policy(folder), device=here.device, eager=eager, sleeps=here.cuda)
    trial.connect()
    return trial


def _as_in_runs(here: Here) -> Any:
    return _engine(here, "V2" if here.cuda else "V1", True)


def agrees(here: Here, runner: str, eager: bool) -> Numbers:
    return _agreement(_engine(here, runner, eager))


def _agreement(trial: Any) -> Numbers:
    samples = trial.sample()
    exact = trial.log_probs(samples, exact=True)
    rounding = Agreement.of(trial.log_probs(samples) - exact, top_p=1.0, top_k=-1)
    return _as_far_as("rollouts", trial.agreement(samples, exact=True), rounding, tokens=len(exact))


def sleep(here: Here) -> Numbers:
    """Check that sleep frees memory and changes no answer. One prompt at a time: a batch changes bfloat16 rounding."""
    trial = _as_in_runs(here)

    def greedy() -> list[Any]:
        return [trial.sample([prompt], number=1, temperature=0.0) for prompt in ("Answer:", "12*(3+5)=96")]

    before, awake = greedy(), torch.cuda.mem_get_info()[0]
    trial.sleep()
    freed = torch.cuda.mem_get_info()[0] - awake
    trial.wake_up()
    numbers: Numbers = {"GiB freed": round(freed / GIB, 2)}
    require(greedy() == before, "the engine's answers changed after it slept", numbers)
    return require(freed > 0, "sleeping freed no memory", numbers)


def weight_sync(here: Here) -> Numbers:
    """Check that new weights reach the engine: it agrees with them, and no longer with the old ones."""
    trial = _as_in_runs(here)
    old = {name: weight.clone() for name, weight in trial.model.state_dict().items()}
    tiny_policy.renew(trial.model, seed=2)
    trial.send()
    numbers = _agreement(trial)
    samples = trial.sample()
    trial.model.load_state_dict(old)
    stale = trial.agreement(samples)
    numbers["difference from the old weights"] = round(stale.difference, 5)
    return require(stale.is_stale(float(numbers["limit"])), "the engine still has the old weights", numbers)


def _ranks(here: Here, folder: Path, cases: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """Run pipeline/policy/trial.py with the policy in ``folder`` and return its results."""
    (folder / "cases.json").write_text(to_json(cases))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = (sys.executable, "-m", "oger_recipe.pipeline.policy.trial")
    started = []
    for rank in range(ranks):
        environment = {"CUDA_VISIBLE_DEVICES": _visible()[rank]} if here.cuda else CPU_ENVIRONMENT
        command = [*program, *map(str, (rank, ranks, port, folder))]
        started.append(subprocess.Popen(command, env=os.environ | environment))
    while None in (codes := [each.poll() for each in started]) and not any(codes):
        time.sleep(0.1)
    for each in started:  # the others wait for the one that failed
        each.kill()
    if any(codes):
        raise RuntimeError(f"ranks of the policy exited with {codes}; see the log")
    found: dict[str, Any] = torch.load(folder / "results.pt")
    return found


def dynamic_batches(here: Here) -> Numbers:
    from oger_recipe.pipeline.policy.trial import CUTS, SETTINGS, apart

    folder = here.folder / "ranks"
    _policy(folder / "policy", width=32, seed=None)
    ranks = min(torch.cuda.device_count(), 2) if here.cuda else 2
    cases = [{"name": cut, "settings": {**here.settings, **SETTINGS, **CUTS[cut]}} for cut in CUTS]
    found = _ranks(here, folder, cases, ranks)
    turned, longer = apart(found["dynamic"], found["static"])
    numbers: Numbers = {"ranks": ranks, "1 - cosine": round(turned, 6), "difference of norms": round(longer, 5)}
    return require(turned < 0.001 and longer < 0.02, "dynamic batches do not train like static ones", numbers)


_TIMES = 50  # how much longer responses are than trial.py's, for a training that shows in memory: up to 1003 tokens


def peak_memory(here: Here) -> Numbers:
    """Hold training's peak memory against its estimate, for a policy that dwarfs the libraries."""
    from oger_recipe.pipeline.policy.trial import LONGEST, PROMPT, SETTINGS

    folder = here.folder / "memory"
    _policy(folder / "policy", width=1024, layers=24, seed=None)
    longest = PROMPT + _TIMES * LONGEST
    sizes = {"train.micro_batch_size": 4, "data.max_len": longest, "rollout.max_new_tokens": longest}
    settings = {**here.settings, **SETTINGS, **sizes, "actor.num_gpus_per_node": 1}
    case = {"name": "memory", "settings": settings, "times": _TIMES}
    return against_estimate(settings, folder / "policy", _ranks(here, folder, [case], 1)["memory"]["peak"])


def against_estimate(settings: Mapping[str, Any], policy: Path, peak: int) -> Numbers:
    shape = shape_of(str(policy))
    assert shape is not None
    estimated = sum(estimate(settings, shape).policy.values())
    numbers: Numbers = {"peak GiB": round(peak / GIB, 2), "estimate GiB": round(estimated / GIB, 2)}
    is_near = estimated / 2 <= peak <= 1.2 * estimated
    return require(is_near, "the peak is not between half of the estimate and 1.2 times it", numbers)
