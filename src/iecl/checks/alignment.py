"""How alike two small gray images are when the best part of one is laid over all of the other, in machine code.

The part starts where a hash suggested it, and its four sides are moved as long as that helps. Importing this needs
numba.
"""

from collections.abc import Callable

import numpy as np
from numba import njit, types

exact = njit(nogil=True, error_model="numpy", fastmath=True)
SIDE = 32
STEPS = (0.05, 0.025, 0.0125)
"""How far a side is moved, as shares of the image, the coarsest first."""


@exact
def _cut(image, top, bottom, left, right, is_mirrored, made):
    """A part of an image at full size, between pixels by their neighbors."""
    for y in range(SIDE):
        at = (top + (bottom - top) * (y + 0.5) / SIDE) * SIDE - 0.5
        at = min(max(at, 0.0), SIDE - 1.001)
        row = int(at)
        low = np.float32(at - row)
        for x in range(SIDE):
            place = (left + (right - left) * (x + 0.5) / SIDE) * SIDE - 0.5
            place = min(max(place, 0.0), SIDE - 1.001)
            column = int(place)
            far = np.float32(place - column)
            above = image[row, column] * (1 - far) + image[row, column + 1] * far
            below = image[row + 1, column] * (1 - far) + image[row + 1, column + 1] * far
            made[y, SIDE - 1 - x if is_mirrored else x] = above * (1 - low) + below * low


@exact
def _likeness(one, other):
    """Correlation of gray levels, and of their steps, which smooth images that only look alike lack."""
    count = np.float32(SIDE * SIDE)
    a = b = aa = bb = ab = np.float32(0)
    for y in range(SIDE):
        for x in range(SIDE):
            p, q = one[y, x], other[y, x]
            a, b, aa, bb, ab = a + p, b + q, aa + p * p, bb + q * q, ab + p * q
    gray = (ab - a * b / count) / np.sqrt(max((aa - a * a / count) * (bb - b * b / count), np.float32(1)))
    aa = bb = ab = np.float32(0)
    for y in range(SIDE - 1):
        for x in range(SIDE - 1):
            p, q = one[y, x + 1] - one[y, x], other[y, x + 1] - other[y, x]
            aa, bb, ab = aa + p * p, bb + q * q, ab + p * q
            p, q = one[y + 1, x] - one[y, x], other[y + 1, x] - other[y, x]
            aa, bb, ab = aa + p * p, bb + q * q, ab + p * q
    return gray, ab / np.sqrt(max(aa * bb, np.float32(1)))


@exact
def _climb(image, other, sides, is_mirrored, made):
    """Move one side after the other as long as the images grow more alike."""
    _cut(image, sides[0], sides[1], sides[2], sides[3], is_mirrored, made)
    gray, steps = _likeness(made, other)
    for step in STEPS:
        improved = True
        rounds = 0
        while improved and rounds < 4:
            improved = False
            rounds += 1
            for side in range(4):
                for move in (-step, step):
                    before = sides[side]
                    sides[side] = min(max(before + move, 0.0), 1.0)
                    _cut(image, sides[0], sides[1], sides[2], sides[3], is_mirrored, made)
                    new_gray, new_steps = _likeness(made, other)
                    if new_gray + new_steps > gray + steps:
                        gray, steps, improved = new_gray, new_steps, True
                    else:
                        sides[side] = before
    return gray, steps


def _align(begin, end, least, thumbs, ones, others, starts, mirrored, scores):
    """Scores of pairs from `begin` up to `end`; a pair that is not alike at all at the start is left as it is."""
    image, other = np.empty((SIDE, SIDE), np.float32), np.empty((SIDE, SIDE), np.float32)
    made, sides = np.empty((SIDE, SIDE), np.float32), np.empty(4, np.float64)
    for pair in range(begin, end):
        for y in range(SIDE):
            for x in range(SIDE):
                image[y, x], other[y, x] = thumbs[ones[pair], y, x], thumbs[others[pair], y, x]
        sides[:] = starts[pair]
        _cut(image, sides[0], sides[1], sides[2], sides[3], mirrored[pair], made)
        gray, steps = _likeness(made, other)
        if gray >= least:
            gray, steps = _climb(image, other, sides, mirrored[pair], made)
        scores[pair, 0], scores[pair, 1] = gray, steps


SIGNATURE = types.void(
    *(types.intp, types.intp, types.float32, types.uint8[:, :, ::1], types.int64[::1], types.int64[::1]),
    *(types.float64[:, ::1], types.boolean[::1], types.float32[:, ::1]),
)


def compiled(*, keep: bool) -> Callable[..., None]:
    """`_align` as machine code; `keep`: on disk, for the next process."""
    made: Callable[..., None] = njit(SIGNATURE, nogil=True, error_model="numpy", fastmath=True, cache=keep)(_align)
    return made
