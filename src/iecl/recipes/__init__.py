"""Recipes: TOML files with the same keys as a run's settings.toml, with lines missing. Any run directory is one too."""

from importlib import resources
from pathlib import Path
from typing import Any

from iecl.errors import UserError, did_you_mean
from iecl.names import current_settings
from iecl.settings import merge, read_toml


def list_recipes() -> dict[str, str]:
    """Every recipe by name, with the first line of its file as a summary."""
    root = Path(str(resources.files("iecl.recipes")))
    found = {}
    for path in sorted(root.glob("*/*.toml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[f"{path.parent.name}/{path.stem}"] = first.lstrip("# ").strip()
    return found


def read_recipe(name: str, method: str = "") -> dict[str, Any]:
    """The values of a recipe: `method/name`, a bare name of the given method, a TOML file, or a run directory.

    A recipe may start from another one with `base = "method/name"`, and that one from a third.
    """
    values: dict[str, Any] = {}
    seen: list[str] = []
    base: Any = name
    while base is not None:
        if not isinstance(base, str):
            raise UserError(f"recipe {seen[-1]} starts from no recipe", where="base", do="name one, as in method/name")
        if base in seen:
            raise UserError(f"recipe {base} starts from itself", where="base", do="let one of them stand alone")
        seen.append(base)
        under = _read(base, method)
        base = under.pop("base", None)
        values = merge(under, values)
    return values


def _read(name: str, method: str) -> dict[str, Any]:
    path = Path(name)
    if path.is_dir() and (path / "settings.toml").is_file():
        return current_settings(read_toml(path / "settings.toml"))
    if path.suffix == ".toml":
        return current_settings(read_toml(path))
    known = list_recipes()
    full = name if name in known else f"{method}/{name}"
    if full not in known:
        near = f"did you mean {name}/default?" if f"{name}/default" in known else did_you_mean(name, known)
        raise UserError(f"no recipe is called {name!r}", where="--recipe", do=near)
    folder, _, stem = full.partition("/")
    return read_toml(Path(str(resources.files("iecl.recipes"))) / folder / f"{stem}.toml")
