"""Rows of a file into memory in machine code: a call of the system for each, without Python between them.

Importing this needs numba. Small images are read in less time than Python takes to ask for one.
"""

from collections.abc import Callable

import numpy as np
from numba import njit, types

# From the C library that Python itself runs on. The place in memory is passed as the number that it is.
_pread = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))
SIGNATURE = types.void(types.int32, types.int64[::1], types.uint8[:, ::1], types.int64[::1])


def _read(handle, places, rows, done):
    """Fill rows with what stands at these places of a file; `done` is how many were filled before one could not be."""
    size = np.uintp(rows.shape[1])
    for row in range(len(rows)):
        if _pread(handle, np.uintp(rows[row].ctypes.data), size, places[row]) != rows.shape[1]:
            break
        done[0] += 1


def compiled(*, keep: bool) -> Callable[..., None]:
    """`_read` as machine code; `keep`: on disk beside this file or in the user's cache, for the next process."""
    made: Callable[..., None] = njit(SIGNATURE, nogil=True, cache=keep)(_read)
    return made
