"""What the key-value cache of an engine takes."""

from typing import Any


def kv_bytes_per_token(config: Any) -> int:
    """Keys and values of 16 bits. ``config`` has its attributes by the names of transformers' configurations."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 2 * int(config.num_hidden_layers) * int(heads) * int(width)
