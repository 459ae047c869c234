"""What a user can act on. Imports nothing, so that everything may import it."""


class RecipeError(ValueError):
    """Something the user wrote cannot work; the message says where, why and what to write instead."""


class RunDied(Exception):
    """Something of the run died or failed. The message is a sentence on it; the cause is what the driver saw."""
