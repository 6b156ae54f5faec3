"""Average precision as PASCAL VOC computes it, in both its forms, and as COCO does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl.errors import lacking

THRESHOLDS = tuple(round(0.5 + 0.05 * number, 2) for number in range(10))
"""Overlaps over which COCO takes its mean: 0.5, 0.55, ..., 0.95."""


@dataclass(frozen=True)
class Found:
    """What a detector says of one image."""

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]
    labels: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Truth:
    """What is in one image."""

    boxes: Float[Tensor, "m 4"]
    labels: Int64[Tensor, " m"]
    difficult: Bool[Tensor, " m"]


@dataclass(frozen=True)
class Ranking:
    """The detections of one class in all images by falling score, without those of difficult objects."""

    hits: list[bool]
    """Whether each is the first to find an object."""
    objects: int
    """How many objects there are to find."""


def overlaps(some: Float[Tensor, "n 4"], others: Float[Tensor, "m 4"]) -> Float[Tensor, "n m"]:
    """Intersection over union of boxes given as left, top, right, bottom; where both are empty it is 0.

    >>> overlaps(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 0, 3, 2], [5, 5, 6, 6]]))
    tensor([[0.3333, 0.0000]])
    """
    inner = torch.minimum(some[:, None, 2:], others[None, :, 2:]) - torch.maximum(
        some[:, None, :2], others[None, :, :2]
    )
    shared = inner.clamp_min(0).prod(dim=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp_min(0).prod(dim=1) for boxes in (some, others)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return torch.where(union > 0, shared / union.clamp_min(torch.finfo(union.dtype).tiny), 0)


def ranking(found: Sequence[Found], truth: Sequence[Truth], label: int, threshold: float) -> Ranking:
    """Which detections of a class are hits.

    The rules are those of VOC's development kit. Detections are taken by falling score; of equal scores the one of the
    earlier image goes first. Each looks at the object of its class with which it overlaps most. With an overlap of
    at least the threshold it is a hit if nobody found that object before, and a miss if somebody did; if the object is
    difficult, the detection does not count at all. With less overlap it is a miss.
    """
    rows: list[tuple[float, int, bool | None]] = []
    objects = 0
    for one, there in zip(found, truth, strict=True):
        mine = there.labels == label
        difficult = there.difficult[mine]
        objects += int((~difficult).sum())
        chosen = (one.labels == label).nonzero().squeeze(1)
        chosen = chosen[one.scores[chosen].argsort(descending=True, stable=True)]
        shares = overlaps(one.boxes[chosen].double(), there.boxes[mine].double())
        # An object belongs to one image, so that the order within an image decides who came first.
        rows += _judged(one.scores[chosen].tolist(), shares, difficult.tolist(), threshold)
    rows.sort(key=lambda row: -row[0])  # stable
    return Ranking([bool(is_hit) for _, _, is_hit in rows if is_hit is not None], objects)


def _judged(
    scores: list[float], shares: Float[Tensor, "n m"], difficult: list[bool], threshold: float
) -> list[tuple[float, int, bool | None]]:
    """Score, nearest object, and hit, miss or None for each detection of one image."""
    made: list[tuple[float, int, bool | None]] = []
    taken = set()
    for score, row in zip(scores, shares, strict=True):
        share, nearest = (row.max(0).values.item(), int(row.argmax())) if len(row) else (0.0, -1)
        if share < threshold or nearest < 0:
            made.append((score, nearest, False))
        elif difficult[nearest]:
            made.append((score, nearest, None))
        else:
            made.append((score, nearest, nearest not in taken))
            taken.add(nearest)
    return made


def eleven_points(ranked: Ranking) -> float:
    """VOC 2007: the mean over recalls 0, 0.1, ..., 1 of the best precision at that recall or a higher one.

    >>> eleven_points(Ranking([True, False, True], objects=4))      # 1 up to recall 1/4, 2/3 up to 1/2
    0.4545...
    """
    hits = _running(ranked.hits)
    best = [0.0] * 11
    for number, hit in enumerate(hits, start=1):
        # In whole numbers: 3 of 10 must reach the recall 3/10, which 0.1 * 3 in floating point does not.
        for tenth in range(11):
            if 10 * hit >= tenth * ranked.objects:
                best[tenth] = max(best[tenth], hit / number)
    return sum(best) / 11


def area(ranked: Ranking) -> float:
    """VOC 2010 and later: the area under precision as a function of recall, precision made to fall.

    >>> area(Ranking([True, False, True], objects=4))       # 1/4 at 1, 1/4 at 2/3
    0.41666...
    """
    hits = _running(ranked.hits)
    best, total = 0.0, 0.0
    for number in range(len(hits), 0, -1):
        best = max(best, hits[number - 1] / number)
        total += best * ranked.hits[number - 1]
    return total / ranked.objects


def _running(hits: list[bool]) -> list[int]:
    """How many hits there are up to each place."""
    made, count = [], 0
    for hit in hits:
        count += hit
        made.append(count)
    return made


@dataclass(frozen=True)
class VocPrecision:
    """Average precision at one overlap, by class number; classes without an object to find are left out."""

    eleven_points: dict[int, float]
    area: dict[int, float]


def voc_precision(found: Sequence[Found], truth: Sequence[Truth], classes: int, threshold: float) -> VocPrecision:
    """Average precision of each class 1, ..., classes in both forms of VOC."""
    ranked = {label: ranking(found, truth, label, threshold) for label in range(1, classes + 1)}
    asked = {label: one for label, one in ranked.items() if one.objects}
    return VocPrecision(
        {label: eleven_points(one) for label, one in asked.items()}, {label: area(one) for label, one in asked.items()}
    )


def mean(values: dict[int, float]) -> float:
    """The mean over the classes."""
    return sum(values.values()) / len(values)


def coco_precision(found: Sequence[Found], truth: Sequence[Truth]) -> dict[str, float]:
    """COCO's average precision over all overlaps, at 0.5 and at 0.75, by torchmetrics and pycocotools.

    COCO knows no difficult objects; they are handed over as crowds, which it does not count either.
    """
    metric = coco_metric()
    said = [{"boxes": one.boxes, "scores": one.scores, "labels": one.labels} for one in found]
    there = [{"boxes": one.boxes, "labels": one.labels, "iscrowd": one.difficult.long()} for one in truth]
    metric.update(said, there)
    computed = metric.compute()
    return {ours: float(computed[theirs]) for ours, theirs in (("ap", "map"), ("ap50", "map_50"), ("ap75", "map_75"))}


def coco_metric() -> Any:
    """The metric of torchmetrics, or word that the extra is missing: asked for before the training, not after it."""
    try:
        import pycocotools  # type: ignore[import-untyped]  # noqa: F401
        from torchmetrics.detection import MeanAveragePrecision
    except ImportError as problem:
        package = str(problem.name).partition(".")[0]
        raise lacking("detection", package, extra="detection", where="iecl evaluate detection") from problem
    # COCO's own numbers, bit for bit: those of torchmetrics have 32 bits, and an exact recall may fall short of them.
    return MeanAveragePrecision(
        box_format="xyxy",
        iou_type="bbox",
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
        backend="pycocotools",
    )
