"""Pixels on their way from a worker: memory that parent and worker have shared since before the worker was forked.

A tensor that is sent to another process takes a new shared file, of which the system clears every page, and in many
containers all such files together may have 64 MB. A slot is used again and again, and is no file.
"""

import mmap
import weakref
from math import prod

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from iecl.data.decoder import ImageArray

LENT = 3
"""Batches that may stay in their slots while they are used: one in hand, and some that a loop still holds."""


class Slots:
    """Room for a few batches. A number is reserved for each; a worker fills the room, and the parent takes it out.

    >>> slots = Slots(1, (2, 3))
    >>> number = slots.reserve()
    >>> slots.room(number, 2)[...] = [[0, 1, 2], [3, 4, 5]]
    >>> slots.take(number, 2).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        """Make room for `count` batches of `shape` on their way, and for some that were taken out."""
        self._free = list(range(count + LENT))
        self._lent: set[int] = set()
        memory = mmap.mmap(-1, len(self._free) * prod(shape))  # what is never used takes no memory
        self._memory = np.frombuffer(memory, np.uint8).reshape(-1, *shape)

    def reserve(self) -> int:
        """The number of a slot that is free; in the parent, as is taking out."""
        return self._free.pop()  # the last one that was used is in the processor's cache

    def room(self, number: int, rows: int) -> ImageArray:
        """The memory of a slot, for a batch of so many rows."""
        return self._memory[number, :rows]

    def take(self, number: int, rows: int) -> UInt8[Tensor, "rows ..."]:
        """The batch in a slot: no copy, and the slot is free when the tensor is gone; a copy if too many are lent."""
        found = self.room(number, rows)
        if len(self._lent) == LENT:
            self._free.append(number)
            return torch.from_numpy(found.copy())
        self._lent.add(number)
        weakref.finalize(found, self._give_back, number).atexit = False
        return torch.from_numpy(found)

    def _give_back(self, number: int) -> None:
        self._lent.discard(number)
        self._free.append(number)
