"""From an example of VOC to what a network sees: scaled, mirrored, cut, of another contrast, boxes and masks alike.

Every draw follows from seed, epoch and position, and an image is scaled in one way (bilinear, antialiased) wherever it
is scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import interpolate, pad

from iecl import counter
from iecl.data.voc import IGNORED, Boxes, Example
from iecl.views import color


@dataclass(frozen=True)
class Boxed:
    """An image in [0, 1] with boxes in its own pixels."""

    image: Float[Tensor, "3 height width"]
    boxes: Float[Tensor, "n 4"]
    labels: Tensor


def draws(seed: int, epoch: int, position: int, columns: int) -> list[float]:
    """Uniform numbers for one place in one epoch."""
    drawn = counter.uniform(counter.key(seed, "voc/views", epoch), torch.tensor([position]), columns)
    return [float(value) for value in drawn[0]]


def load_image(example: Example) -> Float[Tensor, "3 height width"]:
    """The pixels in [0, 1]."""
    return torch.from_numpy(example.pixels()).float().div_(255)


def scaled(image: Float[Tensor, "3 h w"], size: tuple[int, int]) -> Float[Tensor, "3 height width"]:
    """The image at another size."""
    if image.shape[1:] == size:
        return image
    return interpolate(image[None], size=size, mode="bilinear", antialias=True, align_corners=False)[0].clamp_(0, 1)


def size_for_short(size: tuple[int, int], short: int, longest: int) -> tuple[int, int]:
    """Height and width with this shorter side, or less so that the longer one stays within its limit.

    >>> size_for_short((300, 400), short=600, longest=1000), size_for_short((300, 400), short=600, longest=400)
    ((600, 800), (300, 400))
    """
    share = min(short / min(size), longest / max(size))
    return max(1, round(size[0] * share)), max(1, round(size[1] * share))


def size_for_long(size: tuple[int, int], long: int, times: float = 1.0) -> tuple[int, int]:
    """Height and width with this longer side, times a factor; 0 is the side that the image has.

    >>> size_for_long((300, 400), 200), size_for_long((300, 400), 0, times=0.5)
    ((150, 200), (150, 200))
    """
    share = times * (long / max(size) if long else 1)
    return max(1, round(size[0] * share)), max(1, round(size[1] * share))


# --- boxes


def boxed(example: Example, short: int, longest: int, *, mirrored: bool, with_difficult: bool) -> Boxed:
    """An image of a training batch, with its boxes."""
    assert example.boxes is not None
    size = size_for_short(example.size, short, longest)
    image = scaled(load_image(example), size)
    boxes, labels = _moved(example.boxes, example.size, size, mirrored, with_difficult)
    return Boxed(image.flip(2) if mirrored else image, boxes, labels)


def _moved(
    boxes: Boxes, old: tuple[int, int], new: tuple[int, int], mirrored: bool, with_difficult: bool
) -> tuple[Tensor, Tensor]:
    kept = torch.from_numpy(boxes.difficult).logical_not() | with_difficult
    corners = torch.from_numpy(boxes.corners)[kept] * _factors(old, new)
    if mirrored:
        corners = torch.stack([new[1] - corners[:, 2], corners[:, 1], new[1] - corners[:, 0], corners[:, 3]], dim=1)
    return corners, torch.from_numpy(boxes.labels)[kept]


def moved_back(corners: Float[Tensor, "n 4"], seen: tuple[int, int], size: tuple[int, int]) -> Float[Tensor, "n 4"]:
    """Boxes in the pixels of the image as it is stored."""
    return corners * _factors(seen, size)


def _factors(old: tuple[int, int], new: tuple[int, int]) -> Float[Tensor, " 4"]:
    down, across = new[0] / old[0], new[1] / old[1]
    return torch.tensor([across, down, across, down])


# --- masks


@dataclass(frozen=True)
class Cut:
    """What is drawn for a crop; each in [0, 1)."""

    scale: float
    top: float
    left: float
    contrast: float
    mirror: float


@dataclass(frozen=True)
class CropRules:
    """What a crop may be."""

    side: int
    long: int
    scale: tuple[float, float]
    contrast: float
    mirror: bool


def crop(
    example: Example, cut: Cut, rules: CropRules, mean: Sequence[float], std: Sequence[float]
) -> tuple[Float[Tensor, "3 side side"], UInt8[Tensor, "side side"]]:
    """A normalized crop and its mask. What lies outside the image has its mean color and is ignored."""
    low, high = rules.scale
    size = size_for_long(example.size, rules.long, low + (high - low) * cut.scale)
    image, mask = scaled(load_image(example), size), resized_mask(torch.from_numpy(example.numbers()), size)
    factor = torch.tensor([1 + rules.contrast * (2 * cut.contrast - 1)])
    image = normalized(color.contrast(image[None], factor)[0], mean, std)
    missing = [max(0, rules.side - have) for have in size]
    image = pad(image, (0, missing[1], 0, missing[0]))
    mask = pad(mask, (0, missing[1], 0, missing[0]), value=IGNORED)
    top, left = (int(share * (n - rules.side + 1)) for share, n in zip((cut.top, cut.left), mask.shape, strict=True))
    window = (..., slice(top, top + rules.side), slice(left, left + rules.side))
    image, mask = image[window], mask[window]
    return (image.flip(-1), mask.flip(-1)) if rules.mirror and cut.mirror < 0.5 else (image, mask)


def resized_mask(mask: UInt8[Tensor, "h w"], size: tuple[int, int]) -> UInt8[Tensor, "height width"]:
    """The mask at another size; numbers of classes are never mixed."""
    if mask.shape == size:
        return mask
    return interpolate(mask[None, None], size=size, mode="nearest-exact")[0, 0]


def normalized(image: Float[Tensor, "*n 3 h w"], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Channels with the mean and standard deviation that the backbone was pretrained with taken out."""
    offset, scale = (torch.tensor(values, device=image.device)[:, None, None] for values in (mean, std))
    return (image - offset) / scale
