"""Settings that are gone, with what holds now. A recipe file may still name one at what its default was."""

from typing import Any

_WATCH = "the limit is {limit}, and oger.alarms.{alarm} off turns the warning off"

# Flag -> what its default was, and what holds now.
REMOVED: dict[str, tuple[Any, str]] = {
    "oger.embedding_batch_size": (
        32,
        "the encoder embeds 32 trajectories at a time, and fewer if oger.embedding_max_tokens is above 256",
    ),
    "oger.reward.watch_length_correlation": (0.5, _WATCH.format(limit=0.5, alarm="length_correlation")),
    "oger.reward.watch_format_correlation": (0.9, _WATCH.format(limit=0.9, alarm="format_correlation")),
    "oger.reward.watch_rule_disagreement": (0.6, _WATCH.format(limit=0.6, alarm="rule_disagreement")),
    "oger.reward.watch_accuracy_fall": (0.05, _WATCH.format(limit=0.05, alarm="reward_without_accuracy")),
    "oger.reward.watch_steps": (10, "oger.alarms.window sets how many steps all alarms compare"),
    "oger.reward.watch": (
        True,
        "each alarm has a level: oger.alarms.length_correlation off, and so on for format_correlation, "
        "rule_disagreement, reward_without_accuracy, length_growing and steps_growing",
    ),
}


def gone(flag: str) -> str:
    """Say what holds now in place of a removed setting; nothing for any other flag."""
    return f"'{flag}' is no longer a setting: {REMOVED[flag][1]}; leave it out" if flag in REMOVED else ""
