"""What `oger doctor --gpu` looks at: small functions, each of which returns its numbers.

A check raises Failed with a sentence, or Skipped with a reason; whatever else it raises is a failure, too. A new one
is a function here and a line in CHECKS. All of them take the device: on a CPU they run at a small size.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oger_recipe.algorithm.health import Agreement
from oger_recipe.algorithm.policy_loss import hybrid_policy_loss
from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy
from oger_recipe.base.cpu import CPU_ENVIRONMENT, main_memory
from oger_recipe.base.files import read_jsonl, to_json
from oger_recipe.checks.job import PROBLEM, Job
from oger_recipe.checks.memory import GIB, estimate, shape_of
from oger_recipe.checks.preflight import findings
from oger_recipe.lab import tiny_policy

Numbers = dict[str, float | str]


class Failed(Exception):
    """A failed check: a sentence, and the numbers that it is about."""

    def __init__(self, sentence: str, numbers: Numbers) -> None:
        super().__init__(sentence)
        self.numbers = numbers


class Skipped(Exception):
    """The reason for leaving a check out."""


@dataclass(frozen=True, eq=False)
class Here:
    """device: cuda or cpu; folder: for what the checks write; settings: a run's by flag, where nothing is set;
    smollm2: a folder or a name on the hub."""

    device: str
    folder: Path
    settings: Mapping[str, Any]
    smollm2: str

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class Check:
    """process: checks of one name share a process, and what it has loaded; cuda_only: why a CPU has to do without."""

    find: Callable[[Here], Numbers]
    process: str = "checks"
    cuda_only: str | None = None
    limit_s: float = 240


def _require(holds: bool, sentence: str, numbers: Numbers) -> Numbers:
    if not holds:
        raise Failed(sentence, numbers)
    return numbers


# ---- the machine


def machine(device: str) -> Numbers:
    """Describe the device for a report."""
    if device == "cpu":
        return {"device": "cpu", "cores": len(os.sched_getaffinity(0)), "GiB": round(main_memory() / GIB, 1)}
    first = torch.cuda.get_device_properties(0)
    driver = "unknown"
    if smi := shutil.which("nvidia-smi"):
        asked = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = (subprocess.run(asked, capture_output=True, text=True).stdout.splitlines() or [driver])[0]
    return {
        "device": first.name,
        "GiB": round(first.total_memory / GIB, 1),
        "devices": torch.cuda.device_count(),
        "capability": f"{first.major}.{first.minor}",
        "driver": driver,
        "cuda": torch.version.cuda or "none",
    }


def _packages(here: Here) -> Numbers:
    job = Job(here.settings, here.folder, not here.cuda)
    problems = [f"{each.what}: {each.text}" for each in findings(job, has_recipe=False) if each.state == PROBLEM]
    return _require(not problems, "; ".join(problems), machine(here.device))


# ---- numbers on the device against the CPU's in float64

_UNIT = torch.finfo(torch.float32).eps / 2


def _rounding(terms: int) -> float:
    """Bound the rounding of a float32 sum, relative to the terms' absolute values: roundings add like sqrt(n), six
    sigmas allowed for (Higham and Mary, SIAM J. Sci. Comput. 41, 2019)."""
    return 6 * math.sqrt(terms) * _UNIT


def _explained(what: str, **errors: tuple[Tensor, Tensor | float]) -> Numbers:
    """Return each error's largest share of its bound; raise Failed above 1, beyond rounding."""
    shares = {name: round(float((error.abs() / bound).max()), 4) for name, (error, bound) in errors.items()}
    numbers: Numbers = {f"{name} / bound": share for name, share in shares.items()}
    return _require(max(shares.values()) <= 1, f"{what}: further from the CPU's than rounding explains", numbers)


