"""Rule verifiers, one per task, and the reward function that OpenRLHF calls for each rollout."""
