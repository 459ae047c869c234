"""How often a training step asks for the values of tensors: on a GPU each time waits until all work is done.

Counted on the CPU, where the same calls are made: numbers and lists of tensors, copies to the host, and what makes a
tensor whose size depends on values. Steps are real but for DeepSpeed, whose own waits (the norm of the gradients, one
a micro-batch with OpenRLHF) come on top, and for attention's kernels.
pipeline/policy/updates.py says what stays.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from doubles import Strategy
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from oger_recipe.algorithm.batches import RATIO_LEVELS
from oger_recipe.algorithm.policy_loss import AGGREGATIONS, TEACHER_LOSSES
from oger_recipe.pipeline.policy.chunked_actor import ChunkedActor
from oger_recipe.pipeline.policy.critic_actor import OgerCriticPPOTrainer
from oger_recipe.pipeline.policy.policy_trainer import OgerActorPPOTrainer
from oger_recipe.pipeline.policy.updates import UpdateHealth

# Everything that adds to the loss or to the metrics.
EVERYTHING = [
    "--actor.entropy_coef=0.01", "--algo.kl.use_loss", "--algo.kl.init_coef=0.1", "--oger.kl_stop=100",
    "--oger.all_max_clip=0.99", "--oger.off_policy_max_clip=2", "--oger.off_policy_min_clip=0.01",
]  # fmt: skip
CUTS = {"static": [], "dynamic": ["--train.dynamic_batch_enable"], "packed": ["--ds.packing_samples"]}
LENGTHS = [3, 9, 4, 4, 12, 2, 7, 5]  # of the responses; prompts have two tokens


class Counts(NamedTuple):
    """What asks for values of tensors, by name, and how many tensors are moved between host and device."""

    reads: Counter[str]
    moves: int


class Operators(TorchDispatchMode):
    """Counts the operators that run, and those of them that need values on the host."""

    _READS = ("_local_scalar_dense", "equal", "nonzero", "masked_select")

    def __init__(self) -> None:
        super().__init__()
        self.ran, self.reads = Counter[str](), Counter[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.ran[name] += 1
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        self.reads[name] += name in self._READS or by_mask
        return func(*args, **(kwargs or {}))


class Waits(TorchFunctionMode):
    """Counts them where operators do not show them, too."""

    def __init__(self) -> None:
        super().__init__()
        self._operators, self._moves = Operators(), 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, reads = getattr(func, "__name__", ""), self._operators.reads
        reads[name] += name in ("tolist", "numpy", "cpu")
        if name in ("tensor", "as_tensor") and isinstance(args[0], list):
            reads["tensor of tensors"] += sum(isinstance(each, torch.Tensor) for each in args[0])
        self._moves += name == "to" and any(isinstance(each, torch.device) for each in args)
        return func(*args, **(kwargs or {}))

    def __enter__(self):
        self._operators.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._operators.__exit__(*error)

    def since_last(self) -> Counts:
        counts = Counts(+self._operators.reads, self._moves)
        self._operators.reads.clear()
        self._moves = 0
        return counts


class OneRank(Strategy):
    """DeepSpeed's part without its engine; sums over ranks are OpenRLHF's."""

    ds_device_mesh = {"dp": SimpleNamespace(get_group=lambda: None)}
    world_size = 1
    all_reduce = DeepspeedStrategy.all_reduce

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        (loss / self.accumulated_gradient).backward()


class Engine(torch.nn.Module):
    """DeepSpeed's engine around a model."""

    global_steps = skipped_steps = 0

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def set_gradient_accumulation_boundary(self, _: bool) -> None: ...


class Critic(Engine):
    """A value for each token, whatever the model below its head is."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(1, 1))

    def forward(self, sequences, action_mask, **_: Any):
        return self.module(sequences[:, 1:, None] / 20).squeeze(2) * action_mask, None


def _rows(repeated: int) -> Experience:
    """Each length so often; every fourth row is a teacher's, and steps of reasoning have three tokens."""
    rows = []
    for number, length in enumerate(LENGTHS * repeated):
        action_mask = torch.ones(1, length + 1, dtype=torch.long)
        action_mask[:, 0] = 0
        sequences = (torch.arange(length + 2).unsqueeze(0) + number) % 20
        rows.append(
            Experience(
                sequences=sequences,
                attention_mask=torch.ones_like(sequences),
                action_mask=action_mask,
                **{name: -0.1 * action_mask for name in ("action_log_probs", "base_action_log_probs", "values")},
                advantages=(number % 8 - 3.5) * action_mask,
                returns=(number % 2) * action_mask.float(),
                total_length=torch.tensor([float(length + 2)]),
                step_index=(torch.arange(length + 1).unsqueeze(0) + 2) // 3 * action_mask,
                info={name: torch.tensor([float(length * (number % 4 == 0))]) for name in ("off_policy_tokens", "x")},
            )
        )
    return Experience.concat_experiences(rows, 0)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    if dist.is_initialized():  # by a test before, in this process
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def policy(policy_folder) -> ChunkedActor:
    actor = ChunkedActor(str(policy_folder), attn_implementation="eager")
    actor.model, actor.packing_samples = Engine(actor.model.float()), False
    tokens = torch.ones(1, 2, dtype=torch.long)
    actor(tokens, tokens[:, 1:], tokens)  # what the first pass of a model gives is looked at
    return actor


