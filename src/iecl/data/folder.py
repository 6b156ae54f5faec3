"""A folder of image files, decoded on each reading or once for all."""

import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from iecl.data.batch import Pixels
from iecl.data.decode import ImageArray, Unopened, Unreadable, decode
from iecl.data.listing import Listing, printable
from iecl.data.loader import in_order
from iecl.data.source import ArraySource, Numbers, Progress
from iecl.errors import TrainingError

_BATCH = 64
PATIENCE = 10.0
"""Seconds for which a folder may be gone: a drive in the network comes back."""
_FIRST_WAIT = 0.05


class FolderSource:
    """Files that are decoded whenever they are read."""

    is_decoded = False

    def __init__(
        self, listing: Listing, labels: Numbers, classes: tuple[str, ...], *, side: int, max_pixels: int
    ) -> None:
        """Hold the list of files.

        Args:
            listing: the files.
            labels: the class number of each, or -1.
            classes: names of the classes.
            side: height and width of the canvas that every image is brought to.
            max_pixels: an image with more pixels is bad.
        """
        self.name = listing.root_name
        self.listing, self.labels, self.classes = listing, labels, classes
        self.side, self.max_pixels = side, max_pixels

    def __len__(self) -> int:
        return len(self.listing)

    def read(self, index: Numbers) -> Pixels:
        """Decode these files; one that cannot be decoded gives a black row and a line in `bad`."""
        return self.read_into(np.empty((len(index), 3, self.side, self.side), np.uint8), index)

    def read_into(self, images: ImageArray, index: Numbers) -> Pixels:
        """Decode these files into memory that is there already.

        Raises:
            TrainingError: the folder itself is gone, which says nothing about its files.
        """
        sizes = np.full((len(index), 2), self.side, np.int64)
        bad: list[tuple[int, str]] = []
        for row, i in enumerate(index.tolist()):
            try:
                sizes[row] = self._decode(self.listing.path(i), images[row])
            except Unreadable as problem:
                images[row] = 0
                bad.append((row, str(problem)))
        return Pixels(torch.from_numpy(images), torch.from_numpy(sizes), tuple(bad))

    def select(self, index: Numbers) -> "FolderSource":
        """Some of the files, under numbers of their own."""
        form = {"side": self.side, "max_pixels": self.max_pixels}
        return FolderSource(self.listing.select(index), self.labels[index], self.classes, **form)

    def _decode(self, path: bytes, canvas: ImageArray) -> tuple[int, int]:
        try:
            return decode(path, self.side, self.max_pixels, canvas)[1]
        except Unopened:  # the file's fault only if the folder is there, and then still
            wait_for(self.listing.root)
            return decode(path, self.side, self.max_pixels, canvas)[1]

    def path(self, index: int) -> str:
        """The path of a file, in printable letters."""
        return self.listing.name(index)


def wait_for(folder: bytes) -> None:
    """Return as soon as a folder is there and has something in it; a drive that is not mounted leaves an empty one.

    Raises:
        TrainingError: it was not for `PATIENCE` seconds.
    """
    began, wait = time.monotonic(), _FIRST_WAIT
    while (reason := _absence(folder)) is not None:
        left = began + PATIENCE - time.monotonic()
        if left <= 0:
            raise TrainingError(
                f"the folder {printable(folder)} is gone: {reason}", where="--data", do="bring it back, and resume"
            )
        time.sleep(min(wait, left))
        wait *= 2


def _absence(folder: bytes) -> str | None:
    """Why a folder cannot be used; None: it can."""
    try:
        with os.scandir(folder) as entries:
            return None if next(entries, None) is not None else "there is nothing in it"
    except OSError as problem:
        return (problem.strerror or "no reason given").lower()


@dataclass(frozen=True)
class Decoded:
    """What became of the files of a folder."""

    index: Numbers
    """The good ones, in order."""
    sizes: Int64[Tensor, "n 2"]
    """Their heights and widths."""
    skipped: list[tuple[str, str]]
    """(path, reason) of the others."""


def resident(
    source: FolderSource, workers: int, progress: Progress | None = None
) -> tuple[ArraySource, list[tuple[str, str]]]:
    """Decode all files once and keep the good ones in memory.

    Returns:
        The images, and (path, reason) of each file that was left out.

    Raises:
        UserError: there is no good one.
    """
    images = torch.empty((len(source), 3, source.side, source.side), dtype=torch.uint8)
    decoded = decode_all(source, images, workers, progress)
    return kept(source, images, decoded), decoded.skipped


def decode_all(
    source: FolderSource,
    images: UInt8[Tensor, "n 3 side side"],
    workers: int,
    progress: Progress | None = None,
) -> Decoded:
    """Fill `images` with the good files, one after the other.

    Raises:
        UserError: there is no good one.
    """
    index: list[Numbers] = []
    sizes: list[Tensor] = []
    skipped: list[tuple[str, str]] = []
    filled = 0
    for batch in in_order(source, _BATCH, workers, on_bad=lambda path, reason: skipped.append((path, reason))):
        images[filled : filled + len(batch.index)] = batch.images  # they close ranks: no second copy is ever held
        index.append(batch.index.numpy().copy())  # copies: what comes from a worker keeps a file open
        sizes.append(batch.sizes.clone())
        filled += len(batch.index)
        if progress is not None:
            progress(filled + len(skipped), len(source))
    return Decoded(np.concatenate(index), torch.cat(sizes), skipped)


def kept(source: FolderSource, images: UInt8[Tensor, "n 3 side side"], decoded: Decoded) -> ArraySource:
    """The good files of a folder as images in memory."""
    index = decoded.index
    return ArraySource(
        source.name,
        images[: len(index)],
        source.labels[index],
        source.classes,
        sizes=decoded.sizes,
        listing=source.listing.select(index),
    )
