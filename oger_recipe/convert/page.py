"""docs/oger_flags.md, from the table."""

from __future__ import annotations

from collections.abc import Iterator

from oger_recipe.convert.flags import ENVIRONMENT, SECTIONS
from oger_recipe.convert.values import Flag

_INTRODUCTION = """# OGER's and LUFFY's flags and ours

Every flag of OGER's training command and of LUFFY's configuration (`verl.mix_src`), on which OGER's code builds. This
page is written from the table by which `oger convert` reads commands: `oger convert --table > docs/oger_flags.md`.

The second column has the values of the command that OGER's page publishes; where it is empty, the flag stays at its
default there, which `oger convert` carries over as well. Flags without a counterpart say why none is needed. "alone"
means: any other value is refused, with what to do instead. What OGER adds to LUFFY's flags has no public
documentation; "read from its name" marks what rests on the name alone.
"""


def page() -> str:
    """The page's text."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    for title, flags in (SECTIONS | {"Environment variables": ENVIRONMENT}).items():
        yield f"## {title}\n"
        yield "| flag | in OGER's command | here | |"
        yield "|---|---|---|---|"
        yield from (_row(flag) for flag in flags)
        yield ""


def _row(flag: Flag) -> str:
    seed = f"`{flag.seed}`" if flag.seed is not None else ""
    ours = ", ".join(f"`{name.strip()}`" for name in flag.ours.split(",")) if flag.ours else "none"
    return f"| `{flag.name}` | {seed} | {ours} | {flag.remark} |"
