"""Intersection over union: by hand, and by counting pixel after pixel."""

import numpy as np
import pytest
import torch

from iecl.evaluation.segmentation import pixel_loss
from iecl.evaluation.voc.iou import Union, confusion, union_of


def test_the_matrix_has_truth_in_rows_and_leaves_ignored_pixels_out() -> None:
    truth = torch.tensor([0, 0, 1, 2, 255, 255])
    predicted = torch.tensor([0, 2, 1, 1, 0, 2])
    assert confusion(predicted, truth, 3).tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 0]]


def test_shares_of_a_case_worked_out_by_hand() -> None:
    # Class 0: 3 hits, 1 lost, 1 wrongly taken: 3/5. Class 1: 2 hits, 1 lost, 1 taken: 2/4. 5 of 7 are right.
    result = union_of(torch.tensor([[3, 1], [1, 2]]))
    assert result.by_class == {0: pytest.approx(3 / 5), 1: pytest.approx(2 / 4)}
    assert result.mean == pytest.approx((3 / 5 + 2 / 4) / 2)
    assert result.pixel_accuracy == pytest.approx(5 / 7)


def test_a_class_that_is_nowhere_is_left_out_and_one_that_is_only_predicted_counts_as_zero() -> None:
    matrix = torch.tensor([[3, 0, 1], [0, 0, 0], [0, 0, 0]])
    assert union_of(matrix) == Union({0: 0.75, 2: 0.0}, pixel_accuracy=0.75)


def test_images_share_one_matrix_and_are_not_averaged() -> None:
    large = confusion(torch.ones(90, dtype=torch.int64), torch.ones(90, dtype=torch.int64), 2)
    small = confusion(torch.zeros(10, dtype=torch.int64), torch.ones(10, dtype=torch.int64), 2)
    assert union_of(large + small).by_class[1] == 0.9  # the mean over images would be 0.5


@pytest.mark.parametrize("seed", range(4))
def test_random_masks_have_the_shares_of_a_count_by_pixels(seed: int) -> None:
    made = np.random.default_rng(seed)
    truth = made.choice([0, 1, 2, 3, 4, 255], 300)
    predicted = np.where(made.random(300) < 0.6, np.where(truth == 255, 1, truth), made.integers(0, 6, 300))
    result = union_of(confusion(torch.from_numpy(predicted), torch.from_numpy(truth), 6))
    pairs = [(int(t), int(p)) for t, p in zip(truth, predicted, strict=True) if t != 255]
    for label in range(6):
        both = sum(t == label and p == label for t, p in pairs)
        either = sum(label in (t, p) for t, p in pairs)
        assert result.by_class[label] == pytest.approx(both / either)
    assert result.pixel_accuracy == pytest.approx(sum(t == p for t, p in pairs) / len(pairs))


def test_ignored_pixels_have_no_part_in_the_loss() -> None:
    scores = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    masks = torch.randint(3, (2, 4, 4), generator=torch.Generator().manual_seed(1))
    masks[:, :2] = 255
    loss = pixel_loss(scores, masks)
    loss.backward()
    rows = -scores.log_softmax(dim=1)[:, :, 2:].gather(1, masks[:, None, 2:])
    assert loss.item() == pytest.approx(rows.mean().item(), abs=1e-6)
    assert scores.grad is not None
    assert not scores.grad[:, :, :2].any()
    assert pixel_loss(scores, torch.full_like(masks, 255)).item() == 0
