"""docs/settings.md: ``python -m oger_recipe.settings.page > docs/settings.md`` writes it anew."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_type_hints

from oger_recipe.rewards.kinds import KINDS, SCORERS
from oger_recipe.rewards.spec import COMMON, SourceSpec
from oger_recipe.settings import upstream
from oger_recipe.settings.fields import Rules, Section, Setting
from oger_recipe.settings.oger import SECTIONS

_HEAD = """\
# The recipe's own settings

Written by `python -m oger_recipe.settings.page > docs/settings.md`, from the fields in `oger_recipe/settings/`.

Each setting is a flag of `oger train`, `--oger.bonus_weight 0.5`, and a line of a recipe file,
`oger: {bonus_weight: 0.5}`. `oger train --help SECTION` shows a section in the terminal, OpenRLHF's own flags too.
A value outside of *allowed* is refused before anything starts; so are nan and infinity. A setting without what it
*needs* has no effect, and a note says so. A resumed run must keep *fixed* settings. It may change *free* ones, and
*noted* ones with a note.
"""


def page() -> str:
    sections = [line for section in SECTIONS for line in _section(section)]
    return "\n".join([_HEAD, *sections, *_upstream(), *_sources()])


def _section(section: type[Section]) -> Iterator[str]:
    yield f"## {section.title}: {section.about}\n"
    yield "| flag | default | allowed | on resume | meaning |\n|---|---|---|---|---|"
    for each in section.settings():
        meaning, default = _said(each)
        needs = "".join(f"; needs {need.text}" for need in each.needs)
        yield _row(f"`--{each.flag}`", default, _may_be(each), _resumed(each), meaning + needs)
    yield ""


def _upstream() -> Iterator[str]:
    """Yield what is declared of OpenRLHF's flags; those with the same rules share a row."""
    yield "## OpenRLHF's flags\n\n| flags | allowed | on resume | needs |\n|---|---|---|---|"
    flags: dict[Rules, list[str]] = {}
    for flag, rules in upstream.RULES.items():
        flags.setdefault(rules, []).append(f"`--{flag}`")
    for rules, names in flags.items():
        needs = ", and ".join(need.text for need in rules.needs)
        yield _row(", ".join(names), rules.range.text if rules.range else "", _resumed(rules), needs)
    yield "\nAll other flags take what OpenRLHF takes; a resumed run may change them, with a note.\n"


def _resumed(rules: Rules) -> str:
    return "noted" if rules.resume is None else "fixed" if rules.resume else "free"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


def _sources() -> Iterator[str]:
    """Yield the keys of oger.reward.sources' entries: those of all, and those that kinds add, each class once."""
    yield "## The keys of an entry of oger.reward.sources\n"
    kinds = ", ".join(f"`{kind}`" for kind in KINDS)
    yield f"The kinds are {kinds}, and `package.module:name` of your own. All kinds have:\n"
    yield from _keys([(each, SourceSpec) for each in COMMON])
    of_kinds = [(f"`{name}`", keys) for name, keys in KINDS.items()]
    of_kinds += [
        (f"`{name}` with scorer `{scorer}`", keys)
        for name, by_scorer in SCORERS.items()
        for scorer, keys in by_scorer.items()
    ]
    adding = dict.fromkeys(each for _, keys in of_kinds for each in reversed(keys.__mro__) if each is not object)
    tables: dict[str, list[Any]] = {}  # classes that the same kinds have share a table
    for keys in adding:
        own = [each for each in fields(keys) if each.name in vars(keys).get("__annotations__", ())]
        if own:
            names = ", ".join(name for name, of_kind in of_kinds if issubclass(of_kind, keys))
            tables.setdefault(names, []).extend((each, keys) for each in own)
    for names, listed in tables.items():
        yield f"{names}:\n"
        yield from _keys(listed)
    yield "A class of your own has the keyword arguments of its constructor as keys.\n"


def _keys(listed: Sequence[tuple[Field[Any], type]]) -> Iterator[str]:
    """Yield the table of these fields, each with its class."""
    yield "| key | default | allowed | meaning |\n|---|---|---|---|"
    for each, of in listed:
        hints = get_type_hints(of)
        known, types = each.metadata, get_args(hints[each.name]) or (hints[each.name],)
        read = next(kind for kind in types if kind is not type(None))
        default = None if each.default is MISSING else each.default
        setting = Setting(
            flag=each.name,
            default=default,
            help=known["help"],
            read=read,
            choices=known["choices"],
            range=known["range"],
        )
        meaning, said = _said(setting)
        yield _row(f"`{each.name}`", "needed" if each.default is MISSING else said, _may_be(setting), meaning)
    yield ""


def _said(setting: Setting) -> tuple[str, str]:
    """Return meaning and default; the help text states a default that is no value."""
    if setting.default is None or setting.default == ():
        meaning, _, default = setting.help.partition(" (default: ")
        return (meaning, default.removesuffix(")")) if default.endswith(")") else (setting.help, "none")
    if isinstance(setting.default, bool):
        return setting.help, "on" if setting.default else "off"
    said = " ".join(map(str, setting.default)) if setting.many else str(setting.default)
    return setting.help, "`" + said.replace("\n", "\\n") + "`"


def _may_be(setting: Setting) -> str:
    if setting.choices:
        allowed = ", ".join(f"`{choice}`" for choice in setting.choices)
    elif setting.range and setting.read in (int, float):
        allowed = f"integer, {setting.range.text}" if setting.read is int else setting.range.text
    else:
        allowed = "on or off" if setting.read is bool else "text" if setting.read is str else "mapping"
    return f"several: {allowed}" if setting.many else allowed


if __name__ == "__main__":
    print(page(), end="")
