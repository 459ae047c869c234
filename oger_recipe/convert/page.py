"""Writes a dialect's page in docs/ from its table."""

from __future__ import annotations

from collections.abc import Iterator

from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.values import Flag


def page(dialect: Dialect) -> str:
    """Returns the page's text."""
    return "\n".join([dialect.introduction, *_sections(dialect)])


def _sections(dialect: Dialect) -> Iterator[str]:
    for title, flags in {**dialect.sections, "Environment variables": dialect.environment}.items():
        yield f"## {title}\n"
        yield f"| flag | {dialect.published} | here | |"
        yield "|---|---|---|---|"
        yield from (_row(flag) for flag in flags)
        yield ""


def _row(flag: Flag) -> str:
    published = f"`{flag.published}`" if flag.published is not None else ""
    ours = ", ".join(f"`{name.strip()}`" for name in flag.ours.split(",")) if flag.ours else "none"
    return f"| `{flag.name}` | {published} | {ours} | {flag.remark} |"
