"""Turns a command into a recipe: looks its flags up, one by one, in the table of its dialect."""

from __future__ import annotations

import argparse
import difflib
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks.settings import check_run
from oger_recipe.convert.dialect import Argument, Dialect
from oger_recipe.convert.oat.dialect import OAT
from oger_recipe.convert.openr.dialect import OPENR
from oger_recipe.convert.recipe_text import recipe_text
from oger_recipe.convert.script import Command, read_command
from oger_recipe.convert.values import UNSET, Flag, Get, NoEffect, Unsupported, checked, placeholders
from oger_recipe.convert.verl_mix.dialect import VERL_MIX
from oger_recipe.convert.verl_rms.dialect import VERL_RMS
from oger_recipe.settings.derived import in_prompts, with_verifier_path
from oger_recipe.settings.flags import defaults
from oger_recipe.settings.recipe_file import read_recipe

DIALECTS = {dialect.name: dialect for dialect in (VERL_MIX, VERL_RMS, OPENR, OAT)}
_SOURCES = "oger.reward.sources"
_DIVIDES = "a flag that it is divided by is 0"
# Settings whose files may lie on another machine.
_FILES = (
    "actor.model_name_or_path", "data.prompt_dataset", "eval.dataset", "oger.embedding_model",
    "oger.similarity_reranker", _SOURCES,
)  # fmt: skip


@dataclass
class Conversion:
    """settings: our flag -> (value, the flags that it comes from, whether one of them is in the command)."""

    settings: dict[str, tuple[Any, list[str], bool]] = field(default_factory=dict)
    without_effect: dict[str, str] = field(default_factory=dict)  # name=value -> reason
    differing: dict[str, str] = field(default_factory=dict)  # name -> what is not exactly as there
    remarks: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)  # before the recipe can run
    problems: list[str] = field(default_factory=list)
    text: str = ""  # the recipe file; "" with problems


def convert(
    text: str, source: str, parser: argparse.ArgumentParser, variables: Mapping[str, str], out: Path | None = None
) -> Conversion:
    """Convert the one training command in ``text``, the content of the file ``source``.

    ``parser`` is that of `oger train` on a GPU machine: what equals its defaults is not written unless the command
    says it. ``out``: where the recipe will be, beside which `oger train` will look for its plugins. Collect problems
    and raise nothing.
    """
    command = read_command(text, variables, list(DIALECTS.values()))
    result = Conversion(remarks=list(command.remarks), problems=list(command.problems))
    if command.dialect is not None:
        _convert(command, command.dialect, source, parser, out, result)
    return result


def _convert(
    command: Command,
    dialect: Dialect,
    source: str,
    parser: argparse.ArgumentParser,
    out: Path | None,
    result: Conversion,
) -> None:
    given = _given(command, dialect, result)
    get = _getter({name: value for name, (value, _) in given.items()}, dialect)
    for name, (value, line) in given.items():
        _apply(dialect.find(name), name, value, line, get, result)
    for flag in dialect.flags.values():
        if flag.name not in given and flag.default is not UNSET and not result.problems:
            _apply_default(flag, get, result, parser)
    for key, value in dialect.always.items():
        _add(result, key, value, f"not a flag of {dialect.trainer}", given=True)
    result.differing |= dialect.differing(get)
    _environment(command, dialect, result)
    result.problems = list(dict.fromkeys(result.problems))
    if not result.problems:
        result.to_do = list(dialect.to_do(get))
        _finish(result, dialect, source, parser, out)


def _given(command: Command, dialect: Dialect, result: Conversion) -> dict[str, tuple[Any, int]]:
    """Return the command's flags with their values and lines; the last of several counts."""
    given: dict[str, tuple[Any, int]] = {}
    for argument in command.arguments:
        flag = dialect.find(argument.name)
        if flag is None:
            result.problems.append(_unknown(argument, dialect))
            continue
        if argument.name in given:
            result.remarks.append(f"{argument.name} is given more than once: the last one counts ({argument.text})")
        try:
            value = dialect.value(argument.text, flag.value_type())
            given[argument.name] = (checked(value, flag), argument.line)
        except Unsupported as problem:
            result.problems.append(f"line {argument.line}: {argument.name}={argument.text}: {problem}")
    return given


