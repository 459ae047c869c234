"""What a run leaves on disk: events, samples, evaluations, checkpoints."""
