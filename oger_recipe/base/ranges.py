"""What a number may be."""

import math
import re
from dataclasses import dataclass

# In place of argparse's own, which takes -1e-6 and -inf for flags.
NEGATIVE = re.compile(r"-(?:(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)$", re.IGNORECASE)


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``, both among them unless open, and those of ``also``.

    ``text`` ends the sentence "it must be ..."; infinity and nan are in no range unless ``also`` names them.
    """

    text: str
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    also: tuple[float, ...] = ()
    multiple: int | None = None

    def __contains__(self, number: float) -> bool:
        if number in self.also:
            return True
        if self.multiple and number % self.multiple:
            return False
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return above and below and math.isfinite(number)


FINITE = Range("a finite number")
COUNT = Range("1 or more", 1)
COUNT_OR_NONE = Range("0 or more", 0)
TOP_K = Range("-1 (all tokens) or 1 or more", 1, also=(-1,))
STEPS_OR_NEVER = Range("-1 (never) or 1 or more", 1, also=(-1,))
WEIGHT = Range("0 or more", 0)
POSITIVE = Range("above 0", 0, low_open=True)
SHARE = Range("0 to 1", 0, 1)  # also of learning rates
PART = Range("above 0 and at most 1", 0, 1, low_open=True)
MOMENTUM = Range("0 or more and below 1", 0, 1, high_open=True)
# Rewards are compared in float32, where squares of larger ones, summed over a batch, are no longer finite.
REWARD = Range("-1e12 to 1e12", -1e12, 1e12)
SEED = Range("0 to 4294967295", 0, 2**32 - 1)  # what NumPy takes


def reward_fault(number: float) -> str | None:
    """Say what is wrong with a reward, behind "which is"; None where nothing is."""
    if number in REWARD:
        return None
    return f"outside of {REWARD.text}, where rewards have to be" if math.isfinite(number) else "not finite"
