"""What the key-value cache of an engine takes."""

from typing import Any


def kv_bytes_per_token(config: Any) -> int:
    """Return the bytes of a token's 16-bit keys and values; ``config``: with transformers' names of attributes."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 2 * int(config.num_hidden_layers) * int(heads) * int(width)
