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


def resolve(name: object, table: Mapping[str, Entry], kind: str, where: str) -> Entry:
    """The row called `name`, or an error that offers the nearest one."""
    if not isinstance(name, str) or name not in table:  # a file may give anything for a name
        raise UserError(f"no {kind} is called {name!r}", where=where, do=did_you_mean(str(name), table))
    return table[name]
