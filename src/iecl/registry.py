"""Tables of names: plain strings, nothing is imported until a name is resolved."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
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
        return getattr(import_module(module), name)

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