@pytest.fixture()
def train(nested, policy) -> Callable[..., list[Counts]]:
    """Trains two optimizer steps of two micro-batches; what is waited for from each forward pass to the next one."""

    def trained(role: str, *flags: str, repeated: int = 1) -> list[Counts]:
        rows, size = len(LENGTHS) * repeated, 2 * repeated
        args = nested(
            f"--train.batch_size={rows // 2}", f"--rollout.batch_size={rows}", "--rollout.n_samples_per_prompt=1",
            f"--train.micro_batch_size={size}", "--rollout.max_new_tokens=12", "--train.max_tokens_per_gpu=19", *flags,
        )  # fmt: skip
        policy.packing_samples = args.ds.packing_samples
        model, kind = (policy, OgerActorPPOTrainer) if role == "policy" else (Critic(), OgerCriticPPOTrainer)
        between = (None, None) if role == "policy" else (None,)  # a second model, the optimizer
        scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        trainer = kind(
            OneRank(args), model, *between, scheduler, micro_train_batch_size=size, dataloader_pin_memory=False
        )
        UpdateHealth(trainer.strategy, getattr(model, "model", model))
        trainer.replay_buffer.append(_rows(repeated))
        seen: list[Counts] = []
        hook = model.register_forward_hook(lambda *_: seen.append(waits.since_last()))
        with Waits() as waits:
            trainer.ppo_train(*(0.1,) * (role == "policy"))
        hook.remove()
        return seen[1:]

    return trained


MODES = list(zip(itertools.product(TEACHER_LOSSES, RATIO_LEVELS), itertools.cycle(AGGREGATIONS), strict=False))
CASES = [("policy", "static", *mode) for mode in MODES]
CASES += [("policy", "dynamic", *MODES[-1]), ("policy", "packed", *MODES[-1])]
CASES += [("critic", "static", *MODES[-1]), ("critic", "dynamic", *MODES[-1])]


@pytest.mark.parametrize(("role", "cut", "of_tokens", "aggregation"), CASES)
def test_a_micro_batch_waits_five_times_and_a_step_twice_more(
    train, role: str, cut: str, of_tokens: tuple[str, str], aggregation: str
) -> None:
    """Packed, OpenRLHF's helpers ask for two numbers more, and transformers' mask, which attention's kernels do not
    have, for one."""
    teacher_loss, level = of_tokens
    flags = [f"--oger.off_policy_loss={teacher_loss}", f"--oger.ratio_level={level}", *EVERYTHING, *CUTS[cut]]
    first, over_the_end, second = train(role, *flags, f"--oger.loss_aggregation={aggregation}")
    limit = 5 + 3 * (cut == "packed")
    assert first.reads.total() <= limit and second.reads.total() <= limit, first.reads
    assert over_the_end.reads.total() <= limit + 2, over_the_end.reads


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_more_rows_in_as_many_micro_batches_wait_no_longer(train, role: str) -> None:
    for few, many in zip(train(role, *EVERYTHING), train(role, *EVERYTHING, repeated=3), strict=True):
        assert many.reads == few.reads
        if role == "policy":  # OpenRLHF moves the metrics of the critic's rows one by one
            assert many.moves == few.moves


def test_the_health_of_updates_is_one_number_of_all_parameters(nested) -> None:
    ran = []
    for layers in (2, 20):
        model = Engine(torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(layers))))
        for name, values in (("of_8_bits", torch.ones(2, dtype=torch.uint8)), ("on_another_rank", torch.zeros(0))):
            model.module.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
        health = UpdateHealth(OneRank(nested()), model)
        with Operators() as operators:
            assert health.since()["nonfinite_parameters"] == 0
        ran.append(operators)
    assert ran[0].ran == ran[1].ran and ran[0].reads.total() == 0  # one list is read, which is no operator
