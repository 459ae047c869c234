"""Seeds that depend on what is sampled and on nothing else: not on order, batch size or process."""

import hashlib


def stable_seed(*parts: object) -> int:
    """Make a seed in 0..2^63-1 from the texts of the parts."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
