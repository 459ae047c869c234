"""Collectives get tensors of the policy's device: NCCL serves GPUs alone, while gloo, which CPUs have, takes any.

What trains, and the weights' way to the engines, runs here on a stand-in for a GPU and for NCCL (stand_in_gpu.py); RUN
and READ name every place in the recipe and in OpenRLHF that communicates.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import torch.distributed as dist
from doubles import Remote, Strategy
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor
from openrlhf.trainer.sft_trainer import SFTTrainer
from openrlhf.utils.deepspeed import DeepspeedStrategy
from stand_in_gpu import CPU, GPU, PACKAGES, OnGpu, process_on

import oger_recipe.patches
from oger_recipe.pipeline.policy.critic_actor import OgerCriticPPOTrainer
from oger_recipe.pipeline.policy.policy_trainer import OgerActorPPOTrainer
from oger_recipe.pipeline.policy.sft import TeacherDataset
from oger_recipe.pipeline.policy.updates import UpdateHealth
from oger_recipe.rewards.kinds.implicit import Learner
from oger_recipe.rewards.place import StepPrompt

_OURS, _THEIRS = "oger_recipe/pipeline/policy", "openrlhf/trainer"

# Place -> the test below that runs it on the stand-in, which fails where a tensor is on the CPU.
RUN = {
    f"{_OURS}/policy_trainer.py: ppo_train": "policy",  # by upstream's iter_grad_accum_global_norm, for each total
    f"{_OURS}/policy_trainer.py: _totals_of_dynamic_step": "policy",
    f"{_OURS}/kl_stop.py: trained": "policy",
    f"{_OURS}/updates.py: since": "policy",
    f"{_OURS}/critic_actor.py: _explained_variance": "critic",
    f"{_THEIRS}/ray/ppo_actor.py: ppo_train": "policy",
    f"{_THEIRS}/ray/ppo_critic.py: ppo_train": "critic",
    f"{_THEIRS}/ppo_utils/replay_buffer.py: setup_dynamic_batch": "policy",
    f"{_THEIRS}/sft_trainer.py: fit": "supervised stage",
    f"{_THEIRS}/sft_trainer.py: evaluate": "supervised stage",
    f"{_THEIRS}/ray/ppo_actor.py: __init__": "weights",
    f"{_THEIRS}/ray/ppo_actor.py: _handle_cuda_ipc": "weights",
    f"{_THEIRS}/ray/ppo_actor.py: _broadcast_param": "weights",
    f"{_THEIRS}/ray/ppo_actor.py: broadcast_to_vllm": "weights",
    "openrlhf/utils/distributed_util.py: torch_dist_barrier_and_cuda_sync": "weights",
    "openrlhf/utils/deepspeed/deepspeed.py: all_reduce": "policy",
    "openrlhf/utils/loss_utils.py: get_loss_batch_info": "policy",
    "openrlhf/utils/loss_utils.py: iter_grad_accum_global_norm": "policy",
    "openrlhf/utils/loss_utils.py: _optimizer_step_loss_norm": "policy",
}
# Place -> what was read of it, where the stand-in cannot run it or no run of ours comes there.
_TOTALS = "no sum: the totals of the buffer, which setup_dynamic_batch has made"
_START = "no tensors: makes the groups, after torch.cuda.set_device"
_BARRIER = "a barrier, which has a tensor of NCCL's own"
_SHARDS = "DeepSpeed's shards, which are on the rank's device"
_UNUSED = "no run of ours comes there"
READ = {
    f"{_OURS}/policy_trainer.py: training_step": _TOTALS,
    f"{_OURS}/critic_actor.py: training_step": _TOTALS,
    f"{_OURS}/policy_trainer.py: <module>": "no sum: keeps upstream's iter_grad_accum_global_norm",
    f"{_THEIRS}/ray/ppo_actor.py: training_step": "never: ours has asked for the totals",
    f"{_THEIRS}/ray/ppo_critic.py: training_step": "never: ours has asked for the totals",
    f"{_OURS}/updates.py: sum_together": "no sum: what it makes of upstream's is in all that is run",
    f"{_OURS}/value_head.py: _whole": _SHARDS,
    f"{_OURS}/adapters.py: _merged": _SHARDS,
    f"{_OURS}/adapters.py: _gathered": _SHARDS,
    f"{_OURS}/adapters.py: save_merged": _BARRIER,
    f"{_OURS}/trial.py: _whole": _SHARDS,
    "openrlhf/models/model.py: get_llm_for_sequence_regression": _SHARDS,
    f"{_THEIRS}/ray/ppo_actor.py: _gather_params_ctx": _SHARDS,
    "openrlhf/utils/deepspeed/deepspeed.py: moving_average": _SHARDS,
    "openrlhf/utils/deepspeed/deepspeed.py: save_model": _SHARDS + ", and a barrier",
    "openrlhf/utils/deepspeed/deepspeed.py: save_ckpt": _BARRIER,
    f"{_THEIRS}/ray/ppo_actor.py: save_checkpoint": _BARRIER,
    "openrlhf/utils/deepspeed/deepspeed_utils.py: offload_deepspeed_states": _BARRIER,
    "openrlhf/utils/deepspeed/deepspeed_utils.py: reload_deepspeed_states": _BARRIER,
    "openrlhf/utils/deepspeed/deepspeed.py: setup_distributed": _START,
    f"{_THEIRS}/ray/ppo_actor.py: _init_vllm_sync_group": _START,
    f"{_THEIRS}/ray/vllm_worker_wrap.py: init_process_group": _START,
    f"{_THEIRS}/ray/vllm_worker_wrap.py: update_weight": "a tensor that it makes on cuda",
    "openrlhf/models/ring_attn_utils.py: gather_and_pad_tensor": "what the model's output layer gives, on its device",
    "oger_recipe/pipeline/engine/engine_worker.py: update_weight": "without CUDA alone",
    "oger_recipe/pipeline/driver/trial.py: connect": "without CUDA alone",
    "oger_recipe/pipeline/driver/trial.py: send": "without CUDA alone",
    "patches/weight_sync_gloo.py: broadcast": "without CUDA alone",
    "patches/weight_sync_gloo.py: apply": "without CUDA alone",
    "openrlhf/utils/deepspeed/deepspeed.py: all_gather": _UNUSED,
    "openrlhf/models/loss.py: forward": _UNUSED,
    f"{_THEIRS}/dpo_trainer.py: fit": _UNUSED,
    f"{_THEIRS}/dpo_trainer.py: evaluate": _UNUSED,
    f"{_THEIRS}/rm_trainer.py: fit": _UNUSED,
    f"{_THEIRS}/rm_trainer.py: evaluate": _UNUSED,
}


class OneRank(Strategy):
    """DeepSpeed's part without DeepSpeed; what goes over the group is upstream's."""

    world_size = 1
    all_reduce = DeepspeedStrategy.all_reduce
    ds_device_mesh = {"dp": SimpleNamespace(get_group=lambda: dist.group.WORLD)}

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        (loss / self.accumulated_gradient).backward()


class Model(torch.nn.Module):
    """A token's log-probability, or its value, is -weight * token."""

    global_steps = skipped_steps = 0  # DeepSpeed's counts

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.001))
        self.to(torch.cuda.current_device())

    @property
    def model(self) -> Model:
        return self

    module = model

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None: ...

    def forward(self, sequences, action_mask=None, attention_mask=None, return_output=False, **_) -> Any:
        said = -self.weight * sequences[:, 1:] * (1 if action_mask is None else action_mask)
        return (said, SimpleNamespace(entropy=said.detach())) if return_output else said


