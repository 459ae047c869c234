"""One run on this machine: its inputs, its attempts, its end."""
