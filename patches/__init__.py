"""What must differ inside OpenRLHF, DeepSpeed's set-up and vLLM without CUDA; imported as oger_recipe.patches.

One upstream symbol per file. Every file names the symbol, why it must differ and the source it was written for
(a hash; see guard.py), and has one ``apply()``. Where CUDA is available they do nothing, but for the ones that refuse
models' own code, bind torch's stores, add a field to experiences, skip updates and save a tied head once; once in a
process is enough.
"""

import functools

from oger_recipe.base.cpu import is_without_cuda
from oger_recipe.base.imports import without_garbage_collection


@functools.cache
@without_garbage_collection()
def apply_import_patches() -> None:
    """Spare a process what nothing here needs, before it imports OpenRLHF, and refuse models' own code."""
    from oger_recipe.patches import transformers_remote_code

    if is_without_cuda():
        from oger_recipe.patches import torch_compile, transformers_optional_imports, vllm_env_override

        torch_compile.apply()
        vllm_env_override.apply()
        transformers_optional_imports.apply()
    transformers_remote_code.apply()


@functools.cache
@without_garbage_collection()
def apply_vllm_import_patches() -> None:
    """Do the same for a process that imports vLLM's classes."""
    apply_import_patches()
    if not is_without_cuda():
        return
    from oger_recipe.patches import vllm_audio

    vllm_audio.apply()


@functools.cache
@without_garbage_collection()
def apply_training_patches() -> None:
    """Prepare a process that trains or drives (driver, controller, policy, reference) before it imports OpenRLHF."""
    apply_import_patches()
    if is_without_cuda():
        _prepare_for_cpu()
    from oger_recipe.patches import experience_fields, torch_store_address

    torch_store_address.apply()
    experience_fields.apply()


@functools.cache
@without_garbage_collection()
def apply_model_patches() -> None:
    """Do the same for a process that holds a model to train."""
    apply_training_patches()
    from oger_recipe.patches import deepspeed_fused_overflow, deepspeed_tied_copies, deepspeed_zero3_overflow

    deepspeed_fused_overflow.apply()
    deepspeed_zero3_overflow.apply()
    deepspeed_tied_copies.apply()
    if is_without_cuda():
        from oger_recipe.patches import torch_cpu_products

        torch_cpu_products.apply()


def _prepare_for_cpu() -> None:
    from oger_recipe.patches import (
        deepspeed_compile,
        deepspeed_gathers,
        deepspeed_shm_comm,
        deepspeed_torch_adam,
        flash_attn_padding,
        replay_buffer_device,
        torch_cuda_calls,
        weight_sync_gloo,
    )

    torch_cuda_calls.apply()
    flash_attn_padding.apply()
    deepspeed_compile.apply()
    weight_sync_gloo.apply()
    deepspeed_torch_adam.apply()
    deepspeed_shm_comm.apply()
    deepspeed_gathers.apply()
    replay_buffer_device.apply()


@functools.cache
@without_garbage_collection()
def apply_engine_patches() -> None:
    """Prepare a vLLM worker process before it builds the model."""
    from oger_recipe.patches import torch_store_address

    torch_store_address.apply()
    if not is_without_cuda():
        return
    from oger_recipe.patches import torch_cpu_products, vllm_cpu_sampler, vllm_linear_weights, weight_sync_gloo

    torch_cpu_products.apply()
    vllm_cpu_sampler.apply()
    vllm_linear_weights.apply()
    weight_sync_gloo.apply()
