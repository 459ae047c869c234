"""The processes that train: policy, critic and reference."""
