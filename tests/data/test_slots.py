"""Memory that batches are handed over in."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from images import save_numbered

from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.loader import Loader, in_order
from iecl.data.slots import LENT, Slots
from iecl.data.source import ArraySource, ChosenSource, read_into


def fill(slots: Slots, value: int) -> int:
    number = slots.reserve()
    slots.room(number, 2)[...] = value
    return number


def test_what_is_taken_out_stays_as_it_is_until_nobody_holds_it() -> None:
    slots = Slots(1, (2, 5))
    held = [slots.take(fill(slots, value), 2) for value in range(20)]  # most of them are copies
    assert [int(one.unique()) for one in held] == list(range(20))
    parts = [one[1:, 2:] for one in held]
    del held
    more = [slots.take(fill(slots, value), 2) for value in range(20, 40)]
    assert [int(one.unique()) for one in parts] == list(range(20))
    assert [int(one.unique()) for one in more] == list(range(20, 40))


def test_a_batch_is_lent_and_its_slot_used_again_when_it_is_gone() -> None:
    slots = Slots(1, (2, 5))
    number = fill(slots, 7)
    taken = slots.take(number, 2)
    slots.room(number, 2)[0, 0] = 9
    assert taken[0, 0] == 9  # the same memory
    del taken
    gc.collect()
    assert slots.reserve() == number


def test_there_is_room_for_all_on_their_way_whatever_is_held() -> None:
    on_their_way, held = 5, list[torch.Tensor]()
    slots = Slots(on_their_way, (2, 5))
    waiting = [fill(slots, 0) for _ in range(on_their_way)]
    for _ in range(3 * (on_their_way + LENT)):
        held.append(slots.take(waiting.pop(0), 2))
        waiting.append(fill(slots, 0))  # an empty list would raise here
        assert len(set(waiting)) == on_their_way


@pytest.mark.parametrize("rows", [1, 2])
def test_a_last_batch_may_be_smaller(rows: int) -> None:
    slots = Slots(1, (2, 5))
    assert slots.take(fill(slots, 3), rows).shape == (rows, 5)


@pytest.fixture
def source(tmp_path: Path) -> FolderSource:
    listing = list_images(save_numbered(tmp_path, 24, bad=(3, 4, 17)))
    return FolderSource(listing, np.full(24, -1), (), side=8, max_pixels=1000)


def test_batches_from_workers_keep_their_pixels_while_others_follow(source: FolderSource) -> None:
    alone = [batch.images.clone() for batch in Loader(source, batch=2, seed=1, on_bad=ignore).epoch(0)]
    loader = Loader(source, batch=2, seed=1, workers=2, on_bad=ignore)
    for epoch in (0, 0):
        held = list(loader.epoch(epoch))
        assert all(a.equal(b.images) for a, b in zip(alone, held, strict=True))


def test_rows_that_are_left_out_by_a_worker_leave_no_gap(source: FolderSource) -> None:
    for workers in (0, 2):
        reds = [batch.images[:, 0, 0, 0].tolist() for batch in in_order(source, 5, workers, on_bad=ignore)]
        assert [red for row in reds for red in row] == [i for i in range(24) if i not in (3, 4, 17)]


def test_a_source_without_a_way_of_its_own_is_copied_from() -> None:
    three = ArraySource("three", torch.arange(3, dtype=torch.uint8).view(-1, 1, 1, 1).expand(3, 3, 8, 8))
    room = np.zeros((2, 3, 8, 8), np.uint8)
    pixels = read_into(ChosenSource(three, np.array([2, 1])), room, np.array([0, 1]))
    assert pixels.images[:, 0, 0, 0].tolist() == room[:, 0, 0, 0].tolist() == [2, 1]
    assert pixels.images.data_ptr() == room.ctypes.data


def ignore(path: str, reason: str) -> None:
    """Bad files are not what is asked here."""
