"""A network that changes images within a budget, each time in another way (Viewmaker, Tamkin et al. 2021).

It works on images on the scale 0 to 1, of any height and width from 5 pixels on.
"""

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor, nn

from iecl import counter
from iecl.counter import Stream
from iecl.errors import UserError

LEAST_SIDE = 5
"""The first kernel looks four pixels past the border, into the mirrored image."""


class ViewMaker(nn.Module):
    """Down by four, residual blocks, up again; the change has a fixed mean size.

    A plane of noise enters beside the image, and another in each block.

    >>> maker = ViewMaker(budget=0.05, width=4)
    >>> change = maker(torch.rand(2, 3, 9, 12), Stream(1, torch.arange(2)))
    >>> change.shape, [round(size, 3) for size in change.abs().mean(dim=(1, 2, 3)).tolist()]
    (torch.Size([2, 3, 9, 12]), [0.05, 0.05])
    """

    def __init__(self, *, budget: float, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.budget = budget
        self.inward = nn.Sequential(_layer(3 + 1, width, 9))
        self.down = nn.ModuleList([_layer(width, 2 * width, 3, stride=2), _layer(2 * width, 4 * width, 3, stride=2)])
        self.blocks = nn.ModuleList(_Residual(4 * width + number) for number in range(1, blocks + 1))
        self.up = nn.ModuleList([_layer(4 * width + blocks, 2 * width, 3), _layer(2 * width, width, 3)])
        self.outward = nn.Conv2d(width, 3, 9, padding=4, padding_mode="reflect")

    def forward(self, images: Float[Tensor, "n 3 h w"], stream: Stream) -> Float[Tensor, "n 3 h w"]:
        """The change for each image: its mean absolute value over pixels and colors is the budget."""
        if min(images.shape[2:]) < LEAST_SIDE:
            height, width = images.shape[2:]
            raise UserError(f"a view maker needs images of at least 5×5 pixels, these are {height}×{width}")
        planes = len(self.blocks)  # the number of the one at the input, after those of the blocks
        x, sides = self.inward(torch.cat([images, _noise(images, stream, planes)], dim=1)), []
        for layer in self.down:
            sides.append(x.shape[2:])
            x = layer(x)
        for number, block in enumerate(self.blocks):
            x = block(torch.cat([x, _noise(x, stream, number)], dim=1))
        for layer, side in zip(self.up, reversed(sides), strict=True):  # the recorded side: odd ones come back too
            x = layer(F.interpolate(x, size=side, mode="nearest"))
        return _to_budget(torch.tanh(self.outward(x).float()), self.budget)


def _layer(narrow: int, wide: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(narrow, wide, kernel, stride, padding=kernel // 2, padding_mode="reflect", bias=False)
    return nn.Sequential(convolution, nn.InstanceNorm2d(wide, affine=True), nn.ReLU(inplace=True))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        last = nn.Conv2d(channels, channels, 3, padding=1, padding_mode="reflect", bias=False)
        self.stack = nn.Sequential(_layer(channels, channels, 3), last, nn.InstanceNorm2d(channels, affine=True))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        made: Tensor = x + self.stack(x)
        return made


def _noise(x: Float[Tensor, "n c h w"], stream: Stream, number: int) -> Float[Tensor, "n 1 h w"]:
    """One plane of uniform noise for each image, drawn for its place in the epoch."""
    key = counter.key(stream.key, "view maker", number)
    return counter.uniform(key, stream.positions, x.shape[2] * x.shape[3]).reshape(-1, 1, *x.shape[2:]).to(x)


def _to_budget(change: Float[Tensor, "n 3 h w"], budget: float) -> Float[Tensor, "n 3 h w"]:
    """Scale to a mean absolute value of `budget` in each image; single pixels may move by more."""
    size = change.abs().mean(dim=(1, 2, 3), keepdim=True)
    return change * budget / (size + 1e-4)
