"""Intersection over union of classes of pixels, from one confusion matrix over all images."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from iecl.data.voc import IGNORED


def confusion(
    predicted: Int64[Tensor, " pixels"], truth: Int64[Tensor, " pixels"], classes: int
) -> Int64[Tensor, "classes classes"]:
    """How many pixels of each class (row) were taken for each class (column); ignored ones are left out.

    >>> confusion(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 255]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    counted = truth != IGNORED
    pairs = truth[counted] * classes + predicted[counted]
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


@dataclass(frozen=True)
class Union:
    """What a confusion matrix says."""

    by_class: dict[int, float]
    """Intersection over union; a class that is neither there nor predicted anywhere is left out."""
    pixel_accuracy: float

    @property
    def mean(self) -> float:
        """The mean over the classes, background among them."""
        return sum(self.by_class.values()) / len(self.by_class)


def union_of(matrix: Int64[Tensor, "classes classes"]) -> Union:
    """Shares from counts.

    >>> union_of(torch.tensor([[1, 1], [0, 1]]))
    Union(by_class={0: 0.5, 1: 0.5}, pixel_accuracy=0.666...)
    """
    hits, unions = matrix.diag(), matrix.sum(dim=0) + matrix.sum(dim=1) - matrix.diag()
    shares = {label: int(hits[label]) / total for label, total in enumerate(unions.tolist()) if total}
    return Union(shares, int(hits.sum()) / max(1, int(matrix.sum())))
