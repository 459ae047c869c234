"""The YAML file that sets any flag.

A recipe file is nested YAML whose paths are the flags of the command line: ``actor: {adam: {lr: 1e-6}}`` is
``--actor.adam.lr 1e-6``. Flags given on the command line win over the file.
"""

import argparse
import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from oger_recipe.errors import RecipeError
from oger_recipe.secrets import SECRETS
from oger_recipe.settings.parser import ListAction
from oger_recipe.settings.shipped import shipped

EXTENDS = "extends"  # a recipe file's key for the file it builds on


def read_recipe(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """The recipe file as command-line tokens. Its settings lie over those of the file that its key `extends` names.

    Raises:
        RecipeError: the file is missing or not YAML, a key is unknown, or a value has the wrong type; with all that
            is wrong in it, and in the files that it builds on.
    """
    actions = _by_name(parser)
    mistakes: list[str] = []
    tokens: dict[str, list[str]] = {}  # a flag and its opposite are one setting: the last of them decides
    for key, (node, file) in _settings(path, (), mistakes).items():
        try:
            found = _tokens(key, node, actions, file)
        except RecipeError as mistake:
            is_secret = key in SECRETS  # which is not repeated
            mistakes.append(f"{_at(file, node)}: '{key}' takes one text" if is_secret else str(mistake))
            continue
        if key in actions:  # else a section without settings
            tokens[actions[key].dest] = found
    if mistakes := list(dict.fromkeys(mistakes)):
        heading = [f"{len(mistakes)} mistakes in the recipe:"] if len(mistakes) > 1 else []
        raise RecipeError("\n  - ".join([*heading, *mistakes]))
    return [token for found in tokens.values() for token in found]


def set_in(path: Path, parser: argparse.ArgumentParser, value: dict[str, Any]) -> dict[str, str]:
    """Of the settings ``value``, those that the recipe file or one it builds on decides: flag -> file and line."""
    actions, alone = _by_name(parser), vars(parser.parse_args(read_recipe(path, parser)))
    nodes = {key: place for key, place in _settings(path, (), []).items() if key in actions}
    places = {actions[key].dest: _at(file, node) for key, (node, file) in nodes.items()}
    return {flag: place for flag, place in places.items() if repr(alone[flag]) == repr(value[flag])}  # nan is not nan


def _by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The parser's settings by their names in a recipe file."""
    return {name[2:]: action for action in parser._actions for name in action.option_strings if name[:2] == "--"}


def _settings(path: Path, children: tuple[Path, ...], mistakes: list[str]) -> dict[str, tuple[yaml.Node, Path]]:
    """Dotted keys with their value nodes and files: those of the file that `path` extends, under its own.

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
                mistakes.append(f"{_at(path, node)}: '{EXTENDS}' names another recipe file; there is no {parent}")
            elif parent.resolve() in (path.resolve(), *children):
                mistakes.append(f"{_at(path, node)}: '{EXTENDS}: {node.value}' leads back to this file")
            else:
                settings = _settings(parent, (*children, path.resolve()), mistakes)
        elif key in own:  # once nested, once dotted
            mistakes.append(f"{_at(path, node)}: '{key}' is set twice")
        else:
            own[key] = (node, path)
    reset = tuple(f"{key}." for key, (node, _) in own.items() if _is_null(node))
    return {key: setting for key, setting in settings.items() if not key.startswith(reset)} | own


def _is_null(node: yaml.Node) -> bool:
    """Whether null is written there: a section whose settings are all commented out is null too, and says nothing."""
    return node.tag == "tag:yaml.org,2002:null" and bool(node.value)


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


def _leaves(
    node: yaml.Node | None, path: Path, mistakes: list[str], prefix: str = ""
) -> Iterator[tuple[str, yaml.Node]]:
    """Dotted keys and their value nodes; what is wrong with keys is added to ``mistakes``."""
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else repr(node.value)
        mistakes.append(f"{_at(path, node)}: expected a mapping of settings, found {found}")
        return
    seen: set[str] = set()
    for key_node, value in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            mistakes.append(f"{_at(path, key_node)}: the name of a setting is plain text, not a list or mapping")
        elif key_node.value in seen:
            mistakes.append(f"{_at(path, key_node)}: '{prefix}{key_node.value}' is set twice")
        else:
            seen.add(key_node.value)
            key = prefix + key_node.value
            if isinstance(value, yaml.MappingNode):
                yield from _leaves(value, path, mistakes, key + ".")
            else:
                yield key, value


def _tokens(key: str, node: yaml.Node, actions: dict[str, argparse.Action], path: Path) -> list[str]:
    action = actions.get(key)
    if action is None:
        if any(name.startswith(key + ".") for name in actions):
            if node.tag == "tag:yaml.org,2002:null":
                return []  # a section whose settings are all commented out
            raise RecipeError(f"{_at(path, node)}: '{key}' is a section: its settings go below it, one a line")
        above = key.rpartition(".")[0]
        if isinstance(actions.get(above), ListAction):
            raise RecipeError(f"{_at(path, node)}: '{above}' takes a list; of mappings each begins with a dash")
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
    if isinstance(action, ListAction):
        return [f"--{key}={json.dumps(values)}"]
    # Given as a flag, a default like the text "all-linear" would come back as a list.
    return [] if value == default else [f"--{key}", *(_word(item, action) for item in values)]


def _word(item: object, action: argparse.Action) -> str:
    """One of several values as a token. argparse takes -1e-05 for a flag, but nothing with a space in it."""
    text = str(item)
    return f" {text}" if text.startswith("-") and action.type in (int, float) else text


def _value(key: str, node: yaml.Node, action: argparse.Action, path: Path) -> object:
    """The value that YAML reads; for a text setting the text itself: YAML would read 0123 as 83 and off as false."""
    try:
        value = yaml.safe_load(yaml.serialize(node))
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{_at(path, node)}: '{key}' has a value that YAML cannot read: {error}") from None
    kind = action.setting.read if isinstance(action, ListAction) else action.type
    if kind not in (None, str) or action.nargs == 0:  # 0: a switch
        return value
    if isinstance(node, yaml.SequenceNode) and action.nargs is not None:
        return [_as_written(item) for item in node.value]
    return _as_written(node, tuple(action.choices or ()))


def _as_written(node: yaml.Node, choices: Sequence[str] = ()) -> object:
    """A text setting's text; as YAML reads it where that is no text: null, true and false, a list, a mapping."""
    value = yaml.safe_load(yaml.serialize(node))
    is_bool = isinstance(value, bool) and node.value not in choices
    return value if not isinstance(node, yaml.ScalarNode) or value is None or is_bool else node.value


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


def _at(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def in_prompts(args: argparse.Namespace, tokens: Sequence[str]) -> list[str]:
    """The flags with train.batch_size, which counts rollouts, where the optimizer step is given in prompts."""
    prompts = vars(args)["oger.prompts_per_update"]
    if prompts is None:
        return list(tokens)
    return [*tokens, f"--train.batch_size={prompts * vars(args)['rollout.n_samples_per_prompt']}"]


def with_verifier_path(args: argparse.Namespace, tokens: Sequence[str], recipe: Path | None) -> list[str]:
    """The flags with oger.verifier_path, by default the recipe file's folder and the working directory.

    As flags they are kept with the run: continued from its own folder it still finds its verifiers.
    """
    given = vars(args)["oger.verifier_path"] or ([recipe.parent] if recipe else []) + [Path.cwd()]
    folders = list(dict.fromkeys(str(Path(folder).expanduser().absolute()) for folder in given))
    return [*tokens, f"--oger.verifier_path={json.dumps(folders)}"]


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
