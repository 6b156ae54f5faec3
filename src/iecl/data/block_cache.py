"""Blocks of shards on their way: asked for ahead of their use, by threads, and dropped when all of them was used."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

THREADS = 32
"""Blocks that are fetched at a time: at 50 ms a block, 640 of them a second."""
MOST_BYTES = 2**28
"""Bytes of blocks that are kept for the images in them that were not asked for."""
Images = Sequence[bytes]
_Fetch = Callable[[int], Images]
_Tasks = SimpleQueue[tuple["Future[Images]", int] | None]


class BlockCache:
    """The images of blocks by number. One thread asks, others fetch; a process that was forked begins anew."""

    def __init__(self, fetch: _Fetch, blocks: npt.NDArray[np.int64]) -> None:
        """Keep blocks.

        Args:
            fetch: gives the images of a block.
            blocks: the length and the number of images of each.
        """
        self._fetch, self._blocks = fetch, blocks
        self._process = -1

    def _begin(self) -> None:
        self._process = os.getpid()
        self._held: dict[int, Future[Images]] = {}
        self._used: OrderedDict[int, int] = OrderedDict()
        """How many images of a block were taken; the last is the one that was asked for last."""
        self._bytes = 0
        """Of all blocks in `_used`."""
        self._tasks: _Tasks = SimpleQueue()
        for _ in range(THREADS):
            # Daemons: a network that does not answer must not keep a process from ending.
            threading.Thread(target=_work, args=(self._tasks, self._fetch), daemon=True).start()
        weakref.finalize(self, _end, self._tasks).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        """What a new process needs."""
        return {"_fetch": self._fetch, "_blocks": self._blocks, "_process": -1}

    def expect(self, blocks: Iterable[int]) -> None:
        """Let these be fetched, if they are not here."""
        if self._process != os.getpid():
            self._begin()
        for block in blocks:
            if block not in self._held:
                self._held[block] = Future()
                self._tasks.put((self._held[block], block))

    def take(self, block: int, rows: Sequence[int]) -> list[bytes]:
        """Some images of a block; it is dropped after as many as it has.

        Raises:
            BadShardError: the block cannot be read.
        """
        self.expect((block,))
        answer = self._held[block]
        length, count = self._blocks[block].tolist()
        if block not in self._used:
            self._used[block] = 0
            self._bytes += length
        self._used[block] += len(rows)
        self._used.move_to_end(block)
        if self._used[block] >= count:
            self._drop(block)
        while self._bytes > MOST_BYTES and len(self._used) > 1:  # a process may need a few images of many blocks
            self._drop(next(iter(self._used)))
        images = answer.result()
        return [images[row] for row in rows]

    def _drop(self, block: int) -> None:
        del self._held[block], self._used[block]
        self._bytes -= int(self._blocks[block, 0])


def _work(tasks: _Tasks, fetch: _Fetch) -> None:
    while (task := tasks.get()) is not None:
        answer, block = task
        try:
            answer.set_result(fetch(block))
        except BaseException as problem:  # it is raised where the block is waited for
            answer.set_exception(problem)


def _end(tasks: _Tasks) -> None:
    for _ in range(THREADS):
        tasks.put(None)
