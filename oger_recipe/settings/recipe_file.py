"""The YAML file that sets any flag.

A recipe file is nested YAML whose paths are the flags of the command line: ``actor: {adam: {lr: 1e-6}}`` is
``--actor.adam.lr 1e-6``. Flags given on the command line win over the file.
"""

import argparse
import difflib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from oger_recipe.base.errors import RecipeError
from oger_recipe.base.secrets import SECRETS
from oger_recipe.data.mix import HOLDERS
from oger_recipe.settings.derived import two_step_sizes, without_outdone
from oger_recipe.settings.parser import ListAction
from oger_recipe.settings.removed import REMOVED, gone
from oger_recipe.settings.shipped import shipped

EXTENDS = "extends"  # a recipe file's key for the file it builds on
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"


def read_recipe(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Read the settings that the file sets, by flag. They override those of the file that its key `extends` names.

    Raises:
        RecipeError: the file is missing or not YAML, a key is unknown, or a value has the wrong type; with all that is
            wrong in it, and in the files that it builds on.
    """
    return {flag: value for flag, (value, _) in _decided(path, parser).items()}


def set_in(path: Path, parser: argparse.ArgumentParser, value: Mapping[str, Any]) -> dict[str, str]:
    """Find which settings of ``value`` the recipe file, or one it builds on, decides: flag -> file and line."""
    decided = _decided(path, parser)
    return {flag: place for flag, (alone, place) in decided.items() if repr(alone) == repr(value[flag])}  # nan too


def _decided(path: Path, parser: argparse.ArgumentParser) -> dict[str, tuple[Any, str]]:
    """Read flag -> its value in the file, and the file and line. A switch and its opposite are one setting: the last
    of them decides; null leaves a setting at its default."""
    actions = {name[2:]: action for action in parser._actions for name in action.option_strings if name[:2] == "--"}
    mistakes: list[str] = []
    decided: dict[str, tuple[Any, str]] = {}
    for key, (node, file) in _settings(path, (), mistakes).items():
        try:
            value = _value(key, node, actions, file)
        except RecipeError as mistake:
            is_secret = key in SECRETS  # which is not repeated
            mistakes.append(f"{_at(file, node)}: '{key}' takes one text" if is_secret else str(mistake))
            continue
        if key in actions:  # else a section without settings, or a setting that is gone
            decided.pop(actions[key].dest, None)
        if value is not None:
            decided[actions[key].dest] = (value, _at(file, node))
    mistakes += two_step_sizes(
        vars(parser.parse_args([])) | {flag: alone for flag, (alone, _) in decided.items()}, decided
    )
    if mistakes := list(dict.fromkeys(mistakes)):
        heading = [f"{len(mistakes)} mistakes in the recipe:"] if len(mistakes) > 1 else []
        raise RecipeError("\n  - ".join([*heading, *mistakes]))
    return decided


def _settings(path: Path, children: tuple[Path, ...], mistakes: list[str]) -> dict[str, tuple[yaml.Node, Path]]:
    """Read dotted keys with their value nodes and files: those of the file that `path` extends, under its own.

    What is wrong with the keys is added to ``mistakes``.
    """
    settings: dict[str, tuple[yaml.Node, Path]] = {}
    own: dict[str, tuple[yaml.Node, Path]] = {}
    try:
        root = _root(path)
    except RecipeError as mistake:
        mistakes.append(str(mistake))
        return {}
    for key, node in _leaves(root, path, mistakes):
        if key == EXTENDS:
            parent = path.parent / str(node.value)
            parent = parent if parent.is_file() else shipped().get(str(node.value), parent)
            if not isinstance(node, yaml.ScalarNode) or not parent.is_file():
                mistakes.append(f"{_at(path, node)}: '{EXTENDS}' names a recipe file that does not exist: {parent}")
            elif parent.resolve() in (path.resolve(), *children):
                mistakes.append(
                    f"{_at(path, node)}: '{EXTENDS}: {node.value}' is circular: it leads back to this file"
                )
            else:
                settings = _settings(parent, (*children, path.resolve()), mistakes)
        elif key in own:  # once nested, once dotted
            mistakes.append(f"{_at(path, node)}: '{key}' is set twice")
        else:
            own[key] = (node, path)
    reset = tuple(f"{key}." for key, (node, _) in own.items() if _is_null(node))
    said = [key for key, (node, _) in own.items() if not _is_null(node)]
    kept = without_outdone(settings, said)
    return {key: setting for key, setting in kept.items() if not key.startswith(reset)} | own


def _is_null(node: yaml.Node) -> bool:
    """Say whether null is written there. A section with all settings commented out is null too, and says nothing."""
    return node.tag == _NULL and bool(node.value)


def _root(path: Path) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read as a recipe file: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(_not_yaml(error, path)) from None
    return root


def _not_yaml(error: yaml.YAMLError, path: Path) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{path}: not valid YAML: {error}"
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{path}:{error.problem_mark.line + 1}: not valid YAML: {problem}"


def _entries(node: yaml.MappingNode, is_root: bool) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the keys and values of a mapping, without holders of anchors, and with what << merges into it."""
    own = [(key, value) for key, value in node.value if key.tag != _MERGE]
    if len(own) < len(node.value):
        merging = yaml.MappingNode(node.tag, deepcopy([pair for pair in node.value if pair[0].tag == _MERGE]))
        yaml.SafeLoader("").flatten_mapping(merging)
        names = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        own += {key.value: (key, value) for key, value in merging.value if key.value not in names}.values()
    return [(key, value) for key, value in own if not (is_root and str(key.value).startswith(HOLDERS))]


def _leaves(
    node: yaml.Node | None, path: Path, mistakes: list[str], prefix: str = ""
) -> Iterator[tuple[str, yaml.Node]]:
    """Yield dotted keys and their value nodes; what is wrong with keys is added to ``mistakes``."""
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else repr(node.value)
        mistakes.append(f"{_at(path, node)}: expected a mapping of settings, found {found}")
        return
    seen: set[str] = set()
    for key_node, value in _entries(node, is_root=not prefix):
        if not isinstance(key_node, yaml.ScalarNode):
            mistakes.append(f"{_at(path, key_node)}: the name of a setting must be plain text, not a list or mapping")
        elif key_node.value in seen:
            mistakes.append(f"{_at(path, key_node)}: '{prefix}{key_node.value}' is set twice")
        else:
            seen.add(key_node.value)
            key = prefix + key_node.value
            if isinstance(value, yaml.MappingNode):
                yield from _leaves(value, path, mistakes, key + ".")
            else:
                yield key, value


def _value(key: str, node: yaml.Node, actions: Mapping[str, argparse.Action], path: Path) -> Any:
    """Return the node's value as the parser would have it from flags; None where it says nothing."""
    action, where = actions.get(key), _at(path, node)
    if action is None:
        return _no_setting(key, node, actions, where)
    value = _read(key, node, action, where)
    if value is None:
        return None
    if isinstance(action, _SWITCHES):
        if not isinstance(value, bool):
            raise RecipeError(f"{where}: '{key}' is true or false, found {value!r}")
        return not value if isinstance(action, argparse._StoreFalseAction) else value
    if isinstance(value, list) and action.nargs is None:
        raise RecipeError(f"{where}: '{key}' takes one value, found the list {value}")
    if action.nargs is None:
        return _checked(key, value, action, where)
    values = value if isinstance(value, list) else [value]
    if isinstance(action.nargs, int) and len(values) != action.nargs:
        raise RecipeError(f"{where}: '{key}' takes {action.nargs} values, found {values}")
    checked = [_checked(key, item, action, where) for item in values]
    if isinstance(action, ListAction):
        return tuple(checked)
    default = list(action.default) if isinstance(action.default, tuple) else action.default
    return None if value == default else checked  # a default may be a text such as "all-linear", or a tuple


_SWITCHES = argparse._StoreTrueAction | argparse._StoreFalseAction | argparse.BooleanOptionalAction


def _no_setting(key: str, node: yaml.Node, actions: Mapping[str, argparse.Action], where: str) -> None:
    """Raise RecipeError unless the key is a section whose settings are all commented out, or a setting that is gone at
    what was its default."""
    if key in REMOVED and yaml.safe_load(yaml.serialize(node)) in (None, REMOVED[key][0]):
        return
    if key in REMOVED:
        raise RecipeError(f"{where}: {gone(key)}")
    if any(name.startswith(key + ".") for name in actions):
        if node.tag == _NULL:
            return
        raise RecipeError(f"{where}: '{key}' is a section: write its settings below it, one per line")
    above = key.rpartition(".")[0]
    if isinstance(actions.get(above), ListAction):
        raise RecipeError(f"{where}: '{above}' takes a list: begin each of its mappings with a dash")
    near = difflib.get_close_matches(key, actions, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    is_section = any(name.startswith(key.partition(".")[0] + ".") for name in actions)
    if not is_section and "&" in (node.start_mark.buffer or ""):
        hint += f"; a key that only holds anchors begins with {' or '.join(HOLDERS)}"
    raise RecipeError(f"{where}: unknown setting '{key}'{hint}")


def _read(key: str, node: yaml.Node, action: argparse.Action, where: str) -> object:
    """Return the value that YAML reads, or for a text setting the text: YAML would read 0123 as 83 and off as
    false."""
    try:
        value = yaml.safe_load(yaml.serialize(node))
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{where}: '{key}' has a value that YAML cannot read: {error}") from None
    kind = action.setting.read if isinstance(action, ListAction) else action.type
    if kind not in (None, str) or action.nargs == 0:  # 0: a switch
        return value
    if isinstance(node, yaml.SequenceNode) and action.nargs is not None:
        return [_as_written(item) for item in node.value]
    return _as_written(node, tuple(action.choices or ()))


def _as_written(node: yaml.Node, choices: Sequence[str] = ()) -> object:
    """Return a setting's text, or what YAML reads where it is none: null, true and false, a list, a mapping."""
    value = yaml.safe_load(yaml.serialize(node))
    is_bool = isinstance(value, bool) and node.value not in choices
    return value if not isinstance(node, yaml.ScalarNode) or value is None or is_bool else node.value


def _checked(key: str, item: object, action: argparse.Action, where: str) -> Any:
    setting = action.setting if isinstance(action, ListAction) else None
    kind: Any = setting.read if setting else action.type or str
    choices = setting.choices if setting else action.choices
    try:
        if kind in (int, float, str) and (item is None or isinstance(item, bool | dict | list)):
            raise ValueError
        converted = kind(str(item) if kind in (int, float, str) else item)
    except argparse.ArgumentTypeError as what:
        raise RecipeError(f"{where}: '{key}' takes {what}, found {item!r}") from None
    except ValueError:
        raise RecipeError(f"{where}: '{key}' takes {kind.__name__}, found {item!r}") from None
    if choices is not None and converted not in choices:
        near = difflib.get_close_matches(str(item), [str(choice) for choice in choices], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RecipeError(f"{where}: '{key}' is one of {', '.join(map(str, choices))}, found {item!r}{hint}")
    return converted


def _at(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into the nested form of a recipe file."""
    root: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return root


def write_resolved(settings: Mapping[str, Any], path: Path) -> None:
    """Write every setting that has a value, defaults included, as a recipe file that reads back to the same run."""
    said = {key: value for key, value in sorted(settings.items()) if value is not None}
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}
    path.write_text(yaml.safe_dump(nested(values), sort_keys=False))
