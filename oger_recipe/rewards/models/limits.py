"""How fast a server is asked."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Gives `per_minute` tokens a minute, one at a time: no minute has more of them, wherever it begins."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = 60 / per_minute, clock
        self._next = clock()

    def take(self) -> float:
        """Take the next token; return the seconds until it is there."""
        now = self._clock()
        at = max(now, self._next)
        self._next = at + self._interval_s
        return at - now
