"""The file that `iecl pack` writes: what stands where in it, and how it is checked. Free of torch.

    64 bytes      magic, version, where the header stands, how long it is, its BLAKE2b
    from 4096 on  pixels of each part, one picture after the other: uint8 (3, side, side)
    then          tables of each part: sizes, labels, held_out, sums, ends, names
    at the end    the header, JSON in UTF-8: counts, classes, skipped files, place and checksum of every table

All numbers are little-endian. Tables are checked when a file is opened, which reads a few bytes for each picture; a
picture is checked against its sum when it is first read, since to read all of them would take as long as an epoch.
"""

import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from iecl.data.listing import printable
from iecl.errors import UserError

MAGIC = b"\x89IECLPK\n"  # the first byte is no text in any encoding, the last is lost where line ends are translated
VERSION = 1
FIRST = 4096
"""Where the pixels begin: a page of its own for what comes before them."""
PRELUDE = struct.Struct("<8sIIQQ32s")
TABLES: Mapping[str, tuple[str, int]] = {
    "sizes": ("<u4", 2),  # height and width of the original
    "labels": ("<i4", 1),  # class number, or -1
    "held_out": ("u1", 1),  # 1: in the fifth that is measured on where there is no test part
    "sums": ("<i8", 1),  # of the pixels, see `iecl.data.packed.sums_of`
    "ends": ("<i8", 1),  # where each name ends in `names`
}
"""Kind and count of numbers for each picture; `names` besides, whose length differs."""
PARTS = (("all",), ("train", "test"))
_AGAIN = "make it again with iecl pack"
Table = npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """The pictures of one split, as the header describes them."""

    name: str
    count: int
    pixels: int
    """Where they begin in the file."""
    tables: Mapping[str, Table]
    """Maps of the file by name."""
    skipped: tuple[tuple[str, str], ...]
    """(path below the part's folder, reason) of the files that could not be read."""


@dataclass(frozen=True)
class PackFile:
    """An open file: everything but the pixels has been checked."""

    path: Path
    side: int
    """Height and width of the canvas."""
    image_size: int
    """The side of a view that suits the pictures, as chosen when they were packed."""
    short_side: float
    """The usual shorter side of an original."""
    classes: tuple[str, ...]
    parts: Mapping[str, Part]
    content: mmap.mmap
    """The whole file. It stays this one even if another takes its name."""

    def part_for(self, split: str) -> Part:
        """The part that a split is, or is a part of."""
        return self.parts["test" if split == "test" and "test" in self.parts else next(iter(self.parts))]


def open_packed(path: Path) -> PackFile:
    """Open a packed file and check all of it but the pixels.

    Raises:
        UserError: it is missing, no packed file, written by a later version, cut short or damaged.
    """
    try:
        with path.open("rb") as file:
            header = _header(path, file, os.fstat(file.fileno()).st_size)
            return _described(path, header, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as problem:
        what = f"cannot read {_shown(path)}: {(problem.strerror or 'no reason given').lower()}"
        raise UserError(what, where="--data") from problem
    except (LookupError, TypeError, ValueError, AttributeError) as problem:  # a checksum does not make it sensible
        raise _damaged(path, "its header makes no sense") from problem


def _header(path: Path, file: BinaryIO, size: int) -> dict[str, Any]:
    prelude = file.read(PRELUDE.size)
    if prelude[:8] != MAGIC:
        what = f"{_shown(path)} is a file, not a folder, and not one that iecl pack wrote"
        raise UserError(what, where="--data", do="give the folder that holds the pictures, or pack it")
    if len(prelude) < PRELUDE.size:
        raise _damaged(path, "it is cut short")
    _, version, _, start, length, digest = PRELUDE.unpack(prelude)
    if version != VERSION:
        raise UserError(
            f"{_shown(path)} has version {version} of the packed form, this iecl reads version {VERSION}",
            where="--data",
            do=_AGAIN,
        )
    if start + length != size:
        words = "it is cut short" if start + length > size else "something was added to it"
        raise _damaged(path, f"{words}: {size:,} bytes instead of {start + length:,}")
    file.seek(start)
    raw = file.read(length)
    if blake2b(raw, digest_size=32).digest() != digest:
        raise _damaged(path, "the checksum of its header is wrong")
    header: dict[str, Any] = json.loads(raw)
    return header


def _described(path: Path, header: dict[str, Any], content: mmap.mmap) -> PackFile:
    side = header["side"]
    if side < 1:
        raise ValueError(side)
    parts = {part["name"]: _part(path, part, side, content) for part in header["parts"]}
    if tuple(parts) not in PARTS:
        raise _damaged(path, f"it has the parts {', '.join(parts)}")
    facts = (side, header["image_size"], header["short_side"], tuple(header["classes"]))
    return PackFile(path, *facts, parts, content)


def _part(path: Path, part: dict[str, Any], side: int, content: mmap.mmap) -> Part:
    """One part with its tables mapped and checked."""
    count, size, tables = part["count"], len(content), {}
    for name, (kind, width) in {**TABLES, "names": ("u1", 0)}.items():
        place = part["tables"][name]
        length = place["length"]
        expected = count * width * np.dtype(kind).itemsize if width else length
        if length != expected or place["start"] + length > size:
            raise _damaged(path, f"its table of {name} does not fit")
        raw = np.frombuffer(content, np.uint8, length, place["start"])
        if checksum(raw) != place["checksum"]:
            raise _damaged(path, f"the checksum of its table of {name} is wrong")
        table = raw.view(kind)
        tables[name] = table.reshape(count, 2) if width == 2 else table
    if part["pixels"] < FIRST or part["pixels"] + count * 3 * side * side > size:
        raise _damaged(path, "it has fewer pictures than it says")
    return Part(part["name"], count, part["pixels"], tables, tuple((name, reason) for name, reason in part["skipped"]))


def checksum(table: npt.NDArray[Any]) -> str:
    """BLAKE2b of an array's bytes in hexadecimal digits."""
    return blake2b(np.ascontiguousarray(table).view(np.uint8).data, digest_size=16).hexdigest()


def prelude_of(start: int, header: bytes) -> bytes:
    """The first bytes of a file whose header begins at `start`."""
    return PRELUDE.pack(MAGIC, VERSION, 0, start, len(header), blake2b(header, digest_size=32).digest())


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"the packed file {_shown(path)} is damaged: {how}", where="--data", do=_AGAIN)


def _shown(path: Path) -> str:
    return printable(os.fsencode(path))
