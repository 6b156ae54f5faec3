"""Pictures of a packed file: mapped into memory, so that all processes of a machine share one copy."""

import mmap
import os

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from iecl.data.batch import Pixels
from iecl.data.listing import Listing
from iecl.data.packfile import PackFile, Part
from iecl.data.source import Numbers

DAMAGED = "damaged in the packed file"
_STAYS = 0.5
"""The share of the machine's memory up to which pictures are taken to stay in it once they were read."""


class PackedSource:
    """One part of a packed file. Nothing is read until it is asked for, and nothing is decoded."""

    is_decoded = True

    def __init__(self, file: PackFile, part: Part, *, with_labels: bool = True) -> None:
        """Map a part.

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
        self._sizes, self._sums = part.tables["sizes"], part.tables["sums"]
        self._is_checked = np.zeros(part.count, bool)
        self._content, self._start, self._bytes = file.content, part.pixels, 3 * file.side**2
        pixels = np.frombuffer(file.content, np.uint8, part.count * self._bytes, part.pixels)
        self._pixels = pixels.reshape(part.count, self._bytes)
        self._can_stay = pixels.nbytes < _STAYS * _memory()

    def __len__(self) -> int:
        return len(self.labels)

    def expect(self, index: Numbers) -> None:
        """Let the system fetch these pictures from the disk, all at once, while something else is done.

        Otherwise each waits for the one before it when they are read, which was measured to take ten times as long.
        Pictures that were read before are in memory still, unless there are more of them than it holds.
        """
        if not hasattr(mmap, "MADV_WILLNEED"):  # Windows
            return
        wanted = index[~self._is_checked[index]] if self._can_stay else index
        for first in (self._start + wanted * self._bytes).tolist():
            page = first - first % mmap.PAGESIZE
            self._content.madvise(mmap.MADV_WILLNEED, page, first + self._bytes - page)

    def read(self, index: Numbers) -> Pixels:
        """Copy these pictures out of the file; one whose bytes have changed since it was packed is bad."""
        rows = torch.from_numpy(self._pixels.take(index, axis=0))
        bad = self._changed(index, rows)
        rows[bad] = 0
        sizes = torch.from_numpy(self._sizes[index].astype(np.int64))
        images = rows.view(len(index), 3, self.side, self.side)
        return Pixels(images, sizes, tuple((int(row), DAMAGED) for row in bad))

    def _changed(self, index: Numbers, rows: UInt8[Tensor, "n bytes"]) -> Numbers:
        """Rows that differ from what was written; each picture is looked at until it is found good once."""
        (fresh,) = np.nonzero(~self._is_checked[index])
        if not len(fresh):
            return fresh
        looked = rows if len(fresh) == len(index) else rows[torch.from_numpy(fresh)]
        is_good = sums_of(looked).numpy() == self._sums[index[fresh]]
        self._is_checked[index[fresh[is_good]]] = True
        bad: Numbers = fresh[~is_good]
        return bad

    def path(self, index: int) -> str:
        """The packed file and the path of the picture below its folder, as if the file were that folder."""
        return self.listing.name(index)


def _memory() -> int:
    """Bytes that this machine has; unknown counts as none."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def sums_of(rows: UInt8[Tensor, "n bytes"]) -> Int64[Tensor, " n"]:
    """The sum of each row's bytes, eight at a time as one number where that is possible; it wraps around.

    It tells damage, not malice: a cryptographic checksum would take longer than everything else.

    >>> sums_of(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8))
    tensor([ 6, 15])
    """
    words = rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows
    return words.sum(dim=1, dtype=torch.int64)
