"""The greatest numbers of each row in machine code: what `nearest.top_by_tensors` does by tensor operations.

Importing this needs numba. As in `iecl.views.kernels`, arrays are flat and places in them unsigned where loops are to
become vector instructions, and all compiled code stands in one file.
"""

from collections.abc import Callable

import numpy as np
from numba import njit, types

NEXT = np.uintp(1)
INFINITY, SLACK = np.float32(np.inf), np.float32(0.05)
exact = njit(nogil=True, error_model="numpy", fastmath=False)


@exact
def _find_maxima(scores, at, size, stride, maxima):
    """Of every `stride`-th number from each of the first `stride` places on: whole stretches at once."""
    for x in range(stride):
        maxima[x] = scores[at + x]
    for member in range(NEXT, size):
        begin = at + member * stride
        for x in range(stride):
            score = scores[begin + x]
            maxima[x] = score if score > maxima[x] else maxima[x]


@exact
def _greatest_but(numbers, count, above):
    """Of the first `count` the one that comes after `above` greater or equal ones: Hoare's selection, which swaps."""
    low, high = 0, count - 1
    while low < high:
        pivot = numbers[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while numbers[left] > pivot:
                left += 1
            while numbers[right] < pivot:
                right -= 1
            if left <= right:
                numbers[left], numbers[right] = numbers[right], numbers[left]
                left += 1
                right -= 1
        if above <= right:
            high = right
        elif above >= left:
            low = left
        else:
            break
    return numbers[above]


@exact
def _copy_from(maxima, least, to):
    """How many are not smaller; they are copied."""
    many = 0
    for maximum in maxima:
        if maximum >= least:
            to[many] = maximum
            many += 1
    return many


@exact
def _comes_later(value, column, other, other_column):
    return value < other or (value == other and column > other_column)


@exact
def _sink(values, columns, place, count):
    """Let one entry of a heap, whose top comes last of all, find its place."""
    value, column = values[place], columns[place]
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and _comes_later(values[child + 1], columns[child + 1], values[child], columns[child]):
            child += 1
        if not _comes_later(values[child], columns[child], value, column):
            break
        values[place], columns[place] = values[child], columns[child]
        place = child
    values[place], columns[place] = value, column


@exact
def _sort(values, columns, count):
    """The greatest first, of equal ones the leftmost."""
    for place in range(count // 2 - 1, -1, -1):
        _sink(values, columns, place, count)
    for last in range(count - 1, 0, -1):
        values[0], values[last] = values[last], values[0]
        columns[0], columns[last] = columns[last], columns[0]
        _sink(values, columns, 0, last)


@exact
def _collect(scores, at, count, size, stride, maxima, least, found, places):
    """All numbers from `least` on and where they are: in groups whose maximum is one, and beyond the groups."""
    many = 0
    for x in range(stride):
        if maxima[x] >= least:
            place = x
            for _ in range(size):
                if scores[at + place] >= least:
                    found[many], places[many] = scores[at + place], place
                    many += 1
                place += stride
    for place in range(size * stride, count):
        if scores[at + place] >= least:
            found[many], places[many] = scores[at + place], place
            many += 1
    return many


def _select(begin, end, count, size, scores, values, columns):
    """Fill the rows of `values` and `columns` from `begin` up to `end`; they are as wide as numbers are wanted."""
    wanted, stride = values.shape[1], count // size
    maxima, turned = np.empty(stride, np.float32), np.empty(stride, np.float32)
    found, places = np.empty(count, np.float32), np.empty(count, np.int64)
    wide, members, groups = np.uintp(count), np.uintp(size), np.uintp(stride)
    guess = -INFINITY
    for row in range(begin, end):
        at = np.uintp(row) * wide
        _find_maxima(scores, at, members, groups, maxima)
        # Rows are alike: little below the bound of the last one there are hardly more maxima than are wanted.
        some = _copy_from(maxima, guess, turned)
        if some < wanted:
            some = _copy_from(maxima, -INFINITY, turned)
        # So many groups hold a number from here on, so that no number below can be among those that are wanted.
        least = _greatest_but(turned, some, wanted - 1)
        many = _collect(scores, at, wide, members, groups, maxima, least, found, places)
        _sort(found, places, many)
        guess = least - SLACK * (found[0] - least)
        values[row] = found[:wanted]
        columns[row] = places[:wanted]


SIGNATURE = types.void(
    types.intp, types.intp, types.intp, types.intp, types.float32[::1], types.float32[:, ::1], types.int64[:, ::1]
)


def compiled(*, keep: bool) -> Callable[..., None]:
    """`_select` as machine code; `keep`: on disk beside this file or in the user's cache, for the next process."""
    made: Callable[..., None] = njit(SIGNATURE, nogil=True, error_model="numpy", fastmath=False, cache=keep)(_select)
    return made
