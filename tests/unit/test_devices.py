"""Every public function of algorithm/ works on any device: what it makes lies where its arguments lie.

Two stand-ins for a GPU. With ``meta`` as the device by default, arguments on the CPU cannot be joined with what is
made without a device. And arguments on ``meta`` have no values: what asks for one stops there, and would wait for a
GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import oger_recipe.algorithm
from oger_recipe.algorithm import credit, exploration, grades, hybrid_group, policy_loss, reshape, steps, token_stats
from oger_recipe.algorithm.engine_ratio import EngineCorrection
from oger_recipe.algorithm.normalize import Running
from oger_recipe.algorithm.step_credit import StepRewards

# Ask for values, and give numbers or check what came: the controller calls them, whose tensors lie on the CPU, and the
# critic for the rows of its buffer, which do so too.
READ_VALUES = {
    "Agreement.of", "Running.joined_by", "appo", "correlation", "count_steps", "disagreement",
    "explained_variance", "implicit_step_rewards", "pair_accuracy", "read_index", "select_replaced",
    "spread_within_groups", "step_gae", "step_ratio", "token_gae_by_steps", "tppo", "value_sums", "whitening",
}  # fmt: skip

# By the names of parameters: four rows of six places, unless it is said here.
_MASKS = {"mask", "action_mask", "off_policy_mask", "teacher_mask", "baseline_mask", "is_teacher", "of_teachers",
          "graded", "truncated", "may_earn", "earns", "fails", "counted", "own", "baseline", "where",
          "right"}  # fmt: skip
_SHAPES = {
    "all_correct": (4,), "left_out": (4,), "off_policy_tokens": (4,), "next_value": (4,), "labels": (4,),
    "num_rows": (), "num_tokens": (), "num_teacher_tokens": (), "sft_loss_coef": (), "rollout_loss_coef": (),
}  # fmt: skip
_OF_FUNCTION: dict[str, dict[str, tuple[int, ...]]] = {
    "process_grpo": {"tokens": (2, 4, 6), "baseline": (2, 4)},
    "process_rloo": {"tokens": (2, 4, 6), "baseline": (2, 4)},
    "StepRewards.with_responses": {"of_response": (2, 4), "where": (2, 4)},
    "hybrid_policy_loss": {"entropy": (4, 6)}, "hybrid_advantages": {"entropy": (4, 6)},
    "select_replaced": {"similarity": (6,), "reward": (6,)},
    "correlation": {"sums": (4,)}, "explained_variance": {"sums": (5,)}, "disagreement": {"counts": (2,)},
    "whitening": {"values": (6,)}, "Agreement.of": {"delta": (6,)}, "Running.joined_by": {"values": (6,)},
}  # fmt: skip
_NAMES = {
    "estimator": [*credit.ESTIMATORS, *credit.RIGHT_ESTIMATORS, *credit.BATCH_ESTIMATORS],
    "baseline": credit.BASELINES,
    "all_correct_group": hybrid_group.ALL_CORRECT_GROUPS, "mode": hybrid_group.REPLACE_MODES,
    "rollout_advantage": credit.ROLLOUT_ADVANTAGES,
    "entropy_weight": exploration.ENTROPY_WEIGHTS, "weight": exploration.ENTROPY_WEIGHTS,
    "form": exploration.UNIQUENESS, "shaping": exploration.SHAPINGS, "reduce": exploration.REDUCTIONS,
    "how": steps.AGGREGATES,
    "reshape": [*reshape.RESHAPES, "p_div_p_0.1"], "on_policy_reshape": [*reshape.RESHAPES, "p_div_p_0.1"],
    "teacher_loss": policy_loss.TEACHER_LOSSES, "sft_token_weight": policy_loss.TOKEN_WEIGHTS,
    "aggregation": policy_loss.AGGREGATIONS,
    "position": token_stats.ENTROPY_POSITIONS, "divergence": grades.DIVERGENCES,
}  # fmt: skip
_MADE = {
    "StepRewards": lambda make: StepRewards(
        make("rewards", (2, 4, 6)), make("mask", (2, 4, 6)), make("", (2, 4))
    ),
    "EngineCorrection": lambda make: EngineCorrection(True, False, "binary_kl", 0.0, 0.05),
    "Running": lambda make: Running(3, 0.5, 1.5, 0.0, 1.0),
}  # fmt: skip


def _tensor(name: str, shape: tuple[int, ...], device: str) -> torch.Tensor:
    values = torch.rand(shape, generator=torch.Generator("cpu").manual_seed(len(name)), device="cpu")
    if name in _MASKS | {"all_correct", "left_out"}:
        values = torch.arange(values.numel(), device="cpu").view(shape) % 6 < 5
    elif name in ("step_index", "index"):
        values = torch.tensor([0, 0, 1, 1, 2, 2], device="cpu").expand(shape).contiguous()
    elif name in ("labels", "counts"):
        values = torch.arange(values.numel(), device="cpu").view(shape)
    return values.to(device)


def _public_functions() -> dict[str, Callable[..., Any]]:
    """All of algorithm/ that take tensors, methods as well."""
    found = {}
    for info in pkgutil.iter_modules(oger_recipe.algorithm.__path__):
        module = importlib.import_module(f"{oger_recipe.algorithm.__name__}.{info.name}")
        for name, member in vars(module).items():
            if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
                continue
            of_class = {f"{name}.{each}": getattr(member, each) for each in vars(member) if not each.startswith("_")}
            found |= of_class if inspect.isclass(member) else {name: member}
    return {name: each for name, each in found.items() if inspect.isroutine(each) and _takes_tensors(each)}


def _takes_tensors(function: Callable[..., Any]) -> bool:
    kinds = [str(each.annotation) for each in inspect.signature(function).parameters.values()]
    return any(word in kind for kind in kinds for word in ("Tensor", "StepRewards"))


FUNCTIONS = _public_functions()


def _calls(name: str, device: str) -> Iterator[dict[str, Any]]:
    """Arguments of the function, with all tensors; of each registry that it takes a name from, all names in turn."""
    given, of_registry = {}, {}
    for key, parameter in inspect.signature(FUNCTIONS[name]).parameters.items():
        kind = name.partition(".")[0] if key == "self" else str(parameter.annotation)
        made = next((make for word, make in _MADE.items() if word in kind), None)
        if made is not None:
            given[key] = made(lambda each, shape: _tensor(each, shape, device))
        elif "Tensor" in kind:
            shape = _OF_FUNCTION.get(name, {}).get(key, _SHAPES.get(key, (4, 6)))
            given[key] = _tensor(key, shape, device)
        elif "str" in kind:
            of_registry[key] = list(_NAMES[key])
            given[key] = of_registry[key][0]
        elif parameter.default is inspect.Parameter.empty:
            given[key] = next(value for word, value in (("float", 0.5), ("int", 6), ("bool", True)) if word in kind)
    yield given
    for key, names in of_registry.items():
        yield from (given | {key: each} for each in names)


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif is_dataclass(result):
        yield from _tensors([getattr(result, each.name) for each in fields(result)])
    elif isinstance(result, dict | list | tuple):
        for each in result.values() if isinstance(result, dict) else result:
            yield from _tensors(each)


@contextlib.contextmanager
def without_autocast_of_meta() -> Iterator[None]:
    """torch.autocast does not know the device."""
    autocast = torch.autocast
    torch.autocast = lambda device, **how: contextlib.nullcontext() if device == "meta" else autocast(device, **how)
    try:
        yield
    finally:
        torch.autocast = autocast


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_makes_has_the_device_of_its_arguments(name: str) -> None:
    for arguments in _calls(name, "cpu"):
        with torch.device("meta"):
            result = FUNCTIONS[name](**arguments)
        assert {tensor.device.type for tensor in _tensors(result)} <= {"cpu"}


@pytest.mark.parametrize("name", FUNCTIONS.keys() - READ_VALUES)
def test_no_value_is_asked_for(name: str) -> None:
    with without_autocast_of_meta():
        for arguments in _calls(name, "meta"):
            result = FUNCTIONS[name](**arguments)
            assert {tensor.device.type for tensor in _tensors(result)} <= {"meta"}


@pytest.mark.parametrize("name", sorted(READ_VALUES))
def test_what_is_excused_does_ask_for_values(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        for arguments in _calls(name, "meta"):
            FUNCTIONS[name](**arguments)


# ---- the statistics of tokens at the shapes of Qwen2.5-Math-7B

VOCABULARY, WIDTH, TOKENS = 152_064, 3584, 32_768
LOGITS = 2**28 // VOCABULARY * VOCABULARY  # of a chunk's whole rows


class Memory(TorchDispatchMode):
    """The bytes of what operators made and what is still there, and the most that there were; the largest tensor's
    numbers. What is given was there before."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.there = {tensor.untyped_storage()._cdata: 0 for tensor in given}
        self.peak = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.there:
                self.there[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.there.pop, storage._cdata)
                self.largest = max(self.largest, tensor.numel())
        self.peak = max(self.peak, sum(self.there.values()))
        return result


