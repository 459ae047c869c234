"""Prints as JSON what DeepSpeed holds for a tiny model, in bytes a parameter, by ZeRO stage and dtype of gradients.

The process is rank 0 of four; the others do not exist (torch's fake process group). What is counted is what the engine
and its optimizer hold after the first backward pass of the second step, with Adam's states there.
"""

import json
import os
from typing import Any

import torch
import torch.distributed as dist
from patches import apply_training_patches
from torch.testing._internal.distributed.fake_pg import FakeStore

LAYERS, WIDTH = 24, 32


def main() -> None:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "4"}
    apply_training_patches()
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from openrlhf.utils.deepspeed.deepspeed_utils import get_train_ds_config

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    cases = [(0, None), *((stage, each) for stage in (1, 2, 3) for each in (None, "fp32"))]
    zero = DeepSpeedZeroConfig(**get_train_ds_config(False, stage=3)["zero_optimization"])
    found = {
        "counted": [[stage, each, counted(stage, each)] for stage, each in cases],
        "bucket": zero.reduce_bucket_size,
        "live": zero.max_live_parameters,
    }
    print(json.dumps(found))


def counted(stage: int, gradients: str | None) -> float:
    import deepspeed
    from openrlhf.utils.deepspeed.deepspeed_utils import get_train_ds_config

    adam = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "fused": True}}
    config = get_train_ds_config(False, False, stage, zpg=1, grad_accum_dtype=gradients, optim_config=adam)
    config |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    # Buffers, whose size does not depend on the model, are not meant: here they are as good as none.
    config["zero_optimization"] |= {"reduce_bucket_size": 100, "stage3_param_persistence_threshold": 0}
    layers = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    model = torch.nn.Sequential(*layers).bfloat16()
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config, dist_init_required=False
    )
    for _ in range(3):
        engine.backward(engine(torch.ones(1, WIDTH, dtype=torch.bfloat16)).float().sum())
        engine.step()
    held = storages(list(model.parameters()), {})
    storages(vars(optimizer), held)
    storages(dict(optimizer.optimizer.state), held)
    return sum(held.values()) / (LAYERS * WIDTH**2)


def storages(found: Any, into: dict[int, int]) -> dict[int, int]:
    """Bytes of all tensors in a nest of containers, by their place."""
    if isinstance(found, torch.Tensor):
        for tensor in (found, found.grad if found.is_leaf else None, getattr(found, "ds_tensor", None)):
            if tensor is not None:
                into[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    elif isinstance(found, dict):
        for each in (*found.keys(), *found.values()):
            storages(each, into)
    elif isinstance(found, list | tuple):
        for each in found:
            storages(each, into)
    return into


if __name__ == "__main__":
    main()
