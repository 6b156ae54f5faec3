"""Splits: decided by names alone, nested, and always the same."""

from pathlib import Path

import numpy as np
import pytest
import torch

from iecl import counter
from iecl.data.folder import FolderSource
from iecl.data.labels import class_folders, numbered
from iecl.data.listing import list_images
from iecl.data.memory_cache import load_into_memory
from iecl.evaluation.splits import (
    RULE,
    Budget,
    fingerprint,
    hashes_of,
    labeled_part,
    names_of,
    split_for_validation,
)

LABELS = torch.tensor([0] * 200 + [1] * 30 + [2] * 3 + [4])
HASHES = hashes_of(f"class/{number}.png" for number in range(len(LABELS)))


def sizes(rows: torch.Tensor) -> list[int]:
    return LABELS[rows].bincount(minlength=5).tolist()


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(shots=1), [1, 1, 1, 0, 1]),
        (Budget(shots=5), [5, 5, 3, 0, 1]),
        (Budget(share=0.01), [2, 1, 1, 0, 1]),
        (Budget(share=0.1), [20, 3, 1, 0, 1]),
        (Budget(share=1.0), [200, 30, 3, 0, 1]),
    ],
)
def test_every_class_gives_what_was_asked_for_or_what_it_has(budget: Budget, expected: list[int]) -> None:
    assert sizes(labeled_part(LABELS, HASHES, budget, seed=0)) == expected


def test_classes_that_are_too_small_are_counted() -> None:
    counts = LABELS.bincount()
    assert Budget(shots=5).misfits(counts) == 2  # three images and one
    assert Budget(share=0.01).misfits(counts) == 3  # 0.3, 0.03 and 0.01 of an image
    assert Budget(shots=1).misfits(counts) == Budget(share=1.0).misfits(counts) == 0


@pytest.mark.parametrize(
    ("small", "large"),
    [(Budget(shots=1), Budget(shots=5)), (Budget(share=0.01), Budget(share=0.1)), (Budget(shots=1), Budget(share=0.5))],
)
def test_a_greater_budget_holds_the_smaller_one(small: Budget, large: Budget) -> None:
    few, many = (set(labeled_part(LABELS, HASHES, budget, seed=3).tolist()) for budget in (small, large))
    assert few < many


def test_seeds_and_tries_draw_other_images_and_the_same_ones_again() -> None:
    budget = Budget(shots=5)
    first, again = (labeled_part(LABELS, HASHES, budget, seed=0, attempt=1).tolist() for _ in range(2))
    assert first == again
    assert first != labeled_part(LABELS, HASHES, budget, seed=1, attempt=1).tolist()
    assert first != labeled_part(LABELS, HASHES, budget, seed=0, attempt=2).tolist()


def test_draws_are_even() -> None:
    drawn = torch.cat([labeled_part(LABELS, HASHES, Budget(shots=3), seed) for seed in range(300)])
    counts = drawn.bincount()[200:230]  # the class of thirty: three of thirty in 300 draws are 30 for each
    # Four deviations of a binomial of 300 at 0.1 are 21.
    assert int(counts.min()) > 9
    assert int(counts.max()) < 51


def test_a_draw_never_changes() -> None:
    # Written down once: numbers that others have measured with must stay.
    assert labeled_part(LABELS, HASHES, Budget(shots=2), seed=0).tolist() == [9, 194, 218, 224, 231, 232, 233]
    assert split_for_validation(LABELS[200:], HASHES[200:])[1].tolist() == [6, 10, 24, 31]


def test_a_tenth_of_each_class_is_held_out_and_none_of_a_class_of_one() -> None:
    fit, rest = split_for_validation(LABELS, HASHES)
    assert sizes(rest) == [20, 3, 1, 0, 0]
    assert sorted([*fit.tolist(), *rest.tolist()]) == list(range(len(LABELS)))


def test_another_order_of_the_images_changes_no_choice() -> None:
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(0))
    here = labeled_part(LABELS, HASHES, Budget(shots=5), seed=0)
    there = order[labeled_part(LABELS[order], HASHES[order], Budget(shots=5), seed=0)]
    assert sorted(there.tolist()) == here.tolist()


def test_names_do_not_depend_on_where_the_folder_is_nor_on_what_is_unreadable(images: Path) -> None:
    listing = list_images(images)
    labels = numbered(listing, class_folders(listing, "folders"))
    source = FolderSource(listing, labels, ("blue", "green", "red"), side=16, max_pixels=10**6)
    kept, _ = load_into_memory(source, workers=0)
    assert names_of(source, torch.tensor([0, 21])) == ["blue/0.png", "red/0.png"]
    assert names_of(kept, torch.tensor([0, 20])) == ["blue/0.png", "red/0.png"]  # the broken one is gone
    assert np.array_equal(hashes_of(["blue/0.png"]), hashes_of(names_of(kept, torch.tensor([0]))))


def test_a_fingerprint_is_of_the_names_and_not_of_their_order() -> None:
    assert fingerprint(["a", "b"]) == fingerprint(["b", "a"]) != fingerprint(["a", "c"])


def test_the_published_rule_names_the_key_that_is_hashed() -> None:
    assert "counter.key(0, 'picture NAME')" in RULE
    assert hashes_of(["cat/1.png"]).tolist() == [counter.key(0, "picture cat/1.png")]
