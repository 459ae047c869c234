"""The OGER recipe: exploration rewards and teacher trajectories for reinforcement learning with OpenRLHF."""

import os

__version__ = "0.1.0"

# How long torch's threads spin for each other before they sleep; read when torch loads libgomp, so it comes first.
# Work of 7 s, twice at once on the same two cores: 64 s each with libgomp's default, 14 s with this.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
