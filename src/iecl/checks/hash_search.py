"""Hashes of 64 bits that differ in few: found by their quarters, in machine code.

Two hashes that differ in at most r bits agree in one quarter up to a fourth of that. All hashes are sorted by each
quarter; a query looks up its own quarters with up to so many bits changed and compares only what it meets there.
Importing this needs numba.
"""

from collections.abc import Callable

import numpy as np
from numba import njit, types

exact = njit(nogil=True, error_model="numpy", fastmath=False)
QUARTERS, MASK = 4, np.uint64(0xFFFF)


@exact
def _count(bits):
    bits -= (bits >> np.uint64(1)) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@exact
def _is_new(change, quarter, near):
    """Whether no earlier quarter leads to the same hash: each is met once."""
    for earlier in range(quarter):  # noqa: SIM110 - numba knows no generators
        if _count((change >> np.uint64(16 * earlier)) & MASK) <= near:
            return False
    return True


def _search(begin, end, radius, near, queries, owners, changes, hashes, starts, order, found, counts):
    """For queries from `begin` up to `end` the hashes within the radius that are not their own, as many as fit."""
    room = found.shape[1]
    for query in range(begin, end):
        many = 0
        for quarter in range(QUARTERS):
            shift = np.uint64(16 * quarter)
            key = (queries[query] >> shift) & MASK
            for change in changes:
                bucket = np.int64(key ^ change)
                for place in range(starts[quarter, bucket], starts[quarter, bucket + 1]):
                    other = order[quarter, place]
                    if other == owners[query]:
                        continue
                    differ = queries[query] ^ hashes[other]
                    if _count(differ) <= radius and many < room and _is_new(differ, quarter, near):
                        found[query, many] = other
                        many += 1
        counts[query] = many


SIGNATURE = types.void(
    *(types.intp, types.intp, types.int64, types.int64, types.uint64[::1], types.int64[::1], types.uint64[::1]),
    *(types.uint64[::1], types.int64[:, ::1], types.int32[:, ::1], types.int32[:, ::1], types.int64[::1]),
)


def compiled(*, keep: bool) -> Callable[..., None]:
    """`_search` as machine code; `keep`: on disk, for the next process."""
    made: Callable[..., None] = njit(SIGNATURE, nogil=True, error_model="numpy", fastmath=False, cache=keep)(_search)
    return made
