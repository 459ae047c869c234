"""What a user can act on, and how it shows values. Imports nothing of ours, so that everything may import it."""

import re

_LONGEST = 100  # characters of a value in a message
# What varies in a reason: what was found, what is in quotes, numbers. A column's name before "must" is kept.
_VARIES = re.compile(
    r"""('[^']*' (?:must|is missing))|\bfound .*|'(?:[^'\\]|\\.)*(?:'|$)|"[^"]*(?:"|$)|[-+]?\d[\d.,]*""",
    re.DOTALL,
)


class RecipeError(ValueError):
    """Something the user wrote cannot work; the message says where, why and what to write instead."""


class SourceFailed(RecipeError):
    """A source of reward failed on more rows of a step than the user allows; the policy has not seen the step."""


class RunFailed(RecipeError):
    """A run that had begun failed; started again from its newest checkpoint, it may get further."""


class RunStopped(Exception):
    """The run ended because it was asked to: after a step, with what it has trained saved."""


class RunDied(Exception):
    """Something of the run died or failed. The message is a sentence on it; the cause is what the driver saw."""


def cut(text: str, longest: int = _LONGEST) -> str:
    """Shorten a text for a message, and say how long it was."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def shown(value: object) -> str:
    """Write a value for a message, as its repr."""
    return cut(repr(value))


def kind_of(reason: str) -> str:
    """Put ``*`` in place of a reason's values: reasons that differ in values alone become equal."""
    return re.sub(r"\*(?:, \*)*", "*", _VARIES.sub(lambda match: match[1] or "*", reason))
