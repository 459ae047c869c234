"""Writes a dialect's page in docs/ from its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.values import Flag


def page(dialect: Dialect) -> str:
    """Write the page's text."""
    return "\n".join([dialect.introduction, *_sections(dialect)])


def _sections(dialect: Dialect) -> Iterator[str]:
    titles = " | ".join(dialect.published)
    for title, flags in {**dialect.sections, "Environment variables": dialect.environment}.items():
        yield f"## {title}\n"
        yield f"| flag | {titles} | here | |"
        yield "|---" * (len(dialect.published) + 3) + "|"
        yield from (_row(flag, [values.get(flag.name) for values in dialect.published.values()]) for flag in flags)
        yield ""


def _row(flag: Flag, published: Sequence[str | None]) -> str:
    values = " | ".join("" if value is None else f"`{value}`" for value in published)
    ours = ", ".join(f"`{name.strip()}`" for name in flag.ours.split(",")) if flag.ours else "none"
    return f"| `{flag.name}` | {values} | {ours} | {flag.remark} |"
