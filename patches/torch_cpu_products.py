"""torch multiplies bfloat16 matrices in float32 on a CPU that has no instructions for bfloat16.

Upstream: aten::mm, aten::addmm and aten::bmm on CPUs, which every linear layer, attention and their gradients call.
Why: without AVX512-BF16 or AMX torch multiplies bfloat16 number by number. Policy and engine hold bfloat16, so on such
a processor nearly all of a step was spent there. The result is the same: either way products are summed in float32 and
rounded once, to bfloat16.
Checked: torch 2.13.0. Needed for as long as torch has no fast product for such processors.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oger_recipe.base.arithmetic import matmul_dtype

_aten: Any = torch.ops.aten  # `.out` is not replaced: it computes what is not bfloat16, too

# Few rows of a thread are summed in another order (MKL: up to six), and an engine's answer to a prompt would depend on
# how many others it answers at the time.
_ROWS_OF_A_THREAD = 16


def mm(left: Tensor, right: Tensor) -> Tensor:
    return _in_float32(_aten.mm.out, left, right)


def bmm(left: Tensor, right: Tensor) -> Tensor:
    return _in_float32(_aten.bmm.out, left, right)


def addmm(added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _in_float32(_aten.addmm.out, added, left, right, beta=beta, alpha=alpha)


def _in_float32(product: Callable[..., Tensor], *matrices: Tensor, **scales: float) -> Tensor:
    *added, left, right = matrices
    shape = (*left.shape[:-1], right.shape[-1])
    if left.dtype != torch.bfloat16 or right.dtype != torch.bfloat16:
        return product(*matrices, **scales, out=left.new_empty(shape))
    added = [each.float().expand(shape) for each in added]
    left, more = left.float(), max(_ROWS_OF_A_THREAD * torch.get_num_threads() - shape[-2], 0)
    if more and left.ndim == 2:
        *added, left = (torch.nn.functional.pad(each, (0, 0, 0, more)) for each in (*added, left))
    found = left.new_empty(*left.shape[:-1], shape[-1])
    return product(*added, left, right.float(), **scales, out=found)[: shape[0]].bfloat16()


@functools.cache
def apply() -> torch.library.Library | None:
    """Replace torch's products in this process, unless its CPU multiplies bfloat16. They last as long as the result,
    which the cache keeps."""
    if matmul_dtype() == torch.bfloat16:
        return None
    replaced = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # that they are replaced is the point
        for each in (mm, bmm, addmm):
            replaced.impl(each.__name__, each, "CPU", allow_override=True)
    return replaced
