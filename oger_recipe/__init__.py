"""The OGER recipe: exploration rewards and teacher trajectories for reinforcement learning with OpenRLHF."""

__version__ = "0.1.0"
