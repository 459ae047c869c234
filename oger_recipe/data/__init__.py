"""Dataset rows, the prompts that OpenRLHF reads and the store of teacher trajectories."""
