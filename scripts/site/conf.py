"""Sphinx's settings for the documentation site. `bash scripts/docs.sh` builds it.

The sources are the Markdown files as they stand on GitHub: no page has a directive. What GitHub does not need is added
here: the sidebar comes from the links on docs/index.md, and a filter box goes above long tables.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

INDEX = "docs/index"

project = "OGER for OpenRLHF"
html_title = project
extensions = ["myst_parser"]
root_doc = INDEX
include_patterns = ["*.md", "docs/**", "scripts/bench/*.md"]
exclude_patterns = [".*", "build", "oger_recipe", "patches", "runs", "tests"]  # no page is there: not searched
nitpicky = True  # a reference without a target is a warning, which ends the build
suppress_warnings = ["myst.header"]  # a page may begin below its first level, as changelogs do

myst_heading_anchors = 6  # GitHub's anchors
myst_enable_extensions = ["dollarmath"]
highlight_language = "text"
smartquotes = False  # they would turn --flag into a dash
pygments_style = "tango"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # it would fetch the pages, which a browser refuses without a server
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


def _contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give each section of the contents page a hidden toctree of the pages that its list links to."""
    if page != INDEX:
        return
    folder = Path(app.srcdir, page).parent
    sections = re.split(r"^(?=## )", source[0], flags=re.M)
    for at, section in enumerate(sections[1:], 1):
        links = re.findall(r"\[([^\]]+)\]\(([\w./-]+)\.md\)", section)
        entries = "".join(f"{title} </{_page(folder / path, app)}>\n" for title, path in links)
        caption = section.splitlines()[0].removeprefix("## ")
        sections[at] = f"{section}\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}```\n\n"
    source[0] = "".join(sections)


def _page(path: Path, app: Sphinx) -> str:
    return path.resolve().relative_to(app.srcdir).as_posix()


def _inline_math(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _displayed_math(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def _front_door(app: Sphinx, failed: Exception | None) -> None:
    if not failed:
        door = f'<!doctype html><meta http-equiv="refresh" content="0; url={INDEX}.html"><title>{project}</title>\n'
        Path(app.outdir, "index.html").write_text(door)


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (_inline_math, None), (_displayed_math, None))
    app.connect("source-read", _contents)
    app.connect("build-finished", _front_door)
