"""One feature vector for each image, in a file that numpy or any reader of Parquet opens."""

import csv
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iecl.console import ProgressLine
from iecl.data.defaults import has_test
from iecl.data.listing import one_walk
from iecl.data.source import Source
from iecl.errors import UserError, lacking
from iecl.evaluation.compute import device_called
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.features import Features
from iecl.evaluation.model import load_model
from iecl.files import atomic_file

Columns = dict[str, np.ndarray[Any, np.dtype[Any]]]


@one_walk()
def embed(
    target: Path | str,
    data: str | tuple[str, ...] | None = None,
    out: Path | None = None,
    *,
    exclude: str = "",
    checkpoint: str = "final",
    overwrite: bool = False,
    device: str = "",
    quiet: bool = True,
    **foreign: Any,
) -> dict[str, Any]:
    """The features of all images of a folder or a dataset, training images before test images.

    There are arrays `features` (float32, one row for each image), `paths`, `labels` (-1: none), `splits` and `index`,
    the place in its split. A `.npz` file holds them all; numpy opens it without pickle. A `.parquet` file holds the
    same columns; so does a `.csv` file, with a column for each number of a feature. A file takes its name when whole.

    Args:
        target: a run directory, a file of weights, or `random`; see `iecl.evaluation.model.load_model`.
        data: folder or named dataset; None: the data of the run.
        out: file to write, if any.
        exclude: a list of images to leave out, as `iecl doctor` writes it.
        checkpoint: which weights of a run: `final`, `last` or `best`.
        overwrite: replace a file that is there.
        device: where to compute; empty: a GPU if there is one.
        quiet: show no progress.
        **foreign: what `load_model` takes for weights from elsewhere: backbone, image_size, layout, allow.

    Returns:
        The arrays, the file's path, rows and width, how many images were skipped, and the proof of the weights.

    Raises:
        UserError: the file's name, the weights or the data are not usable.
    """
    write = None if out is None else _writer(out, overwrite)  # a wrong name is refused before the work, not after
    model = load_model(target, checkpoint, **foreign)
    with ProgressLine(quiet) as line:
        where = device_called(device)  # below: all images, whatever was kept apart
        context = EvaluationContext(model, target, data, line, part="test", exclude=exclude, device=where)
        splits = {"train": "pretrain", "test": "test"} if has_test(context.data) else {"all": "pretrain"}
        parts = [
            _Part(name, source := context.open(split), context.features(source, name)) for name, split in splits.items()
        ]
    columns = _columns(parts)
    if write is not None and out is not None:
        try:
            with atomic_file(out) as file:
                write(file, columns)
        except OSError as problem:
            raise UserError(f"cannot write {out}: {problem.strerror}", where=f"--out {out}") from problem
    return {
        **columns,
        "path": None if out is None else str(out),
        "rows": len(columns["features"]),
        "width": columns["features"].shape[1],
        "skipped": len(context.skipped),
        "weights": model.proof,
        "data": context.data_name,
    }


@dataclass(frozen=True)
class _Part:
    """A split and its features."""

    name: str
    source: Source
    features: Features

    @property
    def paths(self) -> list[str]:
        """In printable letters: a file's name need not be text, and a lone surrogate can be written nowhere."""
        return [self.source.path(i) for i in self.features.index.tolist()]


def _columns(parts: list[_Part]) -> Columns:
    return {
        "features": np.concatenate([part.features.values.numpy() for part in parts]),
        "paths": np.array([path for part in parts for path in part.paths], dtype=np.str_),
        "labels": np.concatenate([part.features.labels.numpy() for part in parts]),
        "splits": np.array([part.name for part in parts for _ in range(len(part.features))], dtype=np.str_),
        "index": np.concatenate([part.features.index.numpy() for part in parts]),
    }


def _writer(out: Path, overwrite: bool) -> Callable[[BinaryIO, Columns], None]:
    writers = {".npz": _write_npz, ".parquet": _write_parquet, ".csv": _write_csv}
    if out.suffix not in writers:
        raise UserError(
            f"features cannot be written as {out.suffix or 'a file without a suffix'}",
            where=f"--out {out}",
            do="name a file that ends in .npz, .parquet or .csv",
        )
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", where=f"--out {out}", do="make it, or name another")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"nothing may be written to {out.parent}", where=f"--out {out}", do="name another folder")
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already", where="--out", do="add --overwrite, or name another file")
    if out.suffix == ".parquet":
        _parquet()
    return writers[out.suffix]


def _write_npz(file: BinaryIO, columns: Columns) -> None:
    np.savez(file, **columns)  # type: ignore[arg-type]  # numpy's types also expect its flag


def _write_csv(file: BinaryIO, columns: Columns) -> None:
    features, others = columns["features"], [name for name in columns if name != "features"]
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    table = csv.writer(text)
    table.writerow([*others, *(f"f{number}" for number in range(features.shape[1]))])
    for row in zip(*(columns[name].tolist() for name in others), features, strict=True):
        table.writerow([*row[:-1], *map(str, row[-1])])  # of float32: as short as says the same
    text.flush()
    text.detach()  # the file is not ours to close


def _write_parquet(file: BinaryIO, columns: Columns) -> None:
    arrow, parquet = _parquet()
    features = columns["features"]
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(features.ravel()), features.shape[1])
    others = {name: arrow.array(values) for name, values in columns.items() if name != "features"}
    parquet.write_table(arrow.table({"features": rows} | others), file)


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as problem:
        raise lacking("a .parquet file", "pyarrow", extra="parquet", where="--out") from problem
    return pyarrow, pyarrow.parquet