def _unknown(argument: Argument, dialect: Dialect) -> str:
    name, leaf = argument.name, argument.name.rpartition(".")[2]
    leaves = {known.rpartition(".")[2]: known for known in dialect.flags}
    near = difflib.get_close_matches(name, dialect.flags, n=1, cutoff=0.8)
    near = near or [leaves[each] for each in difflib.get_close_matches(leaf, leaves, n=1)]
    near = near or difflib.get_close_matches(name, dialect.flags, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"line {argument.line}: unknown flag {name}{hint}"


def _getter(values: Mapping[str, Any], dialect: Dialect) -> Get:
    def get(name: str) -> Any:
        if name in values:
            return values[name]
        default = dialect.flags[name].left_out(get)
        return None if default is UNSET else default

    return get


def _apply(flag: Flag | None, name: str, value: Any, line: int, get: Get, result: Conversion) -> None:
    assert flag is not None
    try:
        settings = flag.rule(value, get)
    except NoEffect as reason:
        result.without_effect[f"{name}={_word(value)}"] = str(reason)
        return
    except (Unsupported, ZeroDivisionError) as problem:
        why = problem if isinstance(problem, Unsupported) else _DIVIDES
        result.problems.append(f"line {line}: {name}={_word(value)}: {why}")
        return
    if flag.differs:
        result.differing[name] = flag.remark
    for key, setting in settings.items():
        _add(result, key, setting, name, given=True)


def _apply_default(flag: Flag, get: Get, result: Conversion, parser: argparse.ArgumentParser) -> None:
    default = flag.left_out(get)
    try:
        settings = flag.rule(default, get)
    except NoEffect:
        return
    except (Unsupported, ZeroDivisionError) as problem:
        why = problem if isinstance(problem, Unsupported) else _DIVIDES
        result.problems.append(f"{flag.name} is not given, and its default is {_word(default)}: {why}")
        return
    for key, value in settings.items():
        ours = parser.get_default(key)
        same = value == (list(ours) if isinstance(ours, tuple) else ours)
        if key in result.settings or not same:
            _add(result, key, value, flag.name, given=False)


def _add(result: Conversion, key: str, value: Any, name: str, *, given: bool) -> None:
    _, sources, was_given = result.settings.get(key, (value, [], False))
    if given or not was_given:
        result.settings[key] = (value, [*sources, name], given or was_given)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return "null" if value is None else str(value)


def _environment(command: Command, dialect: Dialect, result: Conversion) -> None:
    """Turn exported variables into settings, or into remarks: the user may have to export them here as well."""
    known = {flag.name: flag for flag in dialect.environment}
    for name, value in command.environment.items():
        if name in known:
            _apply(known[name], name, value, 0, _getter({}, dialect), result)
        elif name not in command.used:
            result.remarks.append(f"the script exports {name}: export it where `oger train` starts, if it is needed")


def _finish(
    result: Conversion, dialect: Dialect, source: str, parser: argparse.ArgumentParser, out: Path | None
) -> None:
    """Write the recipe and read it back as `oger train` will."""
    order = {name[2:]: place for place, action in enumerate(parser._actions) for name in action.option_strings}
    result.settings = dict(sorted(result.settings.items(), key=lambda item: order[item[0]]))
    unset = {key: text for key, (value, _, _) in result.settings.items() for text in placeholders(value)}
    result.to_do += [f"set {key}, which is {text}" for key, text in unset.items()]
    for sentence in _refusals(recipe_text(result.settings, ()), parser, out):
        key = re.split("[:, ]", sentence)[0]
        if key in _FILES and key not in unset and (key != _SOURCES or "no such" in sentence):
            result.to_do.append(sentence)
        elif key not in unset:
            result.problems.append(f"the recipe would be refused: {sentence}")
    if not result.problems:
        result.text = recipe_text(result.settings, _header(result, dialect, source), dialect.common_prefix)


def _refusals(text: str, parser: argparse.ArgumentParser, out: Path | None) -> list[str]:
    """Return the sentences by which `oger train` would refuse the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            settings = in_prompts(defaults(parser) | read_recipe(path, parser))
            settings = with_verifier_path(settings, out)
            check_run(settings, cpu=False, gpus_here=None)
        except RecipeError as error:
            first, *sentences = str(error).replace(f"{path}:", "line ").split("\n  - ")
            return sentences or [first]
    return []


def _header(result: Conversion, dialect: Dialect, source: str) -> Iterable[str]:
    without = f", without {dialect.common_prefix.rstrip('.')}" if dialect.common_prefix else ""
    yield (
        f"Written by `oger convert` from the training command in {source}. Names behind # are the command's flags"
        f"{without}; (default) marks what the command leaves at the default of {dialect.trainer}. All flags are "
        f"explained in docs/{dialect.page}."
    )
    for title, lines in (
        ("Set this before training:", result.to_do),
        ("Without effect here:", [f"{flag}: {reason}" for flag, reason in result.without_effect.items()]),
        ("Different from the command:", [f"{name}: {remark}" for name, remark in result.differing.items()]),
        ("Also:", result.remarks),
    ):
        if lines:
            yield ""
            yield title
            yield from (f"  {line}" for line in lines)
