"""The file that `iecl pack` writes: what stands where in it, and how it is checked. Free of torch.

    64 bytes      magic, version, where the header stands, how long it is, its BLAKE2b
    from 4096 on  pixels of each part, one image after the other: uint8 (3, side, side)
    then          tables of each part: sizes, labels, held_out, sums, ends, names
    at the end    the header, JSON in UTF-8: counts, classes, skipped files, place and checksum of every table

All numbers are little-endian. Tables are checked when a file is opened, which reads a few bytes for each image; a
image is checked against its sum when it is first read, since to read all of them would take as long as an epoch.

The file is read by its handle and not mapped: a mapped file that is cut short while it is used kills the process, and
one that is overwritten changes under what was checked.
"""

import json
import math
import os
import struct
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iecl.data.listing import printable
from iecl.errors import TrainingError, UserError

MAGIC = b"\x89IECLPK\n"  # the first byte is no text in any encoding, the last is lost where line ends are translated
VERSION = 2
READ = (1, 2)
"""Versions that are read; they differ in the sums of the pixels, see `iecl.data.packed_source.sums_of`."""
FIRST = 4096
"""Where the pixels begin: a page of its own for what comes before them."""
PRELUDE = struct.Struct("<8sIIQQ32s")
TABLES: Mapping[str, tuple[str, int]] = {
    "sizes": ("<u4", 2),  # height and width of the original
    "labels": ("<i4", 1),  # class number, or -1
    "held_out": ("u1", 1),  # 1: in the fifth that is measured on where there is no test part
    "sums": ("<i8", 1),  # of the pixels, see `iecl.data.packed_source.sums_of`
    "ends": ("<i8", 1),  # where each name ends in `names`
}
"""Kind and count of numbers for each image; `names` besides, whose length differs."""
PARTS = (("all",), ("train", "test"))
_AGAIN = "make it again with iecl pack"
Table = npt.NDArray[Any]


@dataclass(frozen=True)
class PackedPart:
    """The images of one split, as the header describes them."""

    name: str
    count: int
    pixels: int
    """Where they begin in the file."""
    tables: Mapping[str, Table]
    """By name, and in memory."""
    skipped: tuple[tuple[str, str], ...]
    """(path below the part's folder, reason) of the files that could not be read."""


@dataclass(frozen=True)
class PackFile:
    """An open file: everything but the pixels has been checked."""

    path: Path
    side: int
    """Height and width of every image."""
    image_size: int
    """The side of a view that suits the images, as chosen when they were packed."""
    short_side: float
    """The usual shorter side of an original."""
    classes: tuple[str, ...]
    parts: Mapping[str, PackedPart]
    version: int
    content: "Content"

    def part_for(self, split: str) -> PackedPart:
        """The part that a split is, or is a part of."""
        return self.parts["test" if split == "test" and "test" in self.parts else next(iter(self.parts))]


class Content:
    """The bytes of a file that stays open: it stays this one even if another takes its name."""

    def __init__(self, path: Path) -> None:
        self.path, self.handle = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)
        self.size, self._written, self.changed = self._state()

    def _state(self) -> tuple[int, int, int]:
        found = os.fstat(self.handle)
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def read(self, start: int, length: int) -> Table:
        """So many bytes from a place on."""
        found = np.empty(length, np.uint8)
        self.read_into(found.data, start)
        return found

    def read_into(self, room: memoryview, start: int) -> None:
        """Fill memory with the bytes from a place on.

        Raises:
            TrainingError: they are not there any more, or cannot be read.
        """
        done = 0
        while done < len(room):
            try:
                count = os.preadv(self.handle, (room[done:],), start + done)
            except OSError as problem:
                reason = (problem.strerror or "no reason given").lower()
                raise TrainingError(f"cannot read {_shown(self.path)}: {reason}", where="--data") from problem
            if not count:
                raise self._other()
            done += count

    def check(self) -> int:
        """Refuse what was read since the file was opened, if the file has been written to meanwhile.

        Returns:
            When anything of the file has changed, at first `changed`. Its name may have gone to another file, or it was
            written to and given its old date again: what is read then must be held against its sums.

        Raises:
            TrainingError: it has another size or date.
        """
        size, written, changed = self._state()
        if (size, written) != (self.size, self._written):
            raise self._other()
        return changed

    def _other(self) -> TrainingError:
        return TrainingError(
            f"the packed file {_shown(self.path)} changed while it was used",
            where="--data",
            do="make it again with iecl pack, under a name that nothing else writes to, and resume",
        )