def _token_statistics(here: Here, dtype: torch.dtype) -> Numbers:
    """Check log-probabilities, entropies and the former's gradient, by bounds of first-order propagation.

    A logit of d products is off by their sum's rounding, and by one of its own, times sum |h w|. A log-probability is
    off by two logits and the sum over the vocabulary. What follows from it has twice that, for higher orders.
    """
    tokens, width, vocabulary = (512, 256, 32_000) if here.cuda else (64, 64, 1000)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator).to(dtype)
    weight = (2 * torch.randn(vocabulary, width, generator=generator) / math.sqrt(width)).to(dtype)
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    coming = torch.randn(tokens, generator=generator)

    def of(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        rows = hidden.to(device, dtype).detach().requires_grad_()
        log_probs, entropy = token_log_probs_and_entropy(rows, weight.to(device, dtype), labels.to(device))
        (gradient,) = torch.autograd.grad(log_probs, rows, coming.to(device, log_probs.dtype))
        return tuple(each.detach().cpu().double() for each in (log_probs, entropy, gradient))

    exact, found = of("cpu", torch.float64), of(here.device, dtype)
    errors = [ours - theirs for ours, theirs in zip(found, exact, strict=True)]
    unit, h, w, of_sum = torch.finfo(dtype).eps / 2, hidden.double(), weight.double(), _rounding(vocabulary)
    one = 2 * (_rounding(width) + unit) * (h.abs() @ w.abs().T).amax(dim=1) + of_sum
    log_p = (h @ w.T).log_softmax(dim=1)
    entropy = 2 * one * (log_p.exp() * (log_p + exact[1][:, None]).abs()).sum(dim=1) + of_sum * exact[1]
    logits = coming.double().abs()[:, None] * (log_p.exp() + torch.nn.functional.one_hot(labels, vocabulary))
    gradient = ((2 * one[:, None] + 2 * unit + of_sum) * logits) @ w.abs()
    pairs = zip(("log_probs", "entropy", "gradient"), zip(errors, (one, entropy, gradient), strict=True), strict=True)
    return _explained(f"token statistics in {dtype}", **dict(pairs))


def _loss(here: Here) -> Numbers:
    """Check the hybrid loss and its gradient, of equal log-probabilities in float32: terms are off by 16 roundings."""
    shape = (8, 512)
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(shape, generator=generator) * 4
    log_probs = old + 0.1 * torch.randn(shape, generator=generator)
    advantages = torch.randn(8, 1, generator=generator).expand(shape)
    mask = torch.arange(512) < torch.randint(100, 512, (8, 1), generator=generator)
    teachers = mask & (torch.arange(8) % 4 == 0)[:, None]

    def of(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        ours = log_probs.to(device, dtype).detach().requires_grad_()
        places = (old.to(device, dtype), advantages.to(device, dtype), mask.to(device), teachers.to(device))
        loss, _ = hybrid_policy_loss(ours, *places, max_response_length=512)
        return tuple(each.detach().cpu().double() for each in (loss, *torch.autograd.grad(loss, ours)))

    exact, found = of("cpu", torch.float64), of(here.device, torch.float32)
    terms = advantages.abs() * ((log_probs - old).exp() + 1.2) * mask / mask.numel()  # 1.2: where it is clipped
    return _explained(
        "the loss",
        loss=(found[0] - exact[0], (_rounding(mask.numel()) + 16 * _UNIT) * float(terms.sum())),
        gradient=((found[1] - exact[1])[mask], 16 * _UNIT * terms[mask]),
    )


# ---- the policy


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


def _packing(here: Here) -> Numbers:
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
    return _require(
        not found.is_stale(rounding.limit()),
        f"{what} have other log-probabilities than the policy, by more than bfloat16 explains",
        numbers,
    )


# ---- the engine

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

    STARTED.enter_context(ray_here())
    install()
    folder = here.folder / f"engine {runner} {eager}"
    trial = EngineTrial(folder, *_policy(folder), device=here.device, eager=eager, sleeps=here.cuda)
    trial.connect()
    return trial


def _as_in_runs(here: Here) -> Any:
    return _engine(here, "V2" if here.cuda else "V1", True)


def _agrees(here: Here, runner: str, eager: bool) -> Numbers:
    return _agreement(_engine(here, runner, eager))


def _agreement(trial: Any) -> Numbers:
    samples = trial.sample()
    exact = trial.log_probs(samples, exact=True)
    rounding = Agreement.of(trial.log_probs(samples) - exact, top_p=1.0, top_k=-1)
    return _as_far_as("rollouts", trial.agreement(samples, exact=True), rounding, tokens=len(exact))


def _sleep(here: Here) -> Numbers:
    """Check that sleep frees memory and changes no answer. One prompt at a time: a batch changes bfloat16 rounding."""
    trial = _as_in_runs(here)

    def greedy() -> list[Any]:
        return [trial.sample([prompt], number=1, temperature=0.0) for prompt in ("Answer:", "12*(3+5)=96")]

    before, awake = greedy(), torch.cuda.mem_get_info()[0]
    trial.sleep()
    freed = torch.cuda.mem_get_info()[0] - awake
    trial.wake_up()
    numbers: Numbers = {"GiB freed": round(freed / GIB, 2)}
    _require(greedy() == before, "the engine answers otherwise after it slept", numbers)
    return _require(freed > 0, "sleeping freed no memory", numbers)


def _weight_sync(here: Here) -> Numbers:
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
    return _require(stale.is_stale(float(numbers["limit"])), "the engine still has the old weights", numbers)


# ---- training


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
        raise RuntimeError(f"ranks of the policy ended with {codes}; the log says why")
    found: dict[str, Any] = torch.load(folder / "results.pt")
    return found


def _dynamic_batches(here: Here) -> Numbers:
    from oger_recipe.pipeline.policy.trial import CUTS, SETTINGS, apart

    folder = here.folder / "ranks"
    _policy(folder / "policy", width=32, seed=None)
    ranks = min(torch.cuda.device_count(), 2) if here.cuda else 2
    cases = [{"name": cut, "settings": {**here.settings, **SETTINGS, **CUTS[cut]}} for cut in CUTS]
    found = _ranks(here, folder, cases, ranks)
    turned, longer = apart(found["dynamic"], found["static"])
    numbers: Numbers = {"ranks": ranks, "1 - cosine": round(turned, 6), "difference of norms": round(longer, 5)}
    return _require(turned < 0.001 and longer < 0.02, "dynamic batches train otherwise than static ones", numbers)


_TIMES = 50  # how much longer responses are than trial.py's, for a training that shows in memory: up to 1003 tokens


def _peak_memory(here: Here) -> Numbers:
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
    return _require(is_near, "the peak is not between half of the estimate and 1.2 times it", numbers)


# ---- whole runs

# What a recipe for CPUs needs on one GPU that all roles share.
ONE_GPU = (
    "--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.enforce_eager",
    "--vllm.gpu_memory_utilization", "0.3", "--actor.num_gpus_per_node", "1", "--ref.num_gpus_per_node", "1",
)  # fmt: skip
TWO_STEPS = (
    "--oger.total_training_steps", "2", "--rollout.batch_size", "4", "--train.batch_size", "32",
    "--train.micro_batch_size", "4", "--rollout.micro_batch_size", "4", "--no-oger.val_before_train",
    "--no-oger.val_after_train",
)  # fmt: skip


def run_flags(device: str, *more: str) -> list[str]:
    """Return the flags of the smoke recipe on this device."""
    return ["--recipe", "countdown_cpu_smoke", *(ONE_GPU if device == "cuda" else ()), *more]


def _run(here: Here, name: str, *more: str) -> Numbers:
    folder = here.folder / name
    places = ("--oger.run_dir", str(folder), "--ckpt.disable_ds")
    command = [sys.executable, "-m", "oger_recipe.cli.train", *run_flags(here.device, *places, *more)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    print(done.stderr, flush=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(" ".join([f"oger train ended with {done.returncode}", *said]))
    return figures(folder)


def figures(run: Path) -> Numbers:
    steps = read_jsonl(run / "metrics.jsonl")
    names = ("vllm_kl", "rollout/solve_rate", "timing/step_total")
    return {"steps": len(steps)} | {name: round(steps[-1][name], 5) for name in names}


def _smollm2(here: Here) -> Numbers:
    from oger_recipe.base import hub

    if not Path(here.smollm2).is_dir():
        try:
            refusal = hub.refusal("model", here.smollm2, None)
        except hub.Unreachable as error:
            refusal = f"the hub cannot be reached ({error})"
        if refusal and not hub.is_cached("model", here.smollm2):
            raise Skipped(f"{refusal}; --smollm2 takes a folder")
    return _run(here, "smollm2", "--actor.model_name_or_path", here.smollm2, *TWO_STEPS)


def _speed(here: Here) -> Numbers:
    found: Numbers = {}
    for name in ("countdown", "smollm2"):
        if (metrics := here.folder / name / "metrics.jsonl").is_file():
            steps = read_jsonl(metrics)[1:]  # the first one compiles
            found[name] = round(statistics.median(step["tokens_per_second"] for step in steps))
    if not found:
        raise Skipped("no run came to its end")
    return found


_OF_CUDA = "vLLM's CPU build has neither CUDA graphs, nor the second runner, nor sleep"
_ENGINES = {
    f"engine {runner} {'eager' if eager else 'graphs'}": Check(
        partial(_agrees, runner=runner, eager=eager),
        process=f"engine {runner} {eager}",
        cuda_only=None if (runner, eager) == ("V1", True) else _OF_CUDA,
    )
    for runner, eager in (("V1", False), ("V1", True), ("V2", False), ("V2", True))
}
_IN_RUNS = "engine V2 True"  # on GPUs
CHECKS: dict[str, Check] = {
    "packages and driver": Check(_packages),
    "token statistics fp32": Check(partial(_token_statistics, dtype=torch.float32)),
    "token statistics bf16": Check(partial(_token_statistics, dtype=torch.bfloat16)),
    "loss": Check(_loss),
    "packing": Check(_packing),
    **_ENGINES,
    "dynamic batches": Check(_dynamic_batches),
    "sleep and wake": Check(_sleep, process=_IN_RUNS, cuda_only=_OF_CUDA),
    "weight sync": Check(_weight_sync, process=_IN_RUNS),
    "Countdown run": Check(partial(_run, name="countdown"), limit_s=480),
    "SmolLM2 run": Check(_smollm2, limit_s=480),
    "peak memory": Check(_peak_memory, cuda_only="torch counts what tensors take on CUDA alone"),
    "tokens a second": Check(_speed),
}
