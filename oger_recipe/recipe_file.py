"""The recipe file: nested YAML whose paths are the flags of the command line.

``actor: {adam: {lr: 1e-6}}`` is ``--actor.adam.lr 1e-6``. A file can build on another with ``extends: other.yaml`` (a
path relative to the file): what it sets takes the place of the other's setting, and null brings the default back.
"""

import argparse
import difflib
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import yaml

_EXTENDS = "extends"
_DASH = re.compile(r"\\*-")


class RecipeError(ValueError):
    """Something the user wrote cannot work; the message says where, why and what to write instead."""


def list_item(token: str) -> str:
    """The text of a list's item on the command line: ``\\-x`` is the text ``-x``, which alone would be a flag."""
    return token[1:] if token.startswith("\\") and _DASH.match(token) else token


list_item.__name__ = "str"  # what error messages call the type


def _list_token(item: object, kind: object) -> str:
    """The token that `list_item` or a number's type reads back to ``item``."""
    text = str(item)
    if kind is list_item:
        return "\\" + text if _DASH.match(text) else text
    return " " + text if text.startswith("-") and kind in (int, float) else text  # argparse: a flag has no space


def read_recipe(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """The recipe file, and what it extends, as command-line tokens.

    Raises:
        RecipeError: a file is missing or not YAML, files extend each other in a circle, a key is unknown, or a value
            has the wrong type.
    """
    actions = {name[2:]: action for action in parser._actions for name in action.option_strings if name[:2] == "--"}
    return [token for tokens in _settings(path, actions, []).values() for token in tokens]


def _settings(path: Path, actions: dict[str, argparse.Action], below: list[Path]) -> dict[str, list[str]]:
    """The tokens of every setting, by the name under which the parser stores it; ``below``: the files that extend it.

    A setting that keeps its default has no tokens, but an entry: it undoes what the extended file says.
    """
    try:
        root = yaml.compose(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read as a recipe file: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(_not_yaml(error, path)) from None
    nodes: dict[str, yaml.Node] = {}
    for key, node in _leaves(root, path):
        if key in nodes:  # once nested, once dotted
            raise RecipeError(f"{_at(path, node)}: '{key}' is set twice")
        nodes[key] = node
    extends = nodes.pop(_EXTENDS, None)
    parent = _parent(extends, path, below) if extends else None
    settings = _settings(parent, actions, [*below, path]) if parent else {}
    for key, node in nodes.items():
        tokens = _tokens(key, node, actions, path)
        if key in actions:  # else a section whose settings are all commented out
            settings.pop(actions[key].dest, None)  # to the end: of two names of one setting the last counts
            settings[actions[key].dest] = tokens
    return settings


def _parent(node: yaml.Node, path: Path, below: list[Path]) -> Path | None:
    where = _at(path, node)
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if not isinstance(node, yaml.ScalarNode):
        raise RecipeError(f"{where}: '{_EXTENDS}' takes one recipe file")
    parent = path.parent / node.value
    if not parent.is_file():
        raise RecipeError(f"{where}: '{_EXTENDS}' names {parent}: no such recipe file")
    chain = [*below, path, parent]
    if parent.resolve() in {file.resolve() for file in chain[:-1]}:
        raise RecipeError(f"{where}: recipe files extend each other in a circle: {' -> '.join(map(str, chain))}")
    return parent


def _not_yaml(error: yaml.YAMLError, path: Path) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{path}: not valid YAML: {error}"
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{path}:{error.problem_mark.line + 1}: not valid YAML: {problem}"


def _leaves(node: yaml.Node | None, path: Path, prefix: str = "") -> Iterator[tuple[str, yaml.Node]]:
    """Dotted keys and their value nodes."""
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else repr(node.value)
        raise RecipeError(f"{_at(path, node)}: expected a mapping of settings, found {found}")
    seen: set[str] = set()
    for key_node, value in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise RecipeError(f"{_at(path, key_node)}: the name of a setting is plain text, not a list or mapping")
        if key_node.value in seen:
            raise RecipeError(f"{_at(path, key_node)}: '{prefix}{key_node.value}' is set twice")
        seen.add(key_node.value)
        key = prefix + key_node.value
        if isinstance(value, yaml.MappingNode):
            yield from _leaves(value, path, key + ".")
        else:
            yield key, value


def _tokens(key: str, node: yaml.Node, actions: dict[str, argparse.Action], path: Path) -> list[str]:
    action = actions.get(key)
    if action is None:
        if any(name.startswith(key + ".") for name in actions):
            if node.tag == "tag:yaml.org,2002:null":
                return []  # a section whose settings are all commented out
            raise RecipeError(f"{_at(path, node)}: '{key}' is a section: its settings go below it, one a line")
        near = difflib.get_close_matches(key, actions, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RecipeError(f"{_at(path, node)}: unknown setting '{key}'{hint}")
    value = _value(key, node, action, path)
    if value is None:
        return []
    if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction | argparse.BooleanOptionalAction):
        return _switch(key, value, actions, _at(path, node))
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and action.nargs is None:
        raise RecipeError(f"{_at(path, node)}: '{key}' takes one value, found the list {value}")
    if isinstance(action.nargs, int) and len(values) != action.nargs:
        raise RecipeError(f"{_at(path, node)}: '{key}' takes {action.nargs} values, found {values}")
    for item in values:
        _check_value(key, item, action, _at(path, node))
    if action.nargs is None:
        return [f"--{key}={value}"]  # one token: the value may begin with a dash
    default = list(action.default) if isinstance(action.default, tuple) else action.default
    if isinstance(action, _ListAction):
        return [f"--{key}={json.dumps(values)}"]
    # Given as a flag, a default like the text "all-linear" would come back as a list.
    return [] if value == default else [f"--{key}", *(str(item) for item in values)]


def _value(key: str, node: yaml.Node, action: argparse.Action, path: Path) -> object:
    """The value that YAML reads; for a text setting the text itself: YAML would read 0123 as 83 and off as false."""
    try:
        value = yaml.safe_load(yaml.serialize(node))
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{_at(path, node)}: '{key}' has a value that YAML cannot read: {error}") from None
    if action.type not in (None, str, list_item):
        return value
    choices = action.choices or ()
    if isinstance(node, yaml.SequenceNode) and action.nargs is not None:
        return [_text(item, read, choices) for item, read in zip(node.value, value, strict=True)]
    return _text(node, value, choices)


def _text(node: yaml.Node, value: object, choices: Container[str]) -> object:
    if not isinstance(node, yaml.ScalarNode) or value is None or (isinstance(value, bool) and node.value not in choices):
        return value
    return node.value


def _switch(key: str, value: object, actions: dict[str, argparse.Action], where: str) -> list[str]:
    action = actions[key]
    if not isinstance(value, bool):
        raise RecipeError(f"{where}: '{key}' is true or false, found {value!r}")
    if isinstance(action, argparse.BooleanOptionalAction):
        return [f"--{key}" if value else f"--no-{key}"]
    if value:
        return [f"--{key}"]
    if isinstance(action, argparse._StoreFalseAction) or not action.default:
        return []
    for name, other in actions.items():
        if isinstance(other, argparse._StoreFalseAction) and other.dest == action.dest:
            return [f"--{name}"]
    raise RecipeError(f"{where}: '{key}' cannot be turned to {value} here (it is {action.default} on this machine)")


def _check_value(key: str, item: object, action: argparse.Action, where: str) -> None:
    is_list = isinstance(action, _ListAction)
    kind = action.item_type if is_list else action.type or str  # type: ignore[attr-defined]
    choices = action.item_choices if is_list else action.choices  # type: ignore[attr-defined]
    if item is None or isinstance(item, bool | dict | list):
        raise RecipeError(f"{where}: '{key}' takes {kind.__name__}, found {item!r}")  # type: ignore[union-attr]
    try:
        converted = kind(str(item))  # type: ignore[operator]
    except ValueError:
        raise RecipeError(f"{where}: '{key}' takes {kind.__name__}, found {item!r}") from None  # type: ignore[union-attr]
    if choices is not None and converted not in choices:
        near = difflib.get_close_matches(str(item), [str(choice) for choice in choices], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RecipeError(f"{where}: '{key}' is one of {', '.join(map(str, choices))}, found {item!r}{hint}")


def _at(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def own_verifiers(settings: dict[str, Any]) -> dict[str, str]:
    """The user's verifiers: task -> import path. Raises RecipeError for an entry that is not task=module:function."""
    own = {}
    for entry in settings["oger.verifiers"]:
        task, separator, path = entry.partition("=")
        if not separator or not task or ":" not in path:
            raise RecipeError(f"oger.verifiers: {entry!r} is not task=package.module:function")
        own[task] = path
    return own


def verifier_options(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Keyword arguments of the verifiers by task, where they differ from the verifiers' defaults."""
    chosen = {
        "math": {"rule": "math_rule", "extract": "math_extract"},
        "gsm8k": {"answer_format": "gsm8k_answer_format", "strict_oat": "gsm8k_strict_oat"},
        "countdown": {"strict_oat": "countdown_strict_oat"},
    }
    defaults = {knob.name: knob.default for knob in KNOBS}
    options = {
        task: {name: settings[f"oger.{key}"] for name, key in keys.items() if settings[f"oger.{key}"] != defaults[key]}
        for task, keys in chosen.items()
    }
    return {task: keywords for task, keywords in options.items() if keywords}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys to the nested form of a recipe file."""
    root: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return root


def write_resolved(flat: dict[str, Any], path: Path) -> None:
    """Writes every setting of the run, defaults included, as a recipe file that reads back to the same run."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in flat.items()}
    path.write_text(yaml.safe_dump(nested(values), sort_keys=True))
