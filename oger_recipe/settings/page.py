"""docs/settings.md: ``python -m oger_recipe.settings.page > docs/settings.md`` writes it anew."""

from collections.abc import Iterator

from oger_recipe.settings.fields import Section, Setting
from oger_recipe.settings.oger import SECTIONS

_HEAD = """\
# The recipe's own settings

Written by `python -m oger_recipe.settings.page > docs/settings.md`, from the fields in `oger_recipe/settings/`.

Each setting is a flag of `oger train`, `--oger.bonus_weight 0.5`, and a line of a recipe file,
`oger: {bonus_weight: 0.5}`. `oger train --help SECTION` shows a section in the terminal, OpenRLHF's own flags too.
A value outside of what it may be is refused before anything starts; nan and infinity always are.
"""


def page() -> str:
    return "\n".join([_HEAD, *(line for section in SECTIONS for line in _section(section))])


def _section(section: type[Section]) -> Iterator[str]:
    yield f"## {section.title}: {section.about}\n"
    yield "| flag | default | may be | meaning |\n|---|---|---|---|"
    for each in section.settings():
        meaning, default = _said(each)
        cells = (f"`--{each.flag}`", default, _may_be(each), meaning.replace("<", "&lt;"))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _said(setting: Setting) -> tuple[str, str]:
    """Meaning and default, which the help text says where it is no value."""
    if setting.default is None or setting.default == ():
        meaning, _, default = setting.help.partition(" (default: ")
        return (meaning, default.removesuffix(")")) if default.endswith(")") else (setting.help, "none")
    if isinstance(setting.default, bool):
        return setting.help, "on" if setting.default else "off"
    return setting.help, f"`{' '.join(map(str, setting.default)) if setting.many else setting.default}`"


def _may_be(setting: Setting) -> str:
    if setting.choices:
        allowed = ", ".join(f"`{choice}`" for choice in setting.choices)
    elif setting.range:
        allowed = f"whole, {setting.range.text}" if setting.read is int else setting.range.text
    else:
        allowed = "on or off" if setting.read is bool else "text" if setting.read is str else "mapping"
    return f"several: {allowed}" if setting.many else allowed


if __name__ == "__main__":
    print(page(), end="")
