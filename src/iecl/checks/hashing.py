"""Perceptual hashes of small gray versions, and how alike two of them are.

A hash is the signs of 64 low frequencies of a cosine transform. Brightness and contrast leave signs as they are, and a
mirror image has those of odd horizontal frequencies reversed, so that it needs no hash of its own. A copy may also be
cut: of every image hashes of some windows are taken as well, which a cut copy as a whole resembles.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from iecl.checks.measures import THUMB

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


class Thumbs(Protocol):
    """Small gray versions of images, by number: an array, or what reads rows of a file."""

    def __getitem__(self, numbers: Numbers, /) -> npt.NDArray[np.uint8]:
        """The rows of these images."""


Planes = npt.NDArray[np.float32]
BITS = 64
_CHUNK = 4096
WINDOWS = (
    (0.0, 0.0, 1.0),
    *((y, x, 0.9) for y in (0.0, 0.05, 0.1) for x in (0.0, 0.05, 0.1)),
    *((y, x, 0.8) for y in (0.0, 0.1, 0.2) for x in (0.0, 0.1, 0.2)),
)
"""Top, left and side of the parts of an image that a copy may be, as shares; the first is all of it."""


def _frequencies() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Vertical and horizontal number of the lowest frequencies without the mean, lowest first."""
    down, across = np.meshgrid(np.arange(BITS), np.arange(BITS), indexing="ij")
    order = np.lexsort((across.ravel(), (down**2 + across**2).ravel()))[1 : BITS + 1]
    return down.ravel()[order], across.ravel()[order]


_DOWN, _ACROSS = _frequencies()
_COUNT = int(max(_DOWN.max(), _ACROSS.max())) + 1
_WEIGHTS = np.uint64(1) << np.arange(BITS, dtype=np.uint64)
MIRROR = np.uint64(sum(1 << bit for bit in range(BITS) if _ACROSS[bit] % 2))
"""What a hash differs by from that of the mirror image."""


def _cosines() -> Planes:
    places = (np.arange(THUMB) + 0.5) / THUMB
    return np.cos(np.pi * np.arange(_COUNT)[:, None] * places).astype(np.float32)


def window(start: float, share: float) -> Planes:
    """A matrix that makes 32 numbers of a part of 32: each is the mean over its stretch.

    >>> window(0, 1).sum(), window(0.5, 0.5)[0, 16]
    (np.float32(32.0), np.float32(1.0))
    """
    edges = THUMB * (start + share * np.arange(THUMB + 1) / THUMB)
    left, right = edges[:-1, None], edges[1:, None]
    cells = np.arange(THUMB)
    overlap = np.clip(np.minimum(right, cells + 1) - np.maximum(left, cells), 0, None)
    made: Planes = (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float32)
    return made


def hashes_of(thumbs: Thumbs, numbers: Numbers, part: tuple[float, float, float] = WINDOWS[0]) -> Hashes:
    """The hash of a window of each of these images."""
    top, left, share = part
    down, across = _cosines() @ window(top, share), _cosines() @ window(left, share)
    found = np.empty(len(numbers), np.uint64)
    for start in range(0, len(numbers), _CHUNK):
        some = down @ thumbs[numbers[start : start + _CHUNK]].astype(np.float32) @ across.T
        bits = some[:, _DOWN, _ACROSS] > 0
        found[start : start + _CHUNK] = (bits * _WEIGHTS).sum(axis=1, dtype=np.uint64)
    return found
