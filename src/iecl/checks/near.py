"""Pairs of images that are nearly the same: candidates by hash, each then laid over the other."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from iecl.checks.findings import groups_of
from iecl.checks.hashing import MIRROR, WINDOWS, Hashes, Thumbs, hashes_of
from iecl.compiled import Loops, loops, share_out
from iecl.launch import usable_cores

log = logging.getLogger("iecl.checks")
Numbers = npt.NDArray[np.int64]
_ROOM = 48
"""Candidates of one query; with more of them an image is like half of the collection."""
_QUERIES, _PAIRS = 1 << 16, 1 << 14
"""Looked up and laid over each other at a time: some 30 MB."""
_CROWD, _DENSE, _SURE, _MANY = 8, 0.5, 0.97, 0.1
"""Images that pairs join are a crowd if they are more than so many and fewer than this share of their pairs are alike;
the likeness from which on two images of a crowd are one picture all the same; the share of a collection that makes all
of it a crowd."""
_ALIKE = 0.4
"""Correlation of gray levels below which two images are not laid over each other at all."""


@dataclass(frozen=True)
class Pairs:
    """Two images each, the lower number first, and how alike they are."""

    one: Numbers
    other: Numbers
    likeness: npt.NDArray[np.float32]
    """The lower of two correlations: of gray levels, and of the steps between them."""

    def __len__(self) -> int:
        return len(self.one)

    def where(self, kept: npt.NDArray[np.bool_]) -> "Pairs":
        """Some of the pairs."""
        return Pairs(self.one[kept], self.other[kept], self.likeness[kept])


@dataclass(frozen=True)
class _Candidates:
    one: Numbers
    other: Numbers
    part: Numbers
    """Number of the window of the first image that the second one may be."""
    is_mirrored: npt.NDArray[np.bool_]


def near_pairs(thumbs: Thumbs, numbers: Numbers, radius: int, least: float, also: Numbers | None = None) -> Pairs:
    """Pairs among images that are one picture up to size, compression, light, a cut, a mirror or small additions.

    Args:
        thumbs: small gray versions of all images.
        numbers: which images to compare.
        radius: bits in which hashes of two candidates may differ.
        least: correlation from which on two images are nearly the same.
        also: (n, 2), further candidates, such as neighbors by a backbone.
    """
    nothing = Pairs(*(np.zeros(0, np.int64),) * 2, np.zeros(0, np.float32))
    if len(numbers) < 2:
        return nothing
    search = loops("iecl.checks.hash_search", "hashes are compared")
    align = loops("iecl.checks.alignment", "images are compared")
    if search is None or align is None:
        log.warning("near-duplicates are not looked for: that needs numba")
        return nothing
    found = _by_hash(search, thumbs, numbers, radius)
    more = iter(()) if also is None or not len(also) else _everywhere(also)
    return _best([_confirmed(align, thumbs, some, least) for some in chain(found, more)])


def _by_hash(search: Loops, thumbs: Thumbs, numbers: Numbers, radius: int) -> Iterator[_Candidates]:
    hashes = hashes_of(thumbs, numbers)
    near = radius // 4
    changes = np.array([sum(1 << b for b in bits) for n in range(near + 1) for bits in combinations(range(16), n)])
    order, starts = np.empty((4, len(hashes)), np.int32), np.zeros((4, 65537), np.int64)
    for quarter in range(4):
        keys = (hashes >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
        order[quarter] = keys.argsort(kind="stable")
        starts[quarter, 1:] = np.bincount(keys.astype(np.int64), minlength=65536).cumsum()
    for part, where in enumerate(WINDOWS):
        queries = hashes if part == 0 else hashes_of(thumbs, numbers, where)
        for is_mirrored in (False, True):
            asked = queries ^ MIRROR if is_mirrored else queries
            for start in range(0, len(asked), _QUERIES):
                owners = np.arange(start, min(start + _QUERIES, len(asked)))
                one, other = _searched(search, asked, owners, radius, changes, hashes, starts, order)
                if part == 0:  # both ways are the same
                    one, other = one[one < other], other[one < other]
                form = np.full(len(one), part), np.full(len(one), is_mirrored)
                yield _Candidates(numbers[one], numbers[other], *form)


def _searched(
    search: Loops, queries: Hashes, owners: Numbers, radius: int, changes: Numbers, hashes: Hashes,
    starts: Numbers, order: npt.NDArray[np.int32],
) -> tuple[Numbers, Numbers]:  # fmt: skip
    found = np.empty((len(owners), _ROOM), np.int32)
    counts = np.zeros(len(owners), np.int64)
    work = partial(
        search,
        radius=radius,
        near=radius // 4,
        queries=np.ascontiguousarray(queries[owners]),
        owners=owners,
        changes=changes.astype(np.uint64),
        hashes=hashes,
        starts=starts,
        order=order,
        found=found,
        counts=counts,
    )
    share_out(work, len(owners), usable_cores())
    is_found = np.arange(_ROOM) < counts[:, None]
    rows, _ = np.nonzero(is_found)
    return owners[rows], found[is_found].astype(np.int64)


def _everywhere(pairs: Numbers) -> Iterator[_Candidates]:
    """Pairs of which nothing is known: all windows of either image; mirrored, whole and middle ones."""
    for part, (top, left, share) in enumerate(WINDOWS):
        is_middle = abs(1 - share - 2 * top) < 1e-9 and top == left
        for is_mirrored in (False, True) if is_middle else (False,):
            for one, other in ((0, 1), (1, 0)) if part else ((0, 1),):
                form = np.full(len(pairs), part), np.full(len(pairs), is_mirrored)
                yield _Candidates(pairs[:, one], pairs[:, other], *form)


def _confirmed(align: Loops, thumbs: Thumbs, some: _Candidates, least: float) -> Pairs:
    """Those of the candidates that are alike enough, the lower number first."""
    sides = np.array([(top, top + share, left, left + share) for top, left, share in WINDOWS])
    likeness = np.empty(len(some.one), np.float32)
    for start in range(0, len(some.one), _PAIRS):
        rows = slice(start, start + _PAIRS)
        images, places = np.unique(np.stack([some.one[rows], some.other[rows]]), return_inverse=True)
        ones, others = places.reshape(2, -1).astype(np.int64)
        scores = np.empty((len(ones), 2), np.float32)
        work = partial(
            align,
            least=np.float32(_ALIKE),
            thumbs=np.ascontiguousarray(thumbs[images]),
            ones=np.ascontiguousarray(ones),
            others=np.ascontiguousarray(others),
            starts=np.ascontiguousarray(sides[some.part[rows]]),
            mirrored=np.ascontiguousarray(some.is_mirrored[rows]),
            scores=scores,
        )
        share_out(work, len(ones), usable_cores())
        likeness[rows] = scores.min(axis=1)
    found = Pairs(np.minimum(some.one, some.other), np.maximum(some.one, some.other), likeness)
    return found.where(likeness >= least)


def _best(found: list[Pairs]) -> Pairs:
    """Each pair once, with the greatest likeness of the windows by which it was found."""
    low, high = (np.concatenate([getattr(some, name) for some in found]) for name in ("one", "other"))
    likeness = np.concatenate([some.likeness for some in found])
    order = np.lexsort((-likeness, high, low))
    whole = Pairs(low[order], high[order], likeness[order])
    is_first = np.ones(len(low), bool)
    is_first[1:] = (whole.one[1:] != whole.one[:-1]) | (whole.other[1:] != whole.other[:-1])
    return whole.where(is_first)


def without_crowds(pairs: Pairs, images: int) -> tuple[Pairs, int]:
    """Pairs that are copies, and how many of so many images are in crowds, where only the surest pairs are copies.

    Copies of one picture are all alike. Where some are and others are not (digits, scans, faces before a wall), images
    show the same kind of thing.
    """
    groups = groups_of(pairs.one, pairs.other)
    owner = {number: place for place, group in enumerate(groups) for number in group}
    place = np.array([owner[number] for number in pairs.one.tolist()], np.int64)
    size, joined = np.array([len(group) for group in groups]), np.bincount(place, minlength=len(groups))
    is_crowd = (size > _CROWD) & (joined < _DENSE * size * (size - 1) / 2)
    crowded = int(size[is_crowd].sum())
    is_doubtful = is_crowd[place] | (crowded >= _MANY * images)
    return pairs.where(~is_doubtful | (pairs.likeness >= _SURE)), crowded
