"""The pages for people name what exists: files, links, settings, flags of commands."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from oger_recipe.base.moved import MOVED
from oger_recipe.convert.engine import DIALECTS
from oger_recipe.report.metric_table import TABLE, lookup

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
GENERATED = {ROOT / "docs" / dialect.page for dialect in DIALECTS.values()}  # they name other trainers' flags
PAGES += sorted(set((ROOT / "docs").rglob("*.md")) - GENERATED)
ROOMS = {path.name for path in (ROOT / "oger_recipe").iterdir() if path.is_dir()}
ROOMS |= {name.partition(".")[0] for name in MOVED}  # a page may not name an earlier one
FOLDERS = {"oger_recipe", "patches", "scripts", "configs", "docs", "tests"}
SECTIONS = "actor|critic|ref|reward|algo|train|rollout|eval|data|vllm|ds|ckpt|logger|oger"
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def words(page: Path) -> list[str]:
    """What stands in backticks, but for code blocks and the names of files that a block is."""
    return re.findall(
        r"`([^`\n]+)`", re.sub(r"^(?:`[^`\n]+`:\n\n)?```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    )


def blocks(page: Path, language: str) -> str:
    return "\n".join(re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", page.read_text(), flags=re.M | re.S))


@each_page
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    missing = []
    for word in words(page):
        first = re.split("[/.]", word)[0]
        if re.fullmatch(r"oger_recipe(\.\w+)+", word):
            missing += [] if _exists(word) else [word]
        elif re.fullmatch(r"[\w./-]*test_\w+\.py", word):
            missing += [] if list((ROOT / "tests").rglob(word.removeprefix("tests/"))) else [word]
        elif re.fullmatch(r"[\w./-]+/[\w.-]*", word) and (first in ROOMS | FOLDERS or _is_ours(word, page)):
            found = lookup(word) or any((base / word).exists() for base in (ROOT, ROOT / "oger_recipe"))
            missing += [] if found else [word]
    assert not missing


@each_page
def test_metrics_that_a_page_names_are_in_the_table(page: Path) -> None:
    groups = {each.name.partition("/")[0] for each in TABLE if "/" in each.name} - ROOMS
    named = [word for word in words(page) if re.fullmatch(rf"(?:{'|'.join(groups)})/[\w/]+", word)]
    assert [word for word in named if lookup(word) is None] == []


def _is_ours(word: str, page: Path) -> bool:
    """Say whether a path is a module of this checkout; some pages name those of other projects."""
    return word.endswith(".py") and page.name != "known_faults.md"


@each_page
def test_functions_that_a_page_names_behind_a_file_are_in_it(page: Path) -> None:
    for path, name in re.findall(r"`([\w/]+\.py)`\s\(`(\w+)`\)", page.read_text()):
        source = next((base / path).read_text() for base in (ROOT, ROOT / "oger_recipe") if (base / path).exists())
        assert re.search(rf"^ *(?:def|class) {name}\b|^{name}\b", source, re.M), (path, name)


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@each_page
def test_registries_that_a_page_names_are_in_their_modules(page: Path) -> None:
    for names, path in re.findall(r"\| ((?:`[A-Z_]+`(?:, )?)+) \| `([\w/]+)\.py` \|", page.read_text()):
        module = importlib.import_module(f"oger_recipe.{path.replace('/', '.')}".removesuffix(".__init__"))
        assert all(isinstance(getattr(module, name), dict | list | tuple) for name in re.findall(r"\w+", names)), path


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[\w-]*)?\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", text):
        headings = re.findall(r"^#+ (.*)$", ((page.parent / target) if target else page).read_text(), flags=re.M)
        assert heading in [re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings]


@each_page
def test_settings_that_a_page_names_exist(page: Path, parser: argparse.ArgumentParser) -> None:
    """Sections of `--help`, and names of verl's in the first cells of from_other_trainers.md, are no settings."""
    known = {name[2:] for action in parser._actions for name in action.option_strings if name.startswith("--")}
    text = " ".join([*words(page), blocks(page, "bash")])
    if page.name == "from_other_trainers.md":
        text = " ".join(line.split("|")[2] for line in page.read_text().splitlines() if line.startswith("| `"))
    text = re.sub(r"--help \S+", "", text)
    for name in re.findall(rf"(?<![\w./-])(?:--(?:no-)?)?((?:{SECTIONS})\.[a-z]\w*(?:\.\w+)*)(?![\w/(.*])", text):
        if name.split(".")[-1] not in ("py", "md", "yaml", "jsonl", "json"):
            assert name in known or any(each.startswith(f"{name}.") for each in known), name


@each_page
def test_commands_that_a_page_shows_have_these_flags(page: Path) -> None:
    for command, rest in re.findall(r"^(?:\.venv/bin/)?oger ([\w-]+)((?:\\\n|[^\n#])*)", blocks(page, "bash"), re.M):
        flags = re.findall(r"(?<!\S)--\w[\w.-]*", rest)
        own = [flag for flag in flags if "." not in flag]  # the others are settings
        assert set(own) <= _flags(command), (command, own)


_HELP: dict[str, set[str]] = {}


def _flags(command: str) -> set[str]:
    if command not in _HELP:
        parts = {"data": ("prepare", "validate"), "prm": ("train", "eval", "label")}.get(command, ("",))
        main = importlib.import_module(f"oger_recipe.cli.{command.replace('-', '_')}").main
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            for part in parts:
                with contextlib.suppress(SystemExit):
                    main([*part.split(), "--help"])
        _HELP[command] = set(re.findall(r"--\w[\w-]*", shown.getvalue())) | {"--help"}
    return _HELP[command]


def test_the_readmes_rooms_are_those_that_the_architectures_test_holds_from_the_ground_up() -> None:
    rooms = re.findall(r"^\| `([\w/]+)/` \| ", (ROOT / "README.md").read_text().partition("## Architecture")[2], re.M)
    tested = runpy.run_path(str(ROOT / "tests" / "unit" / "test_architecture.py"))["ROOMS"]
    assert rooms == list(tested)
    assert all(rooms.index(other) < rooms.index(room) for room in rooms for other in tested[room].split())