SCHEDULER = SimpleNamespace(get_last_lr=lambda: [0.0])


def _rows() -> Experience:
    """Four rows of two prompt tokens and four, three, two and one of responses; the first is a teacher's."""
    sequences = torch.arange(1, 25).view(4, 6)
    kept = torch.arange(6) < torch.tensor([[6], [5], [4], [3]])
    mask = (kept & (torch.arange(6) >= 2))[:, 1:].long()
    old = -0.0011 * sequences[:, 1:] * mask
    return Experience(
        sequences=sequences * kept, attention_mask=kept.long(), action_mask=mask, action_log_probs=old,
        values=old + 0.01 * mask, returns=0.1 * old + mask, advantages=torch.tensor([[1.0], [-1], [2], [0.5]]) * mask,
        step_index=mask.cumsum(dim=1).add(1).div(2, rounding_mode="floor") * mask,
        total_length=kept.sum(dim=1).float(), info={"off_policy_tokens": torch.tensor([4.0, 0, 0, 0])},
    )  # fmt: skip


def _policy(args: Any) -> dict[str, float]:
    trainer = OgerActorPPOTrainer(OneRank(args), Model(), None, None, SCHEDULER, 0.0, 2, dataloader_pin_memory=False)
    health = UpdateHealth(trainer.strategy, trainer.actor)
    trainer.replay_buffer.append(_rows())
    return trainer.ppo_train(0.0) | health.since() | {"gradient": trainer.actor.weight.grad}


