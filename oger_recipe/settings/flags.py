"""Settings as a command line: the one way back from settings to flags."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from oger_recipe.settings.parser import ListAction


def defaults(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the default of every setting by flag."""
    return vars(parser.parse_args([]))


def flags_of(value: Mapping[str, Any], parser: argparse.ArgumentParser) -> list[str]:
    """Return the flags that differ from the parser's defaults. Parsed, they give exactly these settings."""
    unsaid = defaults(parser)
    changed = {name: setting for name, setting in value.items() if repr(setting) != repr(unsaid[name])}
    flags = []
    for action in parser._actions:
        if action.dest in changed and _can_say(action, changed[action.dest]):
            flags += _words(action, changed.pop(action.dest))
    assert not changed, f"no flag says {changed}"
    return flags


def _can_say(action: argparse.Action, setting: Any) -> bool:
    """Say whether this action can give the value: a switch and its opposite are two for one setting."""
    if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
        return bool(setting is action.const)
    return setting is not None


def _words(action: argparse.Action, setting: Any) -> list[str]:
    flag = action.option_strings[0]
    if isinstance(action, argparse.BooleanOptionalAction):
        return [flag if setting else action.option_strings[1]]
    if action.nargs == 0:
        return [flag]
    if isinstance(action, ListAction):
        return [flag, json.dumps(setting)]
    if action.nargs is None:
        text = str(setting)
        return [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return [flag, *(_word(item) for item in setting)]


def _word(item: object) -> str:
    """Write one of several values. argparse takes -1e-05 for a flag, but nothing with a space in it."""
    text = str(item)
    return f" {text}" if text.startswith("-") and not isinstance(item, str) else text
