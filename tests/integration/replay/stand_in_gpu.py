"""A GPU and NCCL on a machine that has neither: tensors whose device is not the CPU's, with numbers in them.

torch's meta device stands for the GPU. Its tensors have no numbers; these here keep theirs in a tensor on the CPU. As
on a GPU, no operation takes tensors of both devices, and the group of the backend ``meta:fake`` serves this one alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openrlhf
import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import oger_recipe

GPU = torch.device("meta")
CPU = torch.device("cpu")
PACKAGES = {package.__name__: Path(package.__file__).parent for package in (oger_recipe, openrlhf)}
_OF_NCCL = {
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
}  # fmt: skip
_TAKE_BOTH = {torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}


class OnGpu(torch.Tensor):
    """A tensor of the stand-in, whose numbers are in ``on_cpu``."""

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> OnGpu:
        layout = {"strides": on_cpu.stride(), "storage_offset": on_cpu.storage_offset()}
        made: OnGpu = torch.Tensor._make_wrapper_subclass(cls, on_cpu.shape, dtype=on_cpu.dtype, device=GPU, **layout)
        made.on_cpu = on_cpu
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:  # torch has none for subclasses
        return self.on_cpu.tolist()


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func.namespace == "c10d":
        return _communicate(func, args, kwargs)
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    to = kwargs.get("device")
    is_on_gpu = any(isinstance(each, OnGpu) for each in tensors) if to is None else torch.device(to) == GPU
    elsewhere = [each for each in tensors if not isinstance(each, OnGpu) and each.dim()]
    if is_on_gpu and elsewhere and to is None and func not in _TAKE_BOTH:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found two")
    on_cpu, named = tree_map_only(OnGpu, lambda each: each.on_cpu, (args, kwargs))
    result = func(*on_cpu, **named | ({} if to is None else {"device": CPU}))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if not is_on_gpu:
        return result
    result = tree_map_only(torch.Tensor, OnGpu, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if to is None else result


def _communicate(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Hand the group tensors of their devices without numbers; with one rank, what is summed or sent stays."""
    _Gpu.places |= _places()
    if func is torch.ops.c10d.barrier.default:  # torch's own tensor: with NCCL it is on the GPU
        args = (torch.empty(1, device=GPU), *args[1:])
    args_, kwargs_ = tree_map_only(OnGpu, _without_numbers, (args, kwargs))
    result = func(*args_, **kwargs_)
    if func is torch.ops.c10d.allgather_.default:
        for (gathered,), own in zip(*args[:2], strict=True):
            gathered.copy_(own)
    return result


def _without_numbers(tensor: OnGpu) -> torch.Tensor:
    """Raises TypeError for what NCCL does not take of a GPU either."""
    if tensor.dtype not in _OF_NCCL or not tensor.on_cpu.is_contiguous():
        raise TypeError(f"NCCL takes no tensor of {tensor.dtype} with the strides {tensor.stride()}")
    return torch.empty_like(tensor.on_cpu, device=GPU)


def _places() -> set[str]:
    """The functions of the packages that are at work, each as ``package/file: function``."""
    found, frame = set(), sys._getframe()
    while frame := frame.f_back:
        file = Path(frame.f_code.co_filename)
        for name, folder in PACKAGES.items():
            if folder in file.parents:
                found.add(f"{name}/{file.relative_to(folder)}: {frame.f_code.co_name}")
    return found


class _Gpu(TorchDispatchMode):
    """While it is entered, tensors are made on the stand-in where its device is asked for."""

    places: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """torch makes tensors of Python's numbers, and of tensors among them, without the modes of dispatch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.tensor, torch.as_tensor) or isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        numbers = tree_map_only(OnGpu, lambda each: each.on_cpu, args[0])
        return func(numbers, **kwargs | {"device": CPU}).to(kwargs.get("device") or CPU)


@contextmanager
def process_on(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """A process of one rank with this device; with the stand-in, gives where the packages communicated."""
    with monkeypatch.context() as here:
        here.setattr(torch.cuda, "is_available", lambda: device == GPU)
        here.setattr(torch.cuda, "current_device", lambda: device)
        dist.init_process_group(f"{device.type}:fake", rank=0, world_size=1, store=FakeStore())
        _Gpu.places = set()
        try:
            if device == GPU:
                with _Gpu(), _FromNumbers():
                    yield _Gpu.places
            else:
                yield set()
        finally:
            dist.destroy_process_group()
