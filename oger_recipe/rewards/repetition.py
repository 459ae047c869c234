"""Degenerate repetition: text that goes round in circles."""

import zlib

WINDOW = 1000  # bytes of UTF-8
LEAST_RATIO = 0.1  # compressed to plain size; reasoning has 0.25 and more, a loop of a line of text about 0.05


def is_repetitive(text: str) -> bool:
    """Say whether some stretch of WINDOW bytes compresses below LEAST_RATIO of its size.

    Stretches overlap by half, so that a loop of 1.5 windows is always seen. Shorter texts never count.
    """
    data = text.encode()
    starts = range(0, max(len(data) - WINDOW, -1) + 1, WINDOW // 2)
    return any(len(zlib.compress(data[start : start + WINDOW])) < LEAST_RATIO * WINDOW for start in starts)
