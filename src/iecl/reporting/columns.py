"""A table of the user's with further columns to color the map by. Free of torch: what is wrong is said at once."""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iecl.errors import UserError
from iecl.files import read_text

PATH_NAMES = ("path", "file", "filename", "file_name", "image", "name")
MOST_BYTES = 2**28


@dataclass(frozen=True)
class ColumnTable:
    """Rows by path."""

    name: str
    head: list[str]
    place: int
    """Which column holds the paths."""
    rows: Mapping[str, list[str]]

    @classmethod
    def read(cls, table: str) -> "ColumnTable":
        """A .csv file with a head.

        Raises:
            UserError: it is no table, has no column of paths, or nothing else.
        """
        try:
            lines = list(csv.reader(read_text(Path(table), MOST_BYTES).splitlines()))
        except csv.Error as problem:
            raise UserError(f"{table} is no .csv: {problem}", where="--columns") from problem
        head = lines[0] if lines else []
        place = next((head.index(name) for name in PATH_NAMES if name in head), None)
        if place is None:
            do = f"call one {', '.join(PATH_NAMES)}"
            raise UserError(f"{table} has no column of paths", where="--columns", do=do)
        if len(head) < 2:
            raise UserError(f"{table} has paths and no other column", where="--columns", do="add one to color by")
        rows = {os.path.normpath(row[place]): row for row in lines[1:] if len(row) == len(head)}
        return cls(table, head, place, rows)

    def of(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """The columns of these images, found by the whole path or by its end; empty where it has none.

        Raises:
            UserError: it has none of them.
        """
        found = [self._row(path) for path in paths]
        if not any(found):
            raise UserError(f"{self.name} names none of the images", where="--columns")
        return {name: [row[i] if row else "" for row in found] for i, name in enumerate(self.head) if i != self.place}

    def _row(self, path: str) -> list[str]:
        parts = path.split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        return next((self.rows[end] for end in ends if end in self.rows), [])
