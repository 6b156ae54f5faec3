"""Images of a packed file: read from the memory in which the system keeps it, one copy for all processes."""

import os
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from iecl.compiled import loops
from iecl.data.batch import Pixels
from iecl.data.listing import Listing
from iecl.data.pack_format import PackedPart, PackFile
from iecl.data.source import Numbers

DAMAGED = "damaged in the packed file"
_STAYS = 0.5
"""The share of the machine's memory up to which images are taken to stay in it once they were read."""


class PackedSource:
    """One part of a packed file. Nothing is read until it is asked for, and nothing is decoded."""

    is_decoded = True

    def __init__(self, file: PackFile, part: PackedPart, *, with_labels: bool = True) -> None:
        """Take a part.

        Args:
            file: the open file.
            part: which of its parts.
            with_labels: whether classes and labels are taken over; otherwise there are none.
        """
        root = os.fsencode(file.path) + (b"" if part.name == "all" else b"/" + os.fsencode(part.name))
        self.listing = Listing(root, part.tables["names"].data, part.tables["ends"], {})
        self.name = self.listing.root_name
        self.side = file.side
        self.classes = file.classes if with_labels else ()
        self.labels: Numbers = part.tables["labels"].astype(np.int64)
        if not with_labels:
            self.labels = np.full_like(self.labels, -1)
        self._sizes, self._sums, self._sums_of = part.tables["sizes"], part.tables["sums"], SUMS[file.version]
        self._is_checked = np.zeros(part.count, bool)
        self._content, self._start, self._bytes = file.content, part.pixels, 3 * file.side**2
        self._as_of = file.content.changed
        self._can_stay = part.count * self._bytes < _STAYS * _memory()

    def __len__(self) -> int:
        return len(self.labels)

    def expect(self, index: Numbers) -> None:
        """Let the system fetch these images from the disk, all at once, while something else is done.

        Otherwise each waits for the one before it when they are read, which was measured to take ten times as long.
        Images that were read before are in memory still, unless there are more of them than it holds.
        """
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        wanted = index[~self._is_checked[index]] if self._can_stay else index
        for first in (self._start + wanted * self._bytes).tolist():
            os.posix_fadvise(self._content.handle, first, self._bytes, os.POSIX_FADV_WILLNEED)

    def read(self, index: Numbers) -> Pixels:
        """Copy these images out of the file; one whose bytes have changed since it was packed is bad.

        Raises:
            TrainingError: the file was cut short or written to since it was opened.
        """
        copied = np.empty((len(index), self._bytes), np.uint8)
        self._copy(copied, self._start + index * self._bytes)
        changed = self._content.check()  # afterwards, so that a change in the middle is noticed too
        if changed != self._as_of:
            self._as_of, self._is_checked[:] = changed, False
        rows = torch.from_numpy(copied)
        bad = self._changed(index, rows)
        rows[bad] = 0
        sizes = torch.from_numpy(self._sizes[index].astype(np.int64))
        images = rows.view(len(index), 3, self.side, self.side)
        return Pixels(images, sizes, tuple((int(row), DAMAGED) for row in bad))

    def _copy(self, rows: npt.NDArray[np.uint8], places: Numbers) -> None:
        """Fill rows with the bytes at these places, by compiled loops where there are some."""
        done, read = np.zeros(1, np.int64), loops("iecl.data.row_reader", "images are read")
        if read is not None:
            read(self._content.handle, places, rows, done)
        for row in range(int(done[0]), len(rows)):  # what is left was not there, which this says
            self._content.read_into(rows[row].data, int(places[row]))

    def _changed(self, index: Numbers, rows: UInt8[Tensor, "n bytes"]) -> Numbers:
        """Rows that differ from what was written; each image is looked at until it is found good once."""
        (fresh,) = np.nonzero(~self._is_checked[index])
        if not len(fresh):
            return fresh
        looked = rows if len(fresh) == len(index) else rows[torch.from_numpy(fresh)]
        is_good = self._sums_of(looked).numpy() == self._sums[index[fresh]]
        self._is_checked[index[fresh[is_good]]] = True
        bad: Numbers = fresh[~is_good]
        return bad

    def path(self, index: int) -> str:
        """The packed file and the path of the image below its folder, as if the file were that folder."""
        return self.listing.name(index)


def _memory() -> int:
    """Bytes that this machine has; unknown counts as none."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def sums_of(rows: UInt8[Tensor, "n bytes"]) -> Int64[Tensor, " n"]:
    """A number for each row that changes with any byte and with any exchange of bytes; it wraps around.

    Every four bytes are a number, and are multiplied by a number of their place before all are added. Two different
    rows have the same sum once in 2**32 times or less, and rows that differ in one byte never, since every factor is
    odd. It tells damage, not malice: a cryptographic checksum would take longer than everything else.

    >>> sums_of(torch.tensor([[1, 2, 3], [1, 3, 2]], dtype=torch.uint8))
    tensor([ 2025929927958080431, -7742731305776522577])
    """
    words = pad(rows, (0, -rows.shape[1] % 8)).view(torch.int64) if rows.shape[1] % 8 else rows.view(torch.int64)
    lower, upper = _factors(words.shape[1])
    return words @ lower + (words >> 32) @ upper  # two for each eight bytes: products drop what is beyond 64 bits


@lru_cache(maxsize=2)
def _factors(count: int) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
    """The odd numbers that words are multiplied by: SplitMix64 from 0 on, a part of the packed form."""
    mixed = np.arange(1, 2 * count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    odd = torch.from_numpy(((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)).view(np.int64))
    return odd[0::2].contiguous(), odd[1::2].contiguous()


def plain_sums_of(rows: UInt8[Tensor, "n bytes"]) -> Int64[Tensor, " n"]:
    """The sums of version 1, which are blind to the order of words: its bytes, eight at a time where that is possible.

    >>> plain_sums_of(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8))
    tensor([ 6, 15])
    """
    words = rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows
    return words.sum(dim=1, dtype=torch.int64)


SUMS = {1: plain_sums_of, 2: sums_of}
"""How the pixels of each version of the packed form are added up."""