def _critic(args: Any) -> dict[str, float]:
    trainer = OgerCriticPPOTrainer(OneRank(args), Model(), None, SCHEDULER, 2, dataloader_pin_memory=False)
    trainer.replay_buffer.append(_rows())
    return trainer.ppo_train() | {"gradient": trainer.critic.weight.grad}


def _supervised(args: Any) -> dict[str, float]:
    """One optimizer step of the supervised stage on four teachers, and its evaluation on them."""
    args.model, args.ckpt.save_steps = SimpleNamespace(aux_loss_coef=0.0), -1
    args.eval.steps = args.logger.logging_steps = 1
    logged: dict[str, float] = {}
    rows = [{"prompt": [1, 2], "response": list(range(3, 4 + number))} for number in range(4)]
    dataset = TeacherDataset(rows, SimpleNamespace(pad_token_id=0), 8, None)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=dataset.collate_fn)
    trainer = SFTTrainer(Model(), OneRank(args), None, loader, loader, SCHEDULER, max_epochs=1, disable_ds_ckpt=True)
    trainer.strategy.is_rank_0 = lambda: True  # it keeps its figures for trackers
    trainer._tensorboard = SimpleNamespace(
        add_scalar=lambda name, value, _: logged.update({name: value}), close=lambda: None
    )
    trainer.fit(args, num_update_steps_per_epoch=1)
    return logged | {"gradient": trainer.model.weight.grad}


class Engine:
    """In place of vLLM's: the names of the weights that came."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def update_weight(self, name: str, **_: Any) -> None:
        self.names.append(name)

    def update_weight_cuda_ipc(self, name: str, ipc_handles: dict[str, Any], **_: Any) -> None:
        assert list(ipc_handles) == ["this GPU"]
        self.names.append(name)


def _weights(args: Any) -> dict[str, float]:
    engine = Engine()
    trainer = OgerActorPPOTrainer(OneRank(args), Model(), None, None, SCHEDULER, dataloader_pin_memory=False)
    trainer.vllm_engines = [Remote(engine)]
    # In place of NCCL's group of policy and engines, which vLLM makes.
    trainer._model_update_group = SimpleNamespace(broadcast=lambda tensor, src, stream: dist.broadcast(tensor, src))
    trainer.broadcast_to_vllm()
    return dict.fromkeys(engine.names, 1)


class Language(torch.nn.Module):
    """A language model of ten tokens: each is followed by what its row of a table says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 10)
        self.to(torch.cuda.current_device())

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.table(input_ids))


def _implicit_prm(_: Any) -> dict[str, Any]:
    """It learns in the controller, which is one process: nothing is sent."""
    model = Language()
    keys = SimpleNamespace(
        model="m", learning_rate=0.1, batch_size=None, micro_batch_size=2, beta=0.05, max_grad_norm=1
    )
    learner = Learner(keys, SimpleNamespace(writer=lambda: (None, model)))  # type: ignore[arg-type]
    prompts = [StepPrompt(tuple(range(length)), (1, 2, length - 1)) for length in (4, 5, 6)]
    reference = [[-1.0, -2], [-1.0] * 3, [-2.0] * 4]
    learnt = [learner.learn(prompts, reference, [1.0, 0, 1]) for _ in range(2)]
    return {"loss": learnt[1].loss, "norm": learnt[1].grad_norm, "reward": learnt[1].rewards[2]}


