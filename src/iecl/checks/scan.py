"""One pass over the files in several processes: a row of numbers for each, and nothing else that grows with them.

Rows are some hundred bytes of memory for each image. Small gray versions, a kilobyte each, go to a file without a name
that the system removes with the process.
"""

import multiprocessing
import os
import signal
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iecl.checks.measures import RECORD, SIDE, THUMB, measure
from iecl.data.decoder import Unreadable, examine
from iecl.data.listing import Listing, printable
from iecl.errors import TrainingError
from iecl.launch import when_parent_ends

if TYPE_CHECKING:
    from iecl.data.source import Progress

Numbers = npt.NDArray[np.int64]
_CHUNK = 64
_Answer = tuple[npt.NDArray[Any], bytes, list[tuple[int, str]]]


class ThumbFile:
    """Small gray versions of (32, 32) in a file, of which the rows asked for are read and no others."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed, and gone, with this object
        weakref.finalize(self, self._file.close)

    def append(self, rows: bytes) -> None:
        """Write some rows."""
        self._file.write(rows)

    def __getitem__(self, numbers: Numbers) -> npt.NDArray[np.uint8]:
        """The rows with these numbers, of which there is at least one; near ones are read in one go."""
        first, last = int(numbers.min()), int(numbers.max())
        if last - first < 8 * len(numbers):
            block = np.frombuffer(self._read(first, last - first + 1), np.uint8).reshape(-1, THUMB, THUMB)
            return block[numbers - first]
        content = bytearray().join(self._read(number, 1) for number in numbers.tolist())
        return np.frombuffer(content, np.uint8).reshape(-1, THUMB, THUMB)

    def _read(self, first: int, count: int) -> bytes:
        return os.pread(self._file.fileno(), count * THUMB**2, first * THUMB**2)


@dataclass(frozen=True)
class Split:
    """A split, and where its images begin among all."""

    name: str
    listing: Listing
    start: int


@dataclass
class Scan:
    """All images with what was measured of them; one that cannot be read has a row of zeros, and a reason."""

    parts: Sequence[Split]
    root: bytes
    """The folder that paths are shown below."""
    labels: Numbers
    """The class of each image, or -1."""
    classes: tuple[bytes, ...]
    records: npt.NDArray[Any]
    """Rows of `RECORD`."""
    thumbs: ThumbFile
    reasons: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def readable(self) -> npt.NDArray[np.bool_]:
        """Which images could be read."""
        found: npt.NDArray[np.bool_] = self.records["height"] > 0
        return found

    def part(self, number: int) -> Split:
        """The split of an image."""
        return next(part for part in reversed(self.parts) if part.start <= number)

    def splits(self) -> Numbers:
        """The number of each image's split."""
        lengths = [len(part.listing) for part in self.parts]
        return np.repeat(np.arange(len(lengths)), lengths)

    def path(self, number: int) -> bytes:
        """The path of an image, to open it."""
        part = self.part(number)
        return part.listing.path(number - part.start)

    def relative(self, number: int) -> bytes:
        """The path below the root; the whole path where it lies elsewhere."""
        path = self.path(number)
        start = self.root.rstrip(b"/") + b"/"
        return path.removeprefix(start)

    def name(self, number: int) -> str:
        """The same for people."""
        return printable(self.relative(number))

    def label(self, number: int) -> str:
        """The class of an image for people; empty: it has none."""
        return printable(self.classes[self.labels[number]]) if self.labels[number] >= 0 else ""


def scan(
    parts: Sequence[Split],
    root: bytes,
    labels: Numbers,
    classes: tuple[bytes, ...],
    *,
    max_pixels: int,
    workers: int,
    progress: "Progress | None" = None,
) -> Scan:
    """Look at every file once.

    Args:
        parts: the files, by split.
        root: the folder that paths are shown below.
        labels: the class of each file, or -1.
        classes: names of the classes.
        max_pixels: an image with more is not decoded.
        workers: processes that decode; 0: this one.
        progress: is told how many files are done.
    """
    total = sum(len(part.listing) for part in parts)
    records, reasons = np.zeros(total, RECORD), dict[int, str]()
    thumbs, done = ThumbFile(), 0
    for rows, some, bad in _answers(parts, max_pixels, workers):
        records[done : done + len(rows)] = rows
        thumbs.append(some)
        reasons |= {done + row: reason for row, reason in bad}
        done += len(rows)
        if progress is not None:
            progress(done, total)
    return Scan(parts, root, labels, classes, records, thumbs, reasons)


def _answers(parts: Sequence[Split], max_pixels: int, workers: int) -> Iterator[_Answer]:
    """What is known of one piece of the files after the other, in order."""
    pieces = [
        (number, start, min(start + _CHUNK, len(part.listing)))
        for number, part in enumerate(parts)
        for start in range(0, len(part.listing), _CHUNK)
    ]
    listings = [part.listing for part in parts]
    if workers < 2 or len(pieces) < 2:
        yield from (_look(listings, max_pixels, piece) for piece in pieces)
        return
    # Forked where that is the custom of the system: processes then begin with what this one has imported.
    context = multiprocessing.get_context(multiprocessing.get_all_start_methods()[0])
    pool = ProcessPoolExecutor(workers, context, _settle, (listings, max_pixels))
    try:
        yield from pool.map(_look_here, pieces)
    except BrokenProcessPool as problem:
        do = "most often the memory ran out: give fewer --workers, or a smaller --set max_pixels=N"
        raise TrainingError("a process that decodes images died", where="--data", do=do) from problem
    finally:
        pool.shutdown(cancel_futures=True)


_HERE: list[Any] = []
"""What the pieces are pieces of, in a process that was started to look at them."""


def _settle(listings: list[Listing], max_pixels: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    when_parent_ends(partial(os._exit, 1))  # it would wait for more to do for ever
    _HERE[:] = [listings, max_pixels]


def _look_here(piece: tuple[int, int, int]) -> _Answer:
    return _look(_HERE[0], _HERE[1], piece)


def _look(listings: Sequence[Listing], max_pixels: int, piece: tuple[int, int, int]) -> _Answer:
    part, start, end = piece
    listing = listings[part]
    rows, thumbs = np.zeros(end - start, RECORD), np.zeros((end - start, THUMB, THUMB), np.uint8)
    bad = []
    for row in range(end - start):
        try:
            rows[row], thumbs[row] = measure(examine(listing.path(start + row), SIDE, max_pixels))
        except Unreadable as problem:
            bad.append((row, str(problem)))
    return rows, thumbs.tobytes(), bad
