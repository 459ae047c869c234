"""The folders that come with the package, in a checkout or in a wheel: the recipe files, and the documents."""

import difflib
from pathlib import Path

import oger_recipe
from oger_recipe.base.errors import RecipeError


def folder(name: str) -> Path:
    return next(found for place in oger_recipe.__path__ if (found := Path(place) / name).is_dir())


def shipped() -> dict[str, Path]:
    """Return the recipe files' paths by their names."""
    return {path.name: path for path in sorted(folder("configs").glob("*.yaml"))}


def find_recipe(given: Path) -> Path:
    """Return the file itself where it exists; else the shipped one of this name, with or without configs/ and .yaml.

    Raises RecipeError when there is neither.
    """
    if given.is_file() or given.is_absolute() or given.parent not in (Path("."), Path("configs")):
        return given
    name = given.name if given.suffix == ".yaml" else f"{given.name}.yaml"
    known = shipped()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(Path(name).stem, [Path(each).stem for each in known], n=1)
    hint = f"; did you mean {near[0]}.yaml?" if near else f"; shipped recipes: {', '.join(known)}"
    raise RecipeError(f"{given}: no such recipe file{hint}")
