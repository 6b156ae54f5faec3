"""The order of an epoch over shards: random, and yet every process reads little more than the images it needs.

Blocks of all shards, half a megabyte each, are brought into an order that the key decides. Each `WINDOW` of them in
this order is a window, and the images of a window are shuffled. That is the order of one reader. The rows of a batch
are dealt out to `LANES` readers, which begin at evenly spaced places of that order: a batch has images of many windows,
and a process, which has some rows of every batch, reads the windows of these rows alone.

Everything follows from the key and the position: there is no state, and no process knows of another.
"""

import math
from collections import OrderedDict
from typing import Any

import numpy as np

from iecl import counter
from iecl.data.source import Numbers, Source

LANES, WINDOW = 32, 4
_KEPT = 3 * LANES


class StreamOrder:
    """The sample at each position, computed window by window.

    >>> order = StreamOrder(7, np.array([0, 2, 5, 6]))
    >>> sorted(order[0:6].tolist())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, key: int, bounds: Numbers, batch: int = 0) -> None:
        """Order the samples of an epoch.

        Args:
            key: decides.
            bounds: where each block begins among the samples, and where the last ends.
            batch: rows of a step over all processes; 0: there is one reader, and no batches.
        """
        self._key, self._bounds = key, bounds
        self._blocks = counter.permutation(counter.key(key, "blocks"), len(bounds) - 1).numpy()
        ends = np.diff(bounds)[self._blocks].cumsum()
        self._ends = np.append(ends[WINDOW - 1 :: WINDOW][: (len(ends) - 1) // WINDOW], ends[-1])
        steps = int(bounds[-1]) // batch if batch else 0
        self._rows = batch // math.gcd(batch, LANES) if batch else 1
        """Rows of a batch that one reader has."""
        self._batch, self._stretch = batch, steps * self._rows
        self._windows: OrderedDict[int, Numbers] = OrderedDict()

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, positions: slice) -> Numbers:
        """The samples at some positions; with batches, of whole steps only."""
        places = np.arange(*positions.indices(len(self)))
        if self._batch:
            step, row = np.divmod(places, self._batch)
            lane, rest = np.divmod(row, self._rows)
            places = lane * self._stretch + step * self._rows + rest
        windows = np.searchsorted(self._ends, places, side="right")
        found = np.empty(len(places), np.int64)
        for window in np.unique(windows).tolist():
            here = windows == window
            start = self._ends[window - 1] if window else 0
            found[here] = self._window(window)[places[here] - start]
        return found

    def _window(self, number: int) -> Numbers:
        """The samples of a window, shuffled; a few windows are kept, which are in use."""
        if number not in self._windows:
            blocks = self._blocks[number * WINDOW : (number + 1) * WINDOW]
            samples = np.concatenate([np.arange(self._bounds[b], self._bounds[b + 1]) for b in blocks])
            order = counter.permutation(counter.key(self._key, "window", number), len(samples)).numpy()
            self._windows[number] = samples[order]
            if len(self._windows) > _KEPT:
                self._windows.popitem(last=False)
        self._windows.move_to_end(number)
        return self._windows[number]


def order_of(source: Source, key: int, batch: int = 0) -> Any:
    """The order of an epoch, to be sliced: of all samples at once, or window by window where a source has blocks."""
    bounds = getattr(source, "bounds", None)
    if bounds is None:
        return counter.permutation(key, len(source)).numpy()
    return StreamOrder(key, bounds, batch)


def some_of(source: Source, key: int, count: int) -> Numbers:
    """Some samples that the key decides on; of a source with blocks those that lie in a few of them."""
    found: Numbers = order_of(source, key)[:count]
    return found
