"""A folder of image files, decoded on each reading."""

import os
import time

import numpy as np
import torch

from iecl.data.batch import Pixels
from iecl.data.decoder import ImageArray, Unopened, Unreadable, decode
from iecl.data.listing import Listing, printable
from iecl.data.source import Numbers
from iecl.errors import TrainingError

PATIENCE = 10.0
"""Seconds for which a folder may be gone: a drive in the network comes back."""
_FIRST_WAIT = 0.05


class FolderSource:
    """Files that are decoded whenever they are read."""

    is_decoded = False

    def __init__(
        self,
        listing: Listing,
        labels: Numbers,
        classes: tuple[str, ...],
        *,
        side: int,
        max_pixels: int,
        channels: int = 3,
    ) -> None:
        """Hold the list of files.

        Args:
            listing: the files.
            labels: the class number of each, or -1.
            classes: names of the classes.
            side: height and width that every image is brought to.
            max_pixels: an image with more pixels is bad.
            channels: of an image; one that has another number of them is bad.
        """
        self.name = listing.root_name
        self.listing, self.labels, self.classes = listing, labels, classes
        self.side, self.max_pixels, self.channels = side, max_pixels, channels

    def __len__(self) -> int:
        return len(self.listing)

    def select(self, index: Numbers) -> "FolderSource":
        """Some of the files, in the order given."""
        how = {"side": self.side, "max_pixels": self.max_pixels, "channels": self.channels}
        return FolderSource(self.listing.select(index), self.labels[index], self.classes, **how)

    def read(self, index: Numbers) -> Pixels:
        """Decode these files; one that cannot be decoded gives a black row and a line in `bad`."""
        return self.read_into(np.empty((len(index), self.channels, self.side, self.side), np.uint8), index)

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

    def _decode(self, path: bytes, image: ImageArray) -> tuple[int, int]:
        try:
            return decode(path, self.side, self.max_pixels, image)[1]
        except Unopened:  # the file's fault only if the folder is there, and then still
            wait_for(self.listing.root)
            return decode(path, self.side, self.max_pixels, image)[1]

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
