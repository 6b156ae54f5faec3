"""Tables of names: plain strings, nothing is imported until a name is resolved."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from iecl.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Entry:
    """One row of a table: where the thing lives and what it is."""

    target: str
    """`package.module:name`."""
    summary: str
    """One line for `iecl list`."""

    def load(self) -> Any:
        """Import the module and return the thing itself."""
        module, _, name = self.target.partition(":")
        return attrgetter(name)(import_module(module))

    def setting_names(self) -> set[str]:
        """Names of the settings that its module declares, read without importing it; empty: they cannot be told.

        >>> "temperature" in Entry("iecl.evaluation.knn:KNN", "").setting_names()
        True
        """
        spec = find_spec(self.target.partition(":")[0])
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return set()
        classes = (
            node for node in ast.parse(Path(spec.origin).read_text("utf-8")).body if isinstance(node, ast.ClassDef)
        )
        return {
            line.target.id
            for node in classes
            if node.name.endswith("Settings")
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }


def resolve(name: object, table: Mapping[str, Entry], kind: str, where: str) -> Entry:
    """The row called `name`, or an error that offers the nearest one."""
    if not isinstance(name, str) or name not in table:  # a file may give anything for a name
        raise UserError(f"no {kind} is called {name!r}", where=where, do=did_you_mean(str(name), table))
    return table[name]


def is_import(name: object) -> bool:
    """Whether a name is `package.module:thing`.

    >>> is_import("mypackage.nets:make"), is_import("resnet18"), is_import("mypackage.nets:")
    (True, False, False)
    """
    module, colon, thing = str(name).partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *thing.split(".")))


def imported(name: str, kind: str, where: str) -> Any:
    """What `package.module:thing` stands for.

    Raises:
        UserError: there is no such module, it cannot be imported, or it has no such thing.
    """
    module, _, thing = name.partition(":")
    try:
        return Entry(name, "").load()
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
            raise UserError(f"{module} needs {problem.name}, which is not installed", where=where) from problem
        raise UserError(
            f"there is no module {problem.name} for the {kind} {name}",
            where=where,
            do="start from the folder that holds it, or add that folder to PYTHONPATH",
        ) from problem
    except AttributeError as problem:
        raise UserError(f"{module} has no {thing}", where=where, do=f"write package.module:{kind}") from problem
    except ImportError as problem:
        raise UserError(f"{module} cannot be imported: {problem}", where=where) from problem
