"""How fast a server is asked, by a clock that the test moves."""

from __future__ import annotations

from oger_recipe.models.server import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_tokens_come_one_interval_apart() -> None:
    clock = Clock()
    bucket = TokenBucket(30, clock)
    assert [bucket.take() for _ in range(4)] == [0.0, 2.0, 4.0, 6.0]
    clock.now += 5  # three tokens are there or gone, the fourth comes at 6
    assert [bucket.take(), bucket.take()] == [3.0, 5.0]


def test_a_pause_saves_no_tokens() -> None:
    clock = Clock()
    bucket = TokenBucket(30, clock)
    bucket.take()
    clock.now += 3600
    assert [bucket.take(), bucket.take(), bucket.take()] == [0.0, 2.0, 4.0]


def test_no_minute_has_more_tokens_than_were_asked_for() -> None:
    clock = Clock()
    bucket = TokenBucket(7, clock)
    taken = []
    for step in range(400):  # someone asks every half second, and waits for no token
        clock.now = 1000.0 + step / 2
        if bucket._next <= clock.now:
            taken.append(clock.now + bucket.take())
    begins = [start for start in taken if start + 60 <= taken[-1]]
    assert begins and all(sum(start <= each < start + 60 for each in taken) <= 7 for start in begins)
