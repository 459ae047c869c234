"""Estimators of the KL to the reference by token that OpenRLHF has not."""

from collections.abc import Callable

from torch import Tensor

# log pi - log pi_ref of the sampled tokens, to a value of the same shape; its gradient goes through the formula.
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"abs": lambda log_ratio: log_ratio.abs()}
