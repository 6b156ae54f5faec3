"""Tables of names: plain strings, nothing is imported until a name is resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
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


def resolve(name: str, table: Mapping[str, Entry], kind: str, where: str) -> Entry:
    """The row called `name`, or an error that offers the nearest one."""
    if name not in table:
        raise UserError(f"no {kind} is called {name!r}", where=where, do=did_you_mean(name, table))
    return table[name]
