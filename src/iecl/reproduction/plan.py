"""From an exhibit and a scale to the cells that answer it: one study for each column. Free of torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iecl.data.datasets import DATASETS
from iecl.errors import UserError, did_you_mean
from iecl.recipes import list_recipes
from iecl.reproduction.exhibit import SCALES, Exhibit, Variant
from iecl.settings import merge
from iecl.studies.cell import Cell, Datasets
from iecl.studies.study import Place, Study, read_study

MOST_SEEDS = 1000
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class Panel:
    """One column of an exhibit, as a study whose arms are the rows."""

    column: str
    study: Study


@dataclass(frozen=True)
class Wish:
    """An exhibit as somebody asks for it."""

    exhibit: Exhibit
    scale: str
    data: tuple[str, ...] = ()
    """Images to train on, in the place of the scale's."""
    places: tuple[tuple[str, str], ...] = ()
    """Where images with a name are: of a named dataset, or of what the exhibit needs besides."""
    seeds: int = 0
    """How many, 0 and up; 0: the scale's."""
    epochs: int = 0
    """In the place of the scale's; 0: the scale's."""
    precision: str = ""
    """Of the arithmetic; empty: as the machine has units for."""

    @property
    def place(self) -> Mapping[str, str]:
        """Where images with a name are."""
        return dict(self.places)

    def panels(self) -> list[Panel]:
        """What is to be run.

        Raises:
            UserError: images that the exhibit needs were not named.
        """
        for name in self.exhibit.needs:
            if name not in self.place:
                do = f"add --data {name}=FOLDER"
                raise UserError(f"{self.exhibit.name} measures on {name.upper()} images", where="--data", do=do)
        return [self._panel(column) for column in self.exhibit.columns_at(self.scale)]

    def _panel(self, column: Variant) -> Panel:
        exhibit, scale = self.exhibit, self.exhibit.scales[self.scale]
        data = self.data or ((column.table["data"],) if "data" in column.table else tuple(scale.get("data", ())))
        roots = [self.place[name] for name in data if name in self.place and name in DATASETS]
        where = {"data.root": roots[0]} if roots else {}
        rows = exhibit.rows_at(self.scale, column.name)
        seeds = list(range(self.seeds)) if self.seeds else scale["seeds"]
        asked = [one | {"data": self.place[one["data"]]} if "data" in one else one for one in scale["evaluations"]]
        head = {"name": exhibit.name, "question": exhibit.claim, "data": list(data), "seeds": seeds}
        head |= {"reference": exhibit.reference, "evaluations": asked}
        arms = {row.name: self._settings(column, row) | where for row in rows}
        return Panel(column.name, read_study({"study": head, "arms": arms}))

    def sources(self, cells: Mapping[tuple[str, Place], Cell]) -> dict[tuple[str, Place], Cell]:
        """For cells whose block comes from elsewhere: the run that learns it, on images of that name."""
        rows = {row.name: row.table["block_from"] for row in self.exhibit.rows if "block_from" in row.table}
        found = {}
        for key, cell in cells.items():
            if name := rows.get(key[1].arm):
                data = self.place.get(name, self.exhibit.scales[self.scale][name])
                config = cell.config(Datasets())
                learned = {"saib": {"weights": "learned"}, "data": {"image_size": config.data.image_size}}
                learned["training"] = {"keep_epochs": [config.training.epochs]}
                found[key] = replace(cell, data=data, settings=merge(cell.settings, learned), evaluations=())
        return found

    def _settings(self, column: Variant, row: Variant) -> dict[str, Any]:
        """The settings of a run, from what all share to what the row has at this scale."""
        exhibit, scale = self.exhibit, self.exhibit.scales[self.scale]
        made = dict(scale.get("base", {}))
        if exhibit.printed or row.table.get("printed") or column.table.get("printed"):
            made = scale.get("printed", {}) | made
        own, beside = row.settings(self.scale), column.settings(self.scale)
        if "saib.form" not in own and "recipe" not in own:  # where a block stands matters to rows that have one
            beside = {key: value for key, value in beside.items() if not key.startswith("saib.")}
        made |= beside | own
        if self.epochs:
            made["training.epochs"] = self.epochs
        if self.precision:
            made["training.precision"] = self.precision
        if row.table.get("equal_time"):
            factor = exhibit.added_time_at(self.scale, column)
            made["training.epochs"] = round(factor * made["training.epochs"])
        if exhibit.kind == "gallery":
            made["training.keep_epochs"] = [0, 0.25, 0.5, made["training.epochs"]]
        if isinstance(made.get("recipe"), list):
            known, method = list_recipes(), made.get("method.name", "ie-cl")
            made["recipe"] = next(name for name in made["recipe"] if f"{method}/{name}" in known)
        return made


def cells_of(panels: Iterable[Panel]) -> dict[tuple[str, Place], Cell]:
    """Every cell by column and place; all columns of a seed come before the next seed."""
    made = {(panel.column, place): cell for panel in panels for place, cell in panel.study.cells().items()}
    return dict(sorted(made.items(), key=lambda item: item[0][1].seed))


def check_words(scale: str, seeds: int, epochs: int, precision: str) -> None:
    """Refuse what no exhibit has.

    Raises:
        UserError: a word is unknown, or a number out of bounds.
    """
    if scale not in SCALES:
        raise UserError(f"there is no scale {scale!r}", where="--scale", do=did_you_mean(scale, SCALES))
    if not 0 <= seeds <= MOST_SEEDS or epochs < 0:
        do = f"give 1 to {MOST_SEEDS:,} seeds, and 1 epoch or more"
        raise UserError(f"{seeds} seeds, {epochs} epochs", where="--seeds, --epochs", do=do)
    if precision not in ("", *PRECISIONS):
        raise UserError(
            f"there is no precision {precision!r}", where="--precision", do=did_you_mean(precision, PRECISIONS)
        )


def read_wish(
    exhibit: Exhibit, scale: str, data: Iterable[str] = (), seeds: int = 0, epochs: int = 0, precision: str = ""
) -> Wish:
    """What somebody asks for, from the words of the command.

    Raises:
        UserError: there is no such scale, or no name of images as one of those given.
    """
    check_words(scale, seeds, epochs, precision)
    bare, places = [], []
    for word in map(str, data):
        name, mark, place = word.partition("=")
        if not mark or Path(word).exists():
            bare.append(word)
        elif name in (*DATASETS, *exhibit.needs, *exhibit.may):
            places.append((name, place))
        else:
            do = did_you_mean(name, [*DATASETS, *exhibit.needs, *exhibit.may])
            raise UserError(f"{exhibit.name} uses no images called {name!r}", where="--data", do=do)
    named = {*exhibit.scales[scale].get("data", ()), *(one.table.get("data", "") for one in exhibit.columns_at(scale))}
    if scale == "full" and bare:  # the paper's datasets stay what they are: a folder is where one of them is
        if len(named - {""}) != 1 or len(bare) > 1:
            do = "name them, as in --data " + " --data ".join(f"{name}=FOLDER" for name in sorted(named - {""}))
            raise UserError(f"{exhibit.name} uses several datasets at this scale", where="--data", do=do)
        if bare[0] not in DATASETS:
            places, bare = [*places, ((named - {""}).pop(), bare[0])], []
    return Wish(exhibit, scale, tuple(bare), tuple(places), seeds, epochs, precision)
