"""Pixels on their way from a worker: memory that parent and worker have shared since before the worker was forked.

A tensor that is sent to another process takes a new shared file, of which the system clears every page, and in many
containers all such files together may have 64 MB. A slot is used again and again, and is no file.
"""

import mmap
from math import prod

import torch
from jaxtyping import UInt8
from torch import Tensor


class Slots:
    """Room for a few batches, which are numbered and take the slots in turn.

    >>> two = Slots(2, 6)
    >>> two.put(7, torch.arange(6, dtype=torch.uint8).view(2, 3))
    >>> two.take(7, (2, 3)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, count: int, size: int) -> None:
        """Make `count` slots of `size` bytes."""
        self._memory = torch.frombuffer(mmap.mmap(-1, count * size), dtype=torch.uint8).view(count, size)

    def put(self, number: int, images: UInt8[Tensor, "..."]) -> None:
        """Copy the pixels of a batch into its slot, in a worker."""
        self._memory[number % len(self._memory), : images.numel()].view(images.shape).copy_(images)

    def take(self, number: int, shape: tuple[int, ...]) -> UInt8[Tensor, "..."]:
        """Copy them out, so that the slot is free."""
        return self._memory[number % len(self._memory), : prod(shape)].view(shape).clone()