def open_packed(path: Path) -> PackFile:
    """Open a packed file and check all of it but the pixels.

    Raises:
        UserError: it is missing, no packed file, written by a later version, cut short or damaged.
    """
    try:
        content = Content(path)
        version, header = _header(path, content)
        file = _described(path, header, version, content)
    except OSError as problem:
        what = f"cannot read {_shown(path)}: {(problem.strerror or 'no reason given').lower()}"
        raise UserError(what, where="--data") from problem
    except (LookupError, TypeError, ValueError, AttributeError) as problem:  # a checksum does not make it sensible
        raise _damaged(path, "its header makes no sense") from problem
    content.check()
    return file


def _header(path: Path, content: Content) -> tuple[int, dict[str, Any]]:
    prelude = content.read(0, min(PRELUDE.size, content.size)).tobytes()
    if prelude[:8] != MAGIC:
        what = f"{_shown(path)} is a file, not a folder, and not one that iecl pack wrote"
        raise UserError(what, where="--data", do="give the folder that holds the images, or pack it")
    if len(prelude) < PRELUDE.size:
        raise _damaged(path, "it is cut short")
    _, version, _, start, length, digest = PRELUDE.unpack(prelude)
    if version not in READ:
        raise UserError(
            f"{_shown(path)} has version {version} of the packed form, this iecl reads versions up to {VERSION}",
            where="--data",
            do=_AGAIN,
        )
    if start + length != content.size:
        words = "it is cut short" if start + length > content.size else "something was added to it"
        raise _damaged(path, f"{words}: {content.size:,} bytes instead of {start + length:,}")
    raw = content.read(start, length).tobytes()
    if blake2b(raw, digest_size=32).digest() != digest:
        raise _damaged(path, "the checksum of its header is wrong")
    header: dict[str, Any] = json.loads(raw)
    return version, header


def _described(path: Path, header: dict[str, Any], version: int, content: Content) -> PackFile:
    side, image_size, short_side = _whole(header["side"]), _whole(header["image_size"], 8), float(header["short_side"])
    if image_size > side or not 0 < short_side < math.inf:
        raise _damaged(path, f"its images have a side of {short_side:g} and views of {image_size} on {side}")
    classes = tuple(header["classes"])
    if not all(isinstance(name, str) for name in classes) or len(set(classes)) < len(classes):
        raise _damaged(path, "its classes are not names that differ")
    parts = {part["name"]: _part(path, part, side, content) for part in header["parts"]}
    if tuple(parts) not in PARTS:
        raise _damaged(path, f"it has the parts {', '.join(map(str, parts))}")
    for part in parts.values():
        _check_tables(path, part, len(classes))
    return PackFile(path, side, image_size, short_side, classes, parts, version, content)


def _whole(value: object, low: int = 1) -> int:
    if type(value) is not int or value < low:  # a bool is an int too
        raise ValueError(value)
    return value


def _part(path: Path, part: dict[str, Any], side: int, content: Content) -> PackedPart:
    """One part with its tables read, and found to be what was written."""
    count, size, tables = _whole(part["count"]), content.size, {}
    for name, (kind, width) in {**TABLES, "names": ("u1", 0)}.items():
        place = part["tables"][name]
        start, length = _whole(place["start"], FIRST), _whole(place["length"])
        expected = count * width * np.dtype(kind).itemsize if width else length
        if length != expected or start + length > size:
            raise _damaged(path, f"its table of {name} does not fit")
        raw = content.read(start, length)
        if checksum(raw) != place["checksum"]:
            raise _damaged(path, f"the checksum of its table of {name} is wrong")
        table = raw.view(kind)
        tables[name] = table.reshape(count, 2) if width == 2 else table
    if _whole(part["pixels"], FIRST) + count * 3 * side * side > size:
        raise _damaged(path, "it has fewer images than it says")
    skipped = tuple((name, reason) for name, reason in part["skipped"])
    if not all(isinstance(words, str) for pair in skipped for words in pair):
        raise ValueError(skipped)
    return PackedPart(part["name"], count, part["pixels"], tables, skipped)


def _check_tables(path: Path, part: PackedPart, classes: int) -> None:
    """Refuse numbers that no packing writes: a checksum says that they are as written, not that they make sense."""
    sizes, labels, ends, names = (part.tables[name] for name in ("sizes", "labels", "ends", "names"))
    if (sizes == 0).any():
        raise _damaged(path, "an image has no height or no width")
    if (labels < -1).any() or (labels >= classes).any():
        raise _damaged(path, f"a label is not one of its {classes} classes")
    if (part.tables["held_out"] > 1).any():
        raise _damaged(path, "its table of held_out has other numbers than 0 and 1")
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1]])
    if (ends <= starts).any() or ends[-1] != len(names):
        raise _damaged(path, "its names do not follow each other")
    if (names == 0).any() or (names[starts] == ord("/")).any():
        raise _damaged(path, "a name is no path below a folder")


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
