"""`digits`: the 1,797 scanned digits that come with scikit-learn."""

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from iecl import counter
from iecl.data.datasets import check_split
from iecl.data.settings import DataSettings
from iecl.data.source import ArraySource, Numbers

_SEED = 2024


def open_digits(settings: DataSettings, split: str) -> ArraySource:
    """The digits as a source: 16 x 16 pixels, gray in three channels."""
    check_split("digits", split)
    from sklearn.datasets import load_digits  # half a second that other datasets need not wait for

    scans, labels = load_digits(return_X_y=True)
    labels = labels.astype(np.int64)
    chosen = is_test(labels) if split == "test" else ~is_test(labels)
    images = enlarged(torch.from_numpy(scans[chosen]).reshape(-1, 8, 8))
    return ArraySource("digits", images, labels[chosen], tuple("0123456789"))


def enlarged(scans: Float64[Tensor, "n 8 8"]) -> UInt8[Tensor, "n 3 16 16"]:
    """Scans with values from 0 to 16 at twice their size, which is as much as their eight pixels can use.

    >>> enlarged(torch.full((1, 8, 8), 16.0, dtype=torch.float64)).unique()
    tensor([255], dtype=torch.uint8)
    """
    larger = interpolate(scans[:, None], scale_factor=2, mode="bilinear")
    return (larger * 255 / 16).round().to(torch.uint8).repeat(1, 3, 1, 1)


def is_test(labels: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark a fixed random fifth, of each class the same share to within one image."""
    shuffled = counter.permutation(counter.key(_SEED, "digits split"), len(labels)).numpy()
    by_class = shuffled[labels[shuffled].argsort(kind="stable")]
    chosen = np.zeros(len(labels), bool)
    chosen[by_class[::5]] = True
    return chosen
