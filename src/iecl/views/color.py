"""Color operations on batches of images in [0, 1], each image with a factor of its own.

They agree with torchvision's `adjust_*` functions on float images, including the clamp after each.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl.transfer import send

Images = Float[Tensor, "n 3 height width"]
Factors = Float[Tensor, " n"]


def luma(images: Images) -> Float[Tensor, "n 1 height width"]:
    """Brightness as the eye weighs the channels (ITU-R 601, in torchvision's rounding).

    >>> luma(torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1)).item()
    0.5924000...
    """
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _blend(images: Images, other: Tensor, factor: Factors) -> Images:
    """`factor` of the image and the rest of the other; beyond 1 it leads away from the other."""
    factor = factor[:, None, None, None]
    return (images * factor).add_(other * (1 - factor)).clamp_(0, 1)


def brightness(images: Images, factor: Factors) -> Images:
    """Away from black."""
    return (images * factor[:, None, None, None]).clamp_(0, 1)


def contrast(images: Images, factor: Factors) -> Images:
    """Away from the image's mean gray."""
    return _blend(images, luma(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturation(images: Images, factor: Factors) -> Images:
    """Away from each pixel's gray."""
    return _blend(images, luma(images), factor)


def hue(images: Images, turn: Factors) -> Images:
    """Turn every pixel's color by a share of the circle, at the same greatest and least channel (V and S of HSV).

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> hue(red, torch.tensor([0.5])).flatten().tolist()      # half a turn from red is cyan
    [0.0, 1.0, 1.0]
    """
    red, green, blue = images.unbind(dim=1)
    top, bottom = images.amax(dim=1), images.amin(dim=1)
    chroma = top - bottom
    lead = torch.where(top == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    lead = torch.where(top == red, green - blue, lead)
    # Where the circle is cut into six, red at 0, green at 2, blue at 4. A gray pixel has no hue: 0 / tiny puts it at 0.
    sixth = lead / chroma.clamp_min(torch.finfo(chroma.dtype).tiny) + 6 * turn[:, None, None]
    sixth -= 6 * (sixth / 6).floor()
    # A channel is at the top within one sixth of its own place, at the bottom beyond two. Red is told by its opposite.
    heights = torch.stack([(sixth - 3).abs() - 1, 2 - (sixth - 2).abs(), 2 - (sixth - 4).abs()], dim=1)
    return heights.clamp_(0, 1).mul_(chroma[:, None]).add_(bottom[:, None])


OPERATIONS: tuple[Callable[[Images, Factors], Images], ...] = (brightness, contrast, saturation, hue)
"""In the numbering of `ViewParams.order`."""


def jitter_(
    images: Images, wanted: Bool[Tensor, " n"], order: Int64[Tensor, "n 4"], factors: Float[Tensor, "n 4"]
) -> None:
    """Change the wanted images by all four operations, each image in its own order."""
    turns = torch.where(wanted[:, None], order, -1).cpu()  # most often they are there: what follows only sorts rows
    factors = send(factors, images.device)
    for turn in turns.unbind(dim=1):
        for number, operation in enumerate(OPERATIONS):
            rows = send((turn == number).nonzero().squeeze(1), images.device)
            if len(rows):
                images.index_copy_(0, rows, operation(images.index_select(0, rows), factors[rows, number]))