_DYNAMIC = ("--train.dynamic_batch_enable", "--train.max_tokens_per_gpu=10")
_BY_STEPS = ("--oger.ratio_level=step", "--oger.kl_stop=1e6")
PARTS: dict[str, tuple[Callable[[Any], dict[str, Any]], list[tuple[str, ...]]]] = {
    "policy": (_policy, [(), _BY_STEPS, _DYNAMIC, (*_DYNAMIC, *_BY_STEPS)]),
    "critic": (_critic, [(), _DYNAMIC, ("--algo.advantage.estimator=appo",)]),
    "supervised stage": (_supervised, [()]),
    "implicit PRM": (_implicit_prm, [()]),
    "weights": (_weights, [("--vllm.sync_backend=nccl",), ("--vllm.sync_backend=nccl", "--train.colocate_all")]),
}


@pytest.mark.parametrize("part", PARTS)
def test_on_a_gpu_it_communicates_with_tensors_of_the_gpu_and_says_what_it_says_on_a_cpu(
    part: str, nested, monkeypatch
) -> None:
    run, kinds = PARTS[part]
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    monkeypatch.setattr(ppo_actor, "get_physical_gpu_id", lambda: "this GPU")
    seen: set[str] = set()
    for flags in kinds:
        args = ("--train.batch_size=4", "--train.micro_batch_size=2", "--rollout.batch_size=1",
                "--rollout.n_samples_per_prompt=4", "--rollout.max_new_tokens=4", *flags)  # fmt: skip
        found = []
        for device in (GPU, CPU):
            torch.manual_seed(0)  # of the order of rows
            with process_on(device, monkeypatch) as places:
                found.append({name: _plain(value) for name, value in run(nested(*args)).items()})
            seen |= places
        assert found[0] == pytest.approx(found[1], rel=1e-5, nan_ok=True), flags
    assert {place for place, by in RUN.items() if by == part} <= seen


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_the_stand_in_refuses_what_lies_on_the_cpu(monkeypatch) -> None:
    with process_on(GPU, monkeypatch):
        on_gpu = torch.tensor([1.0, 2.0]).to(GPU)
        dist.all_reduce(on_gpu)
        assert isinstance(on_gpu, OnGpu) and on_gpu.sum().item() == 3
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(2))
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            on_gpu + torch.ones(2)


_COLLECTIVES = ("all_", "barrier", "batch_isend", "broadcast", "gather_object", "init_", "irecv", "isend", "monitored",
                "new_", "recv_object", "reduce_scatter", "scatter_object", "send_object", "split_group")  # fmt: skip
_NAMES = {name for name in dir(dist) if name.startswith(_COLLECTIVES)} | {
    # DeepSpeed's and OpenRLHF's
    "GatherReplacedLayerParams", "GatheredParameters", "_consolidated_16bit_state_dict", "init_distributed",
    "_optimizer_step_loss_norm", "get_loss_batch_info", "iter_grad_accum_global_norm", "stateless_init_process_group",
    "torch_dist_barrier_and_cuda_sync",
}  # fmt: skip
_OF_OTHER_THINGS = {"gather", "recv", "reduce", "scatter", "send"}  # collectives of torch.distributed alone


def test_every_place_that_communicates_is_known_here() -> None:
    packages = PACKAGES | {"patches": Path(oger_recipe.patches.__file__).parent}
    found = {place for name, folder in packages.items() for place in _communicating(name, folder)}
    assert RUN.keys().isdisjoint(READ) and set(RUN.values()) <= PARTS.keys()
    assert found == RUN.keys() | READ.keys()


def _communicating(package: str, folder: Path) -> Iterator[str]:
    for file in folder.rglob("*.py"):
        text = file.read_text()
        if not any(name in text for name in _NAMES | {"dist"}):
            continue
        for function, node in _nodes(ast.parse(text), "<module>"):
            name = {ast.Attribute: "attr", ast.Name: "id", ast.alias: "name"}.get(type(node))
            of_torch = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("dist", "torch.distributed")
            is_import = isinstance(node, ast.alias) and not node.asname  # what it is called by is found where it is
            names = _NAMES | (_OF_OTHER_THINGS if of_torch else set())
            if name and not is_import and getattr(node, name) in names:
                yield f"{package}/{file.relative_to(folder)}: {function}"


def _nodes(parent: ast.AST, function: str) -> Iterable[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(parent):
        name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield name, node
        yield from _nodes(node, name)
