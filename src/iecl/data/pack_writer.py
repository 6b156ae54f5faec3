"""`iecl pack`: a folder of images decoded once and for all, into one file that training copies images from."""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import iecl
from iecl.console import ProgressLine
from iecl.data.defaults import has_test, resolve_data
from iecl.data.factory import is_test_fifth, list_source
from iecl.data.folder import FolderSource
from iecl.data.listing import one_walk
from iecl.data.loader import in_order
from iecl.data.pack_format import FIRST, TABLES, checksum, prelude_of
from iecl.data.packed_source import sums_of
from iecl.data.settings import DataSettings
from iecl.data.shard_source import ShardSource
from iecl.data.skipped_files import refuse_too_many
from iecl.data.source import Numbers, Progress
from iecl.errors import UserError
from iecl.files import atomic_file, remove_leftovers
from iecl.settings import build, merge, parse_assignment

_BATCH = 64
_ALIGNED = 64
_ROOM = 2**24
"""Bytes besides pixels and tables: the header, and what a file system takes for itself."""


@one_walk()
def pack(
    data: str,
    out: Path,
    *,
    side: int = 0,
    exclude: str = "",
    sets: Iterable[str] = (),
    overwrite: bool = False,
    quiet: bool = True,
) -> dict[str, Any]:
    """Decode every image of a folder to its size and write all of them to one file.

    The file takes its name when it is whole and on the disk; what a process that was killed left behind, the next one
    for the same file removes. Returns its path and size, and how many images, classes and skipped files are in it.

    Args:
        data: a folder, or a named dataset that is one.
        out: file to write.
        side: height and width at which images are kept; 0: what `iecl pretrain` would choose.
        exclude: a list of images to leave out, as `iecl doctor` writes it.
        sets: further settings of the data as text, as in `["data.labels=none"]`.
        overwrite: replace a file that is there.
        quiet: show no progress.

    Raises:
        UserError: the images cannot be read, or the file cannot be written.
    """
    began = time.monotonic()
    _check_place(out, overwrite)
    settings = resolve_data(pack_settings(data, side, exclude, sets))
    parts = [_PartWriter(name, source, skipped=skipped) for name, source, skipped in listed_parts(settings)]
    total = sum(len(part.source) for part in parts)
    check_space(out, _most_bytes(parts, settings.decode_size))
    with ProgressLine(quiet) as line, _draft(out) as file:
        file.seek(FIRST)
        done = 0
        for part in parts:
            part.write_pixels(file, settings, partial(show_part, line.count("packing images"), done, total))
            done += len(part.source)
        rows = [part.write_tables(file) for part in parts]
        header = _header(settings, parts, rows)
        start = file.tell()
        file.write(header)
        file.seek(0)
        file.write(prelude_of(start, header))
        line.show(f"writing {out} to the disk")
    return {
        "path": str(out),
        "images": sum(row["count"] for row in rows),
        "parts": {row["name"]: row["count"] for row in rows},
        "classes": len(parts[0].source.classes),
        "side": settings.decode_size,
        "skipped": sum(len(row["skipped"]) for row in rows),
        "megabytes": round((start + len(header)) / 2**20, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def pack_settings(data: str, side: int, exclude: str, sets: Iterable[str]) -> DataSettings:
    """What is packed, by words of a command."""
    given = {"data": {"name": data, "decode_size": side, "exclude": exclude}}
    values = reduce(merge, map(parse_assignment, sets), given)
    strange = sorted(set(values) - {"data"})
    if strange:
        raise UserError(f"packing has no setting {strange[0]}", where="--set", do="write data.key=value")
    if values["data"].get("validation"):
        raise UserError("a packed file holds all images", where="data.validation", do="give it to iecl pretrain")
    if values["data"].get("plant"):
        raise UserError("a packed file holds images as they are", where="data.plant", do="give it to iecl pretrain")
    return build(DataSettings, values["data"], "data", "--side" if side else "--set")


def show_part(show: Progress, before: int, total: int, done: int) -> None:
    """Show how many are done in all, `before` this part and of it."""
    show(before + done, total)


@dataclass
class _PartWriter:
    """A split while it is written."""

    name: str
    source: FolderSource | ShardSource
    start: int = 0
    columns: dict[str, list[Numbers]] = field(default_factory=lambda: {"index": [], "sizes": [], "sums": []})
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def write_pixels(self, file: BinaryIO, settings: DataSettings, progress: Callable[[int], None]) -> None:
        """Append every readable image, in the order of the list."""
        self.start, folders = file.tell(), len(self.skipped)
        for batch in in_order(self.source, _BATCH, settings.num_workers, on_bad=self.skip):
            rows = batch.images.flatten(1)
            file.write(rows.numpy().data)
            for name, values in (("index", batch.index), ("sizes", batch.sizes), ("sums", sums_of(rows))):
                self.columns[name].append(values.numpy().copy())  # what comes from a worker keeps a file open
            progress(int(batch.index[-1]) + 1)
        reasons = Counter(reason for _, reason in self.skipped[folders:])
        refuse_too_many(self.source.name, reasons, len(self.source), settings.max_unreadable)

    def skip(self, path: str, reason: str) -> None:
        """Note a file that is left out, by its path below the part's folder."""
        self.skipped.append((below(self.source.name, path), reason))

    def write_tables(self, file: BinaryIO) -> dict[str, Any]:
        """Append what is known of the images besides their pixels; returns the part's row of the header."""
        index, sizes, sums = (np.concatenate(self.columns[name]) for name in ("index", "sizes", "sums"))
        files = self.source.listing.select(index)
        labels = self.source.labels
        values = {
            "sizes": sizes,
            "labels": labels[index],
            "held_out": (is_test_fifth(self.source.listing, labels) if self.name == "all" else labels < -1)[index],
            "sums": sums,
            "ends": files.ends,
        }
        tables = {name: _append(file, values[name].astype(kind)) for name, (kind, _) in TABLES.items()}
        tables["names"] = _append(file, np.frombuffer(files.names, np.uint8))
        return {
            "name": self.name,
            "count": len(index),
            "pixels": self.start,
            "tables": tables,
            "skipped": self.skipped,
        }

    @property
    def short_side(self) -> float:
        """The usual shorter side of an original."""
        return float(np.median(np.concatenate(self.columns["sizes"]).min(axis=1)))


def listed_parts(settings: DataSettings) -> list[tuple[str, FolderSource | ShardSource, list[tuple[str, str]]]]:
    """The splits of the data: name, images, and what could not be listed by its path below the part's folder."""
    splits = {"train": "pretrain", "test": "test"} if has_test(settings) else {"all": "pretrain"}
    found = []
    for name, split in splits.items():
        failures: list[tuple[str, str]] = []
        source = list_source(settings, split, on_bad=lambda *failure, all=failures: all.append(failure))
        if not isinstance(source, FolderSource | ShardSource):
            raise UserError(
                f"{settings.name} is decoded already", where="iecl pack", do=f"use it as it is: --data {settings.name}"
            )
        found.append((name, source, [(below(source.name, path), reason) for path, reason in failures]))
    return found


def below(folder: str, path: str) -> str:
    """A path below a folder."""
    return path.removeprefix(folder).lstrip("/")


def _append(file: BinaryIO, table: "np.ndarray[Any, Any]") -> dict[str, Any]:
    """Write a table; returns where it stands."""
    file.write(bytes(-file.tell() % _ALIGNED))
    start = file.tell()
    file.write(table.tobytes())
    return {"start": start, "length": table.nbytes, "checksum": checksum(table)}


def _header(settings: DataSettings, parts: list[_PartWriter], rows: list[dict[str, Any]]) -> bytes:
    content = {
        "iecl": iecl.__version__,
        "side": settings.decode_size,
        "image_size": min(settings.image_size, settings.decode_size),
        "short_side": parts[0].short_side,
        "classes": list(parts[0].source.classes),
        "parts": rows,
    }
    return json.dumps(content, indent=1).encode("ascii")


# --- the file


def _check_place(out: Path, overwrite: bool) -> None:
    """What can be refused is refused before the work."""
    if out.is_dir():
        raise UserError(f"{out} is a folder", where="--out", do="name a file in it")
    check_folder(out)
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already", where="--out", do="add --overwrite, or name another file")


def check_folder(out: Path) -> None:
    """Refuse a place that nothing can be written to."""
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", where="--out", do="make it, or name another")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"nothing may be written to {out.parent}", where="--out", do="name another folder")


def _most_bytes(parts: list[_PartWriter], side: int) -> int:
    """What a file of all these images takes if every one of them is readable."""
    each = 3 * side**2 + sum(np.dtype(kind).itemsize * width for kind, width in TABLES.values())
    return sum(len(part.source) * each + len(part.source.listing.names) for part in parts) + _ROOM


def check_space(out: Path, need: int) -> None:
    """Refuse what does not fit on the disk."""
    free = shutil.disk_usage(out.parent).free
    if free < need:
        raise UserError(
            f"{out} would take {need / 2**20:,.0f} MB, {free / 2**20:,.0f} MB are free",
            where="--out",
            do="name a place on another disk, or a smaller --side",
        )


@contextmanager
def _draft(out: Path) -> Iterator[BinaryIO]:
    """The file while it is written; hours of work are refused where another process is at the same."""
    try:
        with atomic_file(out) as file:
            if remove_leftovers(out.parent, out.name) > 1:  # our own part, and another's
                raise UserError(f"another process is writing {out}", where="--out", do="wait for it")
            yield file
    except OSError as problem:
        raise UserError(f"cannot write {out}: {problem.strerror}", where="--out") from problem
