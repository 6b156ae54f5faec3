"""An exhibit: a table or figure of the paper, or one that it lacks, as data. Free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from iecl.errors import UserError, did_you_mean
from iecl.settings import merge, read_toml

SCALES = ("smoke", "mini", "full")
ORDER = (
    *("T1", "T2a", "T2b", "T3", "T4", "T5", "F5", "F6", "F7", "F8", "F9", "F10"),
    *("terms", "hosts", "sensitivity", "batch", "vit", "transfer", "shortcuts", "cost"),
)
"""Those of the paper, then what a reviewer would ask for."""
STEPS = ("time", "added time", "cost")
"""Kinds for which nothing is trained: steps are timed or counted."""
OWN = ("paper", "printed", "note", "equal_time", "added_time", "scales", "columns", "data", "block_from", *SCALES)
"""Keys of a row or a column that are no settings of a run."""


@dataclass(frozen=True)
class Variant:
    """A row or a column: what it is called, and how its runs differ."""

    name: str
    table: Mapping[str, Any]

    def is_at(self, scale: str) -> bool:
        """Whether it is a part of the exhibit at this scale."""
        return scale in self.table.get("scales", SCALES)

    def settings(self, scale: str) -> dict[str, Any]:
        """Settings of a run as `section.key`, and `recipe`."""
        own = {key: value for key, value in self.table.items() if key not in OWN}
        return {**own, **self.table.get(scale, {})}

    @property
    def paper(self) -> float | Mapping[str, float] | None:
        """What is printed: one number, or one for each column, dataset or evaluation, in the paper's unit."""
        return self.table.get("paper")

    @property
    def note(self) -> str:
        """What a reader of the table must know of a row besides its name."""
        return str(self.table.get("note", ""))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What must be true of two rows, or of one, for the paper's sentence to hold."""

    better: str = ""
    than: str = ""
    row: str = ""
    above: float | None = None
    at_most: float | None = None
    panel: str = ""
    """Only in panels that are called so, or begin with it; empty: in all."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Everything that is known of one before anything is run."""

    name: str
    title: str
    claim: str
    kind: str = "accuracy"
    """accuracy, curves, gallery, time, added time or cost."""
    reference: str
    rows: tuple[Variant, ...]
    columns: tuple[Variant, ...] = ()
    claims: tuple[Comparison, ...] = ()
    scales: Mapping[str, Mapping[str, Any]]
    """By scale: data, seeds, evaluations, and the settings that all rows share."""
    readings: tuple[Mapping[str, str], ...] = ()
    """Of curves: which column of the metrics, what it is called, and whether its end or its change counts."""
    needs: tuple[str, ...] = ()
    """Images besides those that are trained on, given as --data NAME=PLACE."""
    may: tuple[str, ...] = ()
    """The same, where the scale has some of its own."""
    shown: str = ""
    """Which of several printed numbers stands beside ours where neither data nor column decide."""
    printed: bool = False
    """Whether all rows are IE-CL in its printed form, or its host."""
    rule: str = ""
    """How hyper-parameters were chosen; empty: as the scale says."""
    added_time: Mapping[str, float] = field(default_factory=dict)
    """By scale, a step with the block over one without, for rows of equal time; columns may have their own."""
    figure: str = ""
    """grid: a square for each pair of operators; empty: as the kind says."""
    rounds: Mapping[str, int] = field(default_factory=dict)
    """Of timed steps, by scale."""

    def added_time_at(self, scale: str, column: Variant) -> float:
        """A step with the block over one without; smoke tests have that of `mini`."""
        known: Mapping[str, float] = column.table.get("added_time", self.added_time)
        return known["full" if scale == "full" else "mini"]

    def columns_at(self, scale: str) -> tuple[Variant, ...]:
        """The columns at a scale; one without a name where there are none."""
        return tuple(one for one in self.columns if one.is_at(scale)) or (Variant("", {}),)

    def rows_at(self, scale: str, column: str) -> tuple[Variant, ...]:
        """The rows of a column at a scale."""
        own = (one for one in self.rows if not column or column in one.table.get("columns", [column]))
        return tuple(one for one in own if one.is_at(scale))


def _folder() -> Path:
    return Path(str(resources.files("iecl.reproduction"))) / "exhibits"


@cache
def find_exhibit(name: str) -> Exhibit:
    """The exhibit of this name.

    Raises:
        UserError: there is none.
    """
    known = {one.lower(): one for one in ORDER}
    if name.lower() not in known:
        do = did_you_mean(name, [*ORDER, "all"])
        raise UserError(f"no exhibit is called {name!r}", where="EXHIBIT", do=f"{do} See: iecl reproduce --list")
    name = known[name.lower()]
    table, shared = (read_toml(_folder() / f"{file}.toml") for file in (name, "scales"))
    made: dict[str, Any] = {
        key: tuple(Variant(*item) for item in table.pop(key, {}).items()) for key in ("rows", "columns")
    }
    made["scales"] = merge(shared, table.pop("scales", {}))
    made["claims"] = tuple(Comparison(**one) for one in table.pop("claims", ()))
    made |= {key: tuple(table.pop(key, ())) for key in ("readings", "needs", "may")}
    return Exhibit(name=name, **made, **table)
