"""The documentation site: it builds without a warning, loads nothing from a network, has equations as MathML."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S

ROOT = Path(__file__).parents[2]
BROKEN = {
    "a page that is not there": ("[gone](gone.md)", "gone.md"),
    "an anchor that is not there": ("[gone](recipes.md#gone)", "'gone'"),
    "an anchor that is not on this page": ("[gone](#gone)", "'gone'"),
    "a picture that is not there": ("![gone](gone.png)", "gone.png"),
}


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/docs.sh's command, without its set-up."""
    command = re.search(r'bin/python" (-m sphinx .*) \. ', (ROOT / "scripts" / "docs.sh").read_text())
    assert command
    words = [sys.executable, *command[1].split(), ".", str(out)]
    return subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=HANG_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_for_people_is_built_and_the_front_door_opens(site: Path) -> None:
    pages = {path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    assert pages and all((site / page.with_suffix(".html")).exists() for page in pages)
    (target,) = re.findall(r"url=([^\"]+)", (site / "index.html").read_text())
    assert (site / target).exists()


def test_the_sidebar_follows_the_contents_page(site: Path) -> None:
    listed = re.findall(r"^## (.*)$", (ROOT / "docs" / "index.md").read_text(), re.M)
    shown = re.findall(r'<span class="caption-text">(.*?)</span>', (site / "README.html").read_text())
    assert listed and shown == listed


def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    """Links to click are fine; what a browser fetches by itself is not."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=["']?(?:https?:)?//
            |<link\b(?=[^>]*?\brel=["']?(?:stylesheet|preload|icon|preconnect|modulepreload))[^>]*?href=["']?(?:https?:)?//
            |url\(["']?(?:https?:)?//|@import\s+["'](?:https?:)?//|\bfetch\(["'](?:https?:)?//
            |\bimport\(?\s*["'](?:https?:)?//""",
        re.X,
    )
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".js")]
    assert len(files) > 40
    for path in files:
        found = fetched.search(path.read_text(encoding="utf-8"))
        assert not found, (path, found)


def test_equations_are_mathml(site: Path) -> None:
    page = (site / "docs" / "concepts.html").read_text()
    written = (ROOT / "docs" / "concepts.md").read_text().count("\n$$\n") // 2
    assert page.count('<div class="math"><math') == written > 0
    assert not re.search(r"\\(?:frac|sum|tau|beta)", page)


def test_the_filter_and_the_search_work_from_disk(site: Path, chromium: Any) -> None:
    page, said = chromium.new_page(), []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((site / "docs" / "settings.html").as_uri())
    rows = page.locator("article tbody tr:visible")
    every = rows.count()
    page.locator(".filter input").fill("BONUS schedule")
    assert 0 < rows.count() < every
    assert all("bonus" in text.lower() and "schedule" in text.lower() for text in rows.all_inner_texts())
    assert page.locator(".filter output").inner_text() == f"{rows.count()} of {every} rows"
    page.locator(".filter input").fill("")
    assert rows.count() == every

    page.locator("input.sidebar-search").fill("truncated")
    page.keyboard.press("Enter")
    page.locator("ul.search li a", has_text="Metrics").wait_for()
    page.goto((site / "docs" / "quickstart.html").as_uri())
    assert not page.locator(".filter").count()  # a page without long tables
    assert said == []


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a contents page that lists one other."""
    folder = tmp_path_factory.mktemp("few")
    shutil.copytree(ROOT / "scripts" / "site", folder / "scripts" / "site")
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text("# Contents\n\n## Start\n\n- [Recipes](recipes.md)\n")
    return folder


@pytest.mark.parametrize("text, named", BROKEN.values(), ids=BROKEN)
def test_a_broken_link_ends_the_build(few: Path, tmp_path: Path, text: str, named: str) -> None:
    (few / "docs" / "recipes.md").write_text(f"# Recipes\n\n{text}\n")
    done = build(few, tmp_path / "out")
    assert done.returncode == 1 and "recipes.md" in done.stderr and named in done.stderr


def test_a_page_in_no_contents_ends_the_build(few: Path, tmp_path: Path) -> None:
    (few / "docs" / "recipes.md").write_text("# Recipes\n\n## Here\n\n[here](#here)\n")
    assert build(few, tmp_path / "whole").returncode == 0
    (few / "docs" / "lost.md").write_text("# Lost\n")
    done = build(few, tmp_path / "out")
    (few / "docs" / "lost.md").unlink()
    assert done.returncode == 1 and "lost.md: WARNING: document isn't included in any toctree" in done.stderr
