"""Whether the engine samples with the policy's weights, told from the log-probabilities that both give to its tokens.

With d = log p(engine) - log p(policy) of a sampled token, in nats:

    difference = mean |d|      rounding makes it what it is, from 0.004 (a tiny policy) to 0.04 (bfloat16, 49k tokens)
    kl         = mean d        estimates KL(engine || policy); rounding cancels out, other weights do not

Before its first update both hold the same weights: what a run shows there is its rounding. An engine that missed an
update differs by the update as well.
"""

import math
from dataclasses import dataclass

from torch import Tensor

# Healthy runs showed up to 1.9 times their first step, one step in forty. Engines one update behind showed 3 times it
# at a learning rate of 1e-4 and 9 times at 1e-3 (tests/integration/test_weight_sync.py).
TIMES_BASELINE, MARGIN = 3.0, 0.002
HIGHEST_KL = 0.02  # nats per token, if oger.max_engine_kl says no other; healthy runs stay below 0.005
_ERRORS = 3.0  # standard errors that a mean over few tokens may be off


@dataclass(frozen=True)
class Agreement:
    """The distance of engine and policy on a step's rollouts: both means over tokens, with their standard errors."""

    difference: float
    difference_error: float
    kl: float
    kl_error: float

    @classmethod
    def of(cls, delta: Tensor, *, top_p: float, top_k: int) -> "Agreement":
        """Measure d [tokens], less what sampling from a part of the vocabulary explains; zeros without a token.

        The engine's log-probabilities are of the tokens it could choose from: with a nucleus of mass Z >= top_p they
        are higher than the policy's by -log Z, at most -log top_p; with top_k there is no bound from above.
        """
        if not len(delta):
            return cls(0.0, 0.0, 0.0, 0.0)
        highest = math.inf if top_k > 0 else -math.log(top_p)
        signed = delta.double().clamp(max=0) + (delta.double() - highest).clamp(min=0)
        return cls(*_mean_and_error(signed.abs()), *_mean_and_error(signed))

    def limit(self) -> float:
        """Return the difference that later steps may show, where this is the first."""
        return TIMES_BASELINE * self.difference + MARGIN

    def is_stale(self, limit: float | None, highest_kl: float = HIGHEST_KL) -> bool:
        """Say whether the engine's weights differ from the policy's; ``limit``: of the difference, None: not known.

        A number that is not finite is within no limit.
        """
        near = limit is None or self.difference - _ERRORS * self.difference_error <= limit
        return not (near and self.kl - _ERRORS * self.kl_error <= highest_kl)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return values.mean().item(), error
