"""The import contract: what each room may import, and that nothing imports in a circle.

A room is a folder of oger_recipe/; patches/ is one, and so is rewards/kinds/. Imports inside functions count, and
those for type checkers alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Room -> the other rooms that it imports, from the ground up; nothing is listed that it does not import.
ROOMS = {
    "base": "",
    "algorithm": "",
    "patches": "base",
    "grading": "base",
    "teachers": "algorithm base",
    "embedding": "algorithm base",
    "data": "base grading teachers",
    "rewards": "algorithm base embedding grading",
    "models": "algorithm base grading patches rewards",
    "rewards/kinds": "algorithm base embedding grading models rewards",
    "evaluation": "base data grading rewards/kinds",
    "run_folder": "base evaluation",
    "settings": "algorithm base data embedding grading models rewards rewards/kinds",
    "report": "base evaluation run_folder settings",
    "prm": "base data evaluation models report rewards",
    "lab": "algorithm base data evaluation grading prm report rewards rewards/kinds settings teachers",
    "pipeline": (
        "algorithm base embedding evaluation grading models patches rewards rewards/kinds run_folder settings teachers"
    ),
    "checks": (
        "algorithm base data embedding evaluation grading lab models pipeline rewards rewards/kinds run_folder "
        "settings teachers"
    ),
    "run": (
        "base checks data evaluation grading lab patches pipeline report rewards/kinds run_folder settings teachers"
    ),
    "offline": (
        "algorithm base checks data embedding evaluation grading lab models pipeline rewards rewards/kinds run "
        "settings teachers"
    ),
    "convert": "algorithm base checks settings",
    "cli": (
        "base checks convert data evaluation grading models offline pipeline prm report rewards/kinds run run_folder "
        "settings"
    ),
}
# The same within pipeline/, whose folders are the processes of a run; what several need lies in pipeline/ itself.
PROCESSES = {
    "pipeline": "",
    "engine": "pipeline",
    "policy": "pipeline",
    "judges": "",
    "encoder": "",
    "controller": "encoder judges pipeline",
    "driver": "controller engine judges pipeline policy",
}

TRAINERS = {"openrlhf", "ray", "vllm", "deepspeed"}
ONLY_HERE = ("pipeline", "patches")


def _sources() -> dict[str, Path]:
    """Every module of the package, patches/ included, by its name."""
    found = {}
    for folder, package in ((ROOT / "oger_recipe", "oger_recipe"), (ROOT / "patches", "oger_recipe.patches")):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a module imports, of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Module -> modules of ours. Importing a package's member imports the package as well, which is no user of it."""
    return {name: {other for other in names if other in SOURCES and other != name} for name, names in found.items()}


SOURCES = _sources()
IMPORTED = {name: set(imported(ast.parse(path.read_text()))) for name, path in SOURCES.items()}
OURS = ours(IMPORTED)


def room_of(module: str) -> str:
    """Return the longest listed room that holds the module; the package's own __init__ is in none."""
    folders = module.split(".")[1:]
    names = ("/".join(folders[:length]) for length in range(len(folders), 0, -1))
    return next((name for name in names if name in ROOMS), "")


def process_of(module: str) -> str:
    folders = module.split(".")[2:-1]
    return folders[0] if folders else "pipeline"


def _between(part_of, modules) -> dict[str, set[str]]:
    """Part -> the other parts that its modules import."""
    found: dict[str, set[str]] = {}
    for module in modules:
        others = {part_of(other) for other in OURS[module] if other in modules}
        found.setdefault(part_of(module), set()).update(others - {part_of(module)})
    return found


def _no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_rooms_that_are_listed_and_no_other(room: str) -> None:
    found = _between(room_of, SOURCES)[room] - {""}
    assert sorted(found) == sorted(ROOMS[room].split())


def test_every_folder_is_a_listed_room() -> None:
    folders = {path.parent.name for path in (ROOT / "oger_recipe").glob("*/*.py")}
    assert folders | {"patches", "rewards/kinds"} == set(ROOMS)


def test_algorithm_is_tensor_mathematics() -> None:
    """No files, no processes, no settings: torch and what Python's library has for types."""
    names = {name for module in SOURCES if room_of(module) == "algorithm" for name in IMPORTED[module]}
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"torch", "oger_recipe"}
    assert {room_of(name) for name in names if name in SOURCES} == {"algorithm"}


def test_the_folders_of_the_pipeline_are_processes_that_share_what_lies_beside_them() -> None:
    modules = {name for name in SOURCES if room_of(name) == "pipeline" and name.count(".") > 1}
    found = {part: sorted(others) for part, others in _between(process_of, modules).items()}
    assert found == {part: sorted(others.split()) for part, others in PROCESSES.items()}


def test_the_trainer_is_imported_by_the_pipeline_and_the_patches_alone() -> None:
    found = {name: {other.partition(".")[0] for other in names} & TRAINERS for name, names in IMPORTED.items()}
    elsewhere = {name: names for name, names in found.items() if names and room_of(name) not in ONLY_HERE}
    assert elsewhere == {}


def test_no_shortcut_of_old_comes_back() -> None:
    """Importing a package of pipeline/ prepares its process, conftest.py the tests; constructors make objects."""
    shortcuts = {"noqa" + ": E402", "object." + "__new__"}
    sources = [
        path for folder in ("oger_recipe", "patches", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    found = {str(path.relative_to(ROOT)) for path in sources if any(each in path.read_text() for each in shortcuts)}
    assert found == set()


def test_no_module_imports_itself_by_way_of_others() -> None:
    _no_circle(OURS)


def test_no_room_imports_itself_by_way_of_others() -> None:
    _no_circle(_between(room_of, SOURCES))
