"""Embeddings of trajectories, computed here or by a server, their cache, and a reranker in their place."""

PARTS = ("all", "thought", "answer")  # of a trajectory: what is embedded
LONG_TEXTS = ("head", "tail", "chunks")  # of a text longer than the encoder reads: what is embedded
