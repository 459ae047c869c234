"""Built-in tasks: problems made on the spot, with teacher trajectories, that need no download."""
