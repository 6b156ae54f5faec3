"""The index of tar shards: which blocks they are cut into, and what the images in them are called. Free of torch.

A `.npz` file, beside shards that `iecl pack --shards` wrote, and in the user's cache for others, made by reading each
once. Blocks are some dozen bytes for half a megabyte of images, and stay in memory; labels and names, some bytes for
each image, are read when somebody asks for them.

    about    JSON: version, shards, classes, usual shorter side
    blocks   (n, 5): shard, start, length, CRC-32, count of images
    labels   class of each image, or -1
    ends, names    as in `Listing`
"""

import io
import json
import math
import os
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from iecl.data.decoder import Unreadable, header_size
from iecl.data.shard_files import read_range
from iecl.data.tar_samples import MOST_BLOCK, TarSample, blocks_of
from iecl.errors import UserError
from iecl.files import atomic_file, check, number, parse_json

VERSION = 1
PIECE = 2**23
"""Bytes that are read at a time when a whole shard is."""
_SAMPLE = 16
"""Images of a shard whose headers tell how large they are."""
_MOST_PIXELS = 2**40
_ARRAYS = {"about": "|u1", "blocks": "<i8", "labels": "<i4", "ends": "<i8", "names": "|u1"}
Table = npt.NDArray[Any]


@dataclass(frozen=True)
class IndexFile:
    """One file of index, of which everything but the tables of images is read and checked."""

    path: Path
    shards: tuple[str, ...]
    """Paths or URLs."""
    classes: tuple[str, ...]
    short_side: float
    blocks: Table

    @property
    def count(self) -> int:
        """How many images there are."""
        return int(self.blocks[:, 4].sum())

    @cached_property
    def labels(self) -> Table:
        """The class of each image, in the order of this file's classes, or -1."""
        found = _read(self.path, ["labels"])["labels"]
        if found.shape != (self.count,) or (found < -1).any() or (found >= len(self.classes)).any():
            raise _damaged(self.path, "its labels do not fit its images")
        return found

    def names(self) -> tuple[Table, Table]:
        """The names of all images, one after the other, and where each ends."""
        found = _read(self.path, ["ends", "names"])
        ends, names = found["ends"], found["names"]
        if ends.shape != (self.count,) or (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != len(names):
            raise _damaged(self.path, "its names do not fit its images")
        return ends, names


@dataclass
class IndexWriter:
    """An index while it is made."""

    shards: list[str] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """Labels as they are met, each with a number."""
    labels: "array[int]" = field(default_factory=lambda: array("i"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    names: bytearray = field(default_factory=bytearray)

    def add(self, name: str, place: str, size: int, names: Sequence[bytes] = ()) -> None:
        """Read a shard from end to end, and take it in.

        Args:
            name: what the index calls it.
            place: where it lies.
            size: how long it is.
            names: what its images are called; empty: what they are called there.

        Raises:
            BadShardError: it cannot be read.
        """
        number, sides = len(self.shards), list[int]()
        found: list[TarSample] = []
        rows = []
        for block in blocks_of(_pieces(place, size)):
            if block.samples:  # others hold no image
                rows.append((number, block.start, len(block.data), crc32(block.data), len(block.samples)))
                found += block.samples
            for sample in block.samples[: max(0, _SAMPLE - len(sides))]:
                content = block.data[sample.content : sample.content + sample.size]
                with suppress(Unreadable):
                    sides.append(min(header_size(io.BytesIO(content), _MOST_PIXELS)))
        self.shards.append(name)
        self.sides += sides
        self.blocks += rows
        for image, sample in zip(names or [sample.name for sample in found], found, strict=True):
            self.labels.append(self.numbers.setdefault(sample.label, len(self.numbers)) if sample.label else -1)
            self.lengths.append(len(image))
            self.names += image

    def write(self, path: Path, classes: Sequence[str] = ()) -> None:
        """Write the file; without classes the labels say which there are, numbers in their order."""
        found = sorted(self.numbers, key=_in_order)
        place = {label: i for i, label in enumerate(map(str, range(len(classes))) if classes else found)}
        new = np.array([*(place[label] for label in self.numbers), -1], np.int32)
        about = {
            "version": VERSION,
            "shards": self.shards,
            "classes": list(classes) or found,
            "short_side": float(median(self.sides)) if self.sides else 0.0,
        }
        tables: dict[str, Any] = {
            "about": np.frombuffer(json.dumps(about).encode("ascii"), np.uint8),
            "blocks": np.array(self.blocks, np.int64).reshape(-1, 5),
            "labels": new[np.array(self.labels, np.int64)],
            "ends": np.array(self.lengths, np.int64).cumsum(),
            "names": np.frombuffer(self.names, np.uint8),
        }
        with atomic_file(path) as file:
            np.savez(file, **tables)


def _pieces(place: str, size: int) -> Iterator[bytes]:
    for start in range(0, size, PIECE):
        yield read_range(place, start, min(PIECE, size - start))


def _in_order(label: str) -> tuple[int, int, str]:
    return (0, int(label), "") if label.isascii() and label.isdigit() and len(label) < 19 else (1, 0, label)


def joined_classes(files: Iterable[IndexFile]) -> tuple[str, ...]:
    """The classes of several files together."""
    found = [file.classes for file in files]
    if len(set(found)) == 1:
        return found[0]
    return tuple(sorted({name for classes in found for name in classes}, key=_in_order))


def read_index(path: Path, folder: str) -> IndexFile:
    """Read an index; names of shards are relative to a folder, which may be a URL.

    Raises:
        UserError: it is missing, damaged, or of a later version.
    """
    found = _read(path, ["about", "blocks"])
    about = parse_json(found["about"].tobytes().decode("utf-8", "replace"), str(path))
    check(about, str(path), needed={"version": int, "shards": list[str], "classes": list[str], "short_side": float})
    if about["version"] != VERSION:
        raise UserError(f"{path} has version {about['version']}, this iecl reads {VERSION}", where="--data")
    if not all(map(_can_be_a_file, about["shards"])):
        raise _damaged(path, "a shard in it is called as no file can be")
    side = number(about["short_side"])
    if not 0 <= side < math.inf:
        raise _damaged(path, f"its images have a shorter side of {side:g}")
    blocks = found["blocks"]
    if blocks.ndim != 2 or blocks.shape[1] != 5:
        raise _damaged(path, "its table of blocks has another shape")
    low, high = np.zeros(5), np.array([len(about["shards"]) - 1, 2**62, MOST_BLOCK, 2**32 - 1, 2**31])
    if not len(blocks) or (blocks < low).any() or (blocks > high).any() or (blocks[:, 4] < 1).any():
        raise _damaged(path, "its table of blocks makes no sense" if len(blocks) else "it lists no image")
    if len(set(about["classes"])) < len(about["classes"]):
        raise _damaged(path, "its classes are not names that differ")
    shards = tuple(f"{folder}/{name}" if folder else name for name in about["shards"])
    return IndexFile(path, shards, tuple(about["classes"]), side, blocks)


def _can_be_a_file(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _read(path: Path, wanted: list[str]) -> dict[str, Table]:
    """Some tables of a file, each against its checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            # What is not compressed cannot be larger than the file.
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise _damaged(path, "it is compressed")
            found = {name: _table(archive, name) for name in wanted}
    except OSError as problem:
        raise UserError(
            f"cannot read {path}: {(problem.strerror or 'no reason given').lower()}", where="--data"
        ) from problem
    except (zipfile.BadZipFile, ValueError, LookupError, EOFError, NotImplementedError, RuntimeError) as problem:
        raise _damaged(path, str(problem).partition("\n")[0] or type(problem).__name__) from problem
    return found


def _table(archive: zipfile.ZipFile, name: str) -> Table:
    raw = archive.read(f"{name}.npy")
    found: Table = np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
    if found.dtype.str != _ARRAYS[name] or (name != "blocks" and found.ndim != 1):
        raise ValueError(f"its table of {name} has another form")
    return found


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"the index {path} is damaged: {how}", where="--data", do="remove it, and make it again")
