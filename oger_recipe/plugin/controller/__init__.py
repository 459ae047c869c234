"""The process that decides: it asks for rollouts, makes experiences of them, and evaluates."""
