"""The parameters of a view, one row for each image: pure functions of seed, epoch, view and position."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl.counter import key, uniform
from iecl.views.operators import Policy, draw_operators

ATTEMPTS = 10
"""Crops tried before the center is taken, as in torchvision's RandomResizedCrop."""


@dataclass(frozen=True)
class ViewParams:
    """What happens to each image, in the order of the fields."""

    box: Float[Tensor, "n 4"]
    """Top, left, height and width of the crop as shares of the image."""
    flip: Bool[Tensor, " n"]
    jitter: Bool[Tensor, " n"]
    """Whether the next five count."""
    brightness: Float[Tensor, " n"]
    contrast: Float[Tensor, " n"]
    saturation: Float[Tensor, " n"]
    hue: Float[Tensor, " n"]
    """Share of the color circle to turn by."""
    order: Int64[Tensor, "n 4"]
    """Brightness, contrast, saturation and hue, numbered 0 to 3, in the order in which they are applied."""
    gray: Bool[Tensor, " n"]
    blur_sigma: Float[Tensor, " n"]
    """Standard deviation of the blur in pixels of the view, 0 for none."""
    solarize: Bool[Tensor, " n"]
    operators: Mapping[str, Float[Tensor, "n amounts"]] = field(default_factory=dict)
    """Of those in `OPERATORS` that may happen: whether they do, then how much."""

    def take(self, rows: Tensor | list[int]) -> "ViewParams":
        """The parameters of some of the images."""
        plain = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "operators"}
        return ViewParams(**plain, operators={name: drawn[rows] for name, drawn in self.operators.items()})

    def row(self, number: int) -> dict[str, Any]:
        """Those of one image as plain values; of the operators those that happen to it."""
        plain = {f.name: getattr(self, f.name)[number].tolist() for f in fields(self) if f.name != "operators"}
        happened = {name: drawn[number].tolist() for name, drawn in self.operators.items() if drawn[number, 0]}
        return plain | {name: amounts for name, (_, *amounts) in happened.items()}


def draw(
    policy: Policy, sizes: Int64[Tensor, "n 2"], positions: Int64[Tensor, " n"], *, seed: int, epoch: int, view: int
) -> ViewParams:
    """Draw one view of each image; `sizes` are the heights and widths of the originals.

    A row depends on its own size and position and on nothing else in the batch:

    >>> sizes, positions = torch.tensor([[32, 32], [300, 400]]), torch.tensor([5, 6])
    >>> both = draw(Policy(), sizes, positions, seed=0, epoch=3, view=1)
    >>> alone = draw(Policy(), sizes[1:], positions[1:], seed=0, epoch=3, view=1)
    >>> bool((both.box[1] == alone.box[0]).all())
    True
    """

    def numbers(purpose: str, columns: int) -> Float[Tensor, "n columns"]:
        return uniform(key(seed, f"view/{purpose}", epoch, view), positions, columns)

    # Numbers are below 1, so that a chance of 1 is certain and one of 0 is never.
    chances = torch.tensor(
        [
            policy.hflip_prob,
            policy.color_jitter_prob,
            policy.grayscale_prob,
            policy.gaussian_blur_prob,
            policy.solarize_prob,
        ]
    )
    flip, jitter, gray, blur, solarize = (numbers("chance", 5) < chances.to(positions.device)).unbind(dim=1)
    brightness, contrast, saturation, hue, sigma = numbers("amount", 5).unbind(dim=1)
    return ViewParams(
        box=_whole_box(sizes) if policy.scale[0] == 1 else _crop_box(policy, sizes, numbers("crop", 2 * ATTEMPTS + 2)),
        flip=flip,
        jitter=jitter,
        brightness=_factor(policy.brightness, brightness),
        contrast=_factor(policy.contrast, contrast),
        saturation=_factor(policy.saturation, saturation),
        hue=_between(-policy.hue, policy.hue, hue),
        order=numbers("order", 4).argsort(dim=1, stable=True),
        gray=gray,
        blur_sigma=torch.where(blur, _between(*policy.sigma, sigma), 0.0),
        solarize=solarize,
        operators=draw_operators(policy, numbers),
    )


def _factor(strength: float, number: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return _between(max(0.0, 1 - strength), 1 + strength, number)


def _between(low: float, high: float, number: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return low + (high - low) * number


def _crop_box(policy: Policy, sizes: Int64[Tensor, "n 2"], numbers: Float[Tensor, "n columns"]) -> Float[Tensor, "n 4"]:
    """The first attempt that fits into the image, at a place drawn evenly, in whole pixels of the original.

    Uniform in area and in the logarithm of the ratio. Only the accepted attempt needs a place, so there is one of it.
    """
    areas, ratios, places = numbers.split([ATTEMPTS, ATTEMPTS, 2], dim=1)  # type: ignore[no-untyped-call]
    size = sizes.float()
    area = _between(*policy.scale, areas) * size.prod(dim=1, keepdim=True)
    least, greatest = (math.log(ratio) for ratio in policy.ratio)
    ratio = _between(least, greatest, ratios).exp()
    attempts = torch.stack([(area / ratio).sqrt().round(), (area * ratio).sqrt().round()], dim=2)
    fits = ((attempts >= 1) & (attempts <= size[:, None])).all(dim=2)
    first = fits.int().argmax(dim=1)  # the first of equal greatest values
    accepted = attempts[torch.arange(len(sizes), device=sizes.device), first]
    found = fits.any(dim=1, keepdim=True)
    extent = torch.where(found, accepted, _widest(size, *policy.ratio))
    room = size - extent
    corner = torch.where(found, (places * (room + 1)).floor(), (room / 2).floor())
    return torch.cat([corner / size, extent / size], dim=1)


def _widest(size: Float[Tensor, "n 2"], least: float, greatest: float) -> Float[Tensor, "n 2"]:
    """The largest extent whose width / height lies between the two, a pixel at least."""
    height, width = size.unbind(dim=1)
    extent = torch.stack([(width / least).round(), (height * greatest).round()], dim=1)
    return torch.minimum(size, extent).clamp_min(1)


def _whole_box(sizes: Int64[Tensor, "n 2"]) -> Float[Tensor, "n 4"]:
    return torch.tensor([0.0, 0.0, 1.0, 1.0], device=sizes.device).repeat(len(sizes), 1)


def _cut_only(box: Float[Tensor, "n 4"]) -> ViewParams:
    never = torch.zeros(len(box), dtype=torch.bool, device=box.device)
    ones, zeros = torch.ones_like(box[:, 0]), torch.zeros_like(box[:, 0])
    return ViewParams(
        box=box,
        flip=never,
        jitter=never,
        brightness=ones,
        contrast=ones,
        saturation=ones,
        hue=zeros,
        order=torch.arange(4, device=box.device).repeat(len(box), 1),
        gray=never,
        blur_sigma=zeros,
        solarize=never,
    )


def whole(sizes: Int64[Tensor, "n 2"]) -> ViewParams:
    """The image as it is, squeezed into a square when it is none."""
    return _cut_only(_whole_box(sizes))


def center(sizes: Int64[Tensor, "n 2"], share: float = 0.875) -> ViewParams:
    """A square in the middle whose side is `share` of the image's shorter side: nothing is distorted.

    >>> center(torch.tensor([[100, 200]]), share=0.5).box.tolist()      # 50 by 50 of 100 by 200
    [[0.25, 0.375, 0.5, 0.25]]
    """
    size = sizes.float()
    extent = share * size.amin(dim=1, keepdim=True) / size
    return _cut_only(torch.cat([(1 - extent) / 2, extent], dim=1))
