"""Pictures of a packed file: mapped into memory, so that all processes of a machine share one copy."""

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
        self._pixels = np.asarray(np.memmap(file.path, np.uint8, "r", part.pixels, (part.count, 3 * file.side**2)))

    def __len__(self) -> int:
        return len(self.labels)

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


def sums_of(rows: UInt8[Tensor, "n bytes"]) -> Int64[Tensor, " n"]:
    """The sum of each row's bytes, eight at a time as one number where that is possible; it wraps around.

    It tells damage, not malice: a cryptographic checksum would take longer than everything else.

    >>> sums_of(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8))
    tensor([ 6, 15])
    """
    words = rows.view(torch.int64) if rows.shape[1] % 8 == 0 else rows
    return words.sum(dim=1, dtype=torch.int64)
