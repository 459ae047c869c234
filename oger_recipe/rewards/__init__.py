"""What a source of reward is, how sources make one reward, and the function that OpenRLHF calls for each rollout."""
