"""The order of an epoch over shards: a permutation, a function of the position alone, and friendly to readers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.data.stream_order import LANES, WINDOW, StreamOrder


def bounds_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def naive(key: int, counts: list[int], batch: int) -> list[int]:
    """The same order by plain lists, from the words of the module's docstring: one reader, then dealt out."""
    from iecl import counter

    starts, blocks = bounds_of(counts), counter.permutation(counter.key(key, "blocks"), len(counts)).tolist()
    whole: list[int] = []
    for number, first in enumerate(range(0, len(blocks), WINDOW)):
        window = [i for b in blocks[first : first + WINDOW] for i in range(starts[b], starts[b + 1])]
        order = counter.permutation(counter.key(key, "window", number), len(window)).tolist()
        whole += [window[i] for i in order]
    lanes = int(np.gcd(batch, LANES))
    steps, rows = len(whole) // batch, batch // lanes
    readers = [iter(whole[lane * steps * rows :]) for lane in range(lanes)]
    return [next(readers[row // rows]) for _ in range(steps) for row in range(batch)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 64), st.integers(0, 2**40))
def test_an_epoch_has_every_sample_once_in_the_order_that_plain_lists_give(
    counts: list[int], batch: int, key: int
) -> None:
    total = sum(counts)
    steps = total // batch
    order = StreamOrder(key, bounds_of(counts), batch)
    found = [i for step in range(steps) for i in order[step * batch : (step + 1) * batch].tolist()]
    assert found == naive(key, counts, batch)
    assert len(set(found)) == len(found) == steps * batch
    assert set(found) <= set(range(total))


def test_without_batches_all_samples_are_there() -> None:
    order = StreamOrder(3, bounds_of([3, 1, 4, 1, 5, 9, 2, 6]))
    assert sorted(order[:].tolist()) == list(range(31))
    assert order[:].tolist() != StreamOrder(4, bounds_of([3, 1, 4, 1, 5, 9, 2, 6]))[:].tolist()


@pytest.mark.parametrize("draw", range(5))
def test_processes_that_come_and_go_take_every_sample_once(draw: int) -> None:
    """At random moments everything is killed, and another number of processes goes on from the step alone."""
    drawn = np.random.default_rng(draw)
    counts, batch = drawn.integers(1, 30, 90).tolist(), 24
    steps, seen, step = sum(counts) // batch, list[int](), 0
    while step < steps:
        world = int(drawn.choice([1, 2, 3, 4, 6, 8, 12, 24]))
        until = min(steps, step + int(drawn.integers(1, 15)))
        orders = [StreamOrder(7, bounds_of(counts), batch) for _ in range(world)]  # each process has its own
        for now in range(step, until):
            for rank, order in enumerate(orders):
                start = (now * world + rank) * (batch // world)
                seen += order[start : start + batch // world].tolist()
        step = until
    undisturbed = StreamOrder(7, bounds_of(counts), batch)
    assert seen == undisturbed[: steps * batch].tolist()
    assert len(set(seen)) == steps * batch


def test_a_process_reads_the_blocks_of_its_own_rows() -> None:
    """Of 8 processes each meets about an eighth of the blocks, and not all of them."""
    counts, batch, world = [20] * 1600, 256, 8
    order, bounds = StreamOrder(1, bounds_of(counts), batch), bounds_of(counts)
    met = [set[int]() for _ in range(world)]
    for step in range(32000 // batch):
        for rank in range(world):
            start = step * batch + rank * batch // world
            met[rank] |= set((np.searchsorted(bounds, order[start : start + batch // world], "right") - 1).tolist())
    assert sum(map(len, met)) < 1.15 * len(counts)


def test_a_batch_has_images_of_many_windows_and_neighbors_are_not_neighbors() -> None:
    counts = [20] * 1600
    found = StreamOrder(1, bounds_of(counts), 256)[:256]
    assert len(set((found // 20).tolist())) > 80
    assert np.mean(np.abs(np.diff(found)) == 1) < 0.1
