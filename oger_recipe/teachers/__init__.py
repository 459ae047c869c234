"""Teacher trajectories: where they lie, which are drawn, and the policy's own earlier solutions."""
