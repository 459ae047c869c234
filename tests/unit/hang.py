"""How long a test waits for what must happen: a guard against a hang, which no busy machine reaches."""

HANG_S = 3600
