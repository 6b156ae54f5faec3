import numpy as np
import pytest
import torch

from iecl.data.datasets import FACTS
from iecl.data.digits import enlarged, is_test, open_digits
from iecl.data.settings import DataSettings


def test_four_fifths_are_for_training() -> None:
    assert [len(open_digits(DataSettings(), split)) for split in ("train", "pretrain", "test")] == [1437, 1437, 360]


def test_each_class_gives_a_fifth_to_the_test_part() -> None:
    train, test = (np.bincount(open_digits(DataSettings(), split).labels) for split in ("train", "test"))
    assert (np.abs(test - (train + test) / 5) < 1).all()


def test_the_split_is_random_within_a_class_and_always_the_same() -> None:
    chosen = is_test(np.zeros(1000, np.int64))
    assert (chosen == is_test(np.zeros(1000, np.int64))).all()
    # A fifth of the 500 in each half is 100; drawn without replacement the count has a deviation of 6.3.
    assert abs(chosen[:500].sum() - 100) < 32
    assert len(np.unique(np.diff(np.nonzero(chosen)[0]))) > 5


def test_enlarging_spreads_a_pixel_in_quarters() -> None:
    scan = torch.zeros(1, 8, 8, dtype=torch.float64)
    scan[0, 3, 4] = 16
    # Along each axis a pixel gives 3/4 to the two pixels in its place and 1/4 to the two beside them.
    weights = torch.zeros(16, 2, dtype=torch.float64)
    weights[5:9, 0] = weights[7:11, 1] = torch.tensor([1, 3, 3, 1]) / 4
    expected = (255 * weights[:, 0].outer(weights[:, 1])).round().to(torch.uint8)
    assert torch.equal(enlarged(scan), expected.expand(1, 3, 16, 16))


def test_the_nearest_training_scan_tells_the_digit() -> None:
    train, test = open_digits(DataSettings(), "train"), open_digits(DataSettings(), "test")
    distance = torch.cdist(test.images.flatten(1).float(), train.images.flatten(1).float())
    told = train.labels[distance.argmin(dim=1).numpy()]
    assert (told == test.labels).mean() > 0.95  # labels that belong to other images would give 0.1


def test_the_constants_are_those_of_the_training_scans() -> None:
    images = open_digits(DataSettings(), "train").images.double() / 255
    assert images.mean(dim=(0, 2, 3)).tolist() == pytest.approx(FACTS["digits"].mean, abs=5e-5)
    assert images.std(dim=(0, 2, 3)).tolist() == pytest.approx(FACTS["digits"].std, abs=5e-5)