def test_a_gpu_makes_2_to_the_28_logits_at_a_time_and_they_take_eight_bytes_each() -> None:
    hidden = torch.empty(TOKENS, WIDTH, device="meta", dtype=torch.bfloat16, requires_grad=True)
    head = torch.empty(VOCABULARY, WIDTH, device="meta", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.empty(TOKENS, device="meta", dtype=torch.long)
    with without_autocast_of_meta():
        with Memory(hidden, head, labels) as forward:
            log_probs, entropy = token_stats.token_log_probs_and_entropy(hidden, head, labels)
        with Memory(hidden, head, labels, log_probs, entropy) as backward:
            (log_probs.sum() + entropy.sum()).backward()
    assert forward.largest == LOGITS and backward.largest == max(LOGITS, head.numel())
    of_tokens = 2**22  # numbers of each token; its hidden state, in the backward pass, comes on top
    assert 8 * LOGITS <= forward.peak <= 8 * LOGITS + of_tokens
    gradients = 4 * head.numel() + 2 * hidden.numel()
    # Either a chunk's logits, or its part of the head's gradient beside its logits' own in 16 bits.
    of_chunk = max(8 * LOGITS, 2 * LOGITS + 2 * head.numel())
    assert gradients + 8 * LOGITS <= backward.peak <= gradients + of_chunk + of_tokens
    assert hidden.grad.device == head.grad.device == hidden.device


def test_a_chunk_of_a_cpu_and_of_a_gpu_have_sizes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stats, "CHUNK_LOGITS", 400)
    monkeypatch.setattr(token_stats, "CHUNK_LOGITS_ON_GPU", 1600)
    for device, logits in (("cpu", 400), ("meta", 1600)):
        hidden, head = torch.zeros(64, 1, device=device), torch.zeros(100, 1, device=device)
        labels = torch.zeros(64, device=device, dtype=torch.long)
        with Memory(hidden, head, labels) as forward, without_autocast_of_meta():
            token_stats.token_log_probs_and_entropy(hidden, head, labels)
        assert forward.largest == logits
