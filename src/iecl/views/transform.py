"""Drawn parameters applied to a whole batch: uint8 images in, normalized float views out, on the images' device."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from iecl.transfer import send
from iecl.views import color, native, operators
from iecl.views.params import ViewParams
from iecl.views.resampling import blur_matrix, cut_matrix, resample

BRIGHT = 128 / 255
"""Solarization inverts tones from here on."""


def apply(
    images: UInt8[Tensor, "n 3 height width"],
    draws: ViewParams,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    layout: torch.memory_format = torch.contiguous_format,
) -> Float[Tensor, "n 3 size size"]:
    """Cut, resize and mirror each image, change its colors, blur and solarize it, apply `OPERATORS`, normalize.

    Images may have been squeezed to a square: the box of a draw is in shares of the image, so
    that the view has the aspect of the original. On a CPU `native` does it, where numba can be imported; the result is
    the same up to rounding. `layout` is the order of the result in memory.

    >>> from iecl.views.params import whole
    >>> white = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    >>> view = apply(white, whole(torch.tensor([[4, 4]])), size=1, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    >>> view.flatten().round(decimals=4)      # (1 - 0.5) / 0.25
    tensor([2., 2., 2.])
    """
    is_native = images.device.type == "cpu" and images.numel() > 0 and images.shape[1] == 3
    make = native.kernel() if is_native else None
    if make is None:
        return apply_by_tensors(images, draws, size, mean, std).contiguous(memory_format=layout)
    if not draws.operators:
        return native.apply_natively(make, images, draws, size, mean, std, layout)
    return _finish(native.apply_natively(make, images, draws, size, (0.0,) * 3, (1.0,) * 3, layout), draws, mean, std)


def apply_by_tensors(
    images: UInt8[Tensor, "n 3 height width"], draws: ViewParams, size: int, mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "n 3 size size"]:
    """`apply` by tensor operations, on any device: the reference for the native path.

    Draws are best left in the process's own memory: it then knows which rows each operation takes, and need not wait
    for a GPU to tell it.
    """
    views = _cut(images, draws, size)
    factors = torch.stack([draws.brightness, draws.contrast, draws.saturation, draws.hue], dim=1)
    color.jitter_(views, draws.jitter, draws.order, factors)
    _make_gray_(views, draws.gray)
    _blur_(views, draws.blur_sigma)
    _solarize_(views, draws.solarize)
    return _finish(views, draws, mean, std)


def _finish(
    views: Float[Tensor, "n 3 size size"], draws: ViewParams, mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "n 3 size size"]:
    offset, scale = (send(torch.tensor(values), views.device)[:, None, None] for values in (mean, std))
    operators.change_(views, draws.operators, offset)
    return views.sub_(offset).div_(scale)


def _cut(images: UInt8[Tensor, "n 3 height width"], draws: ViewParams, size: int) -> Float[Tensor, "n 3 size size"]:
    """Crop, antialiased resize and mirror image as one product from either side, which also brings 255 down to 1."""
    top, left, height, width = send(draws.box, images.device).unbind(dim=1)
    down = cut_matrix(top, height, images.shape[2], size)
    across = cut_matrix(left, width, images.shape[3], size, mirrored=send(draws.flip, images.device))
    return resample(images, down, across / 255)


def _make_gray_(views: Float[Tensor, "n 3 size size"], wanted: Bool[Tensor, " n"]) -> None:
    rows = send(wanted.nonzero().squeeze(1), views.device)
    if len(rows):
        views.index_copy_(0, rows, color.luma(views.index_select(0, rows)).expand(-1, 3, -1, -1))


def _blur_(views: Float[Tensor, "n 3 size size"], sigma: Float[Tensor, " n"]) -> None:
    chosen = sigma.nonzero().squeeze(1)
    if len(chosen):
        rows, matrix = send(chosen, views.device), blur_matrix(send(sigma[chosen], views.device), views.shape[2])
        views.index_copy_(0, rows, resample(views.index_select(0, rows), matrix, matrix))


def _solarize_(views: Float[Tensor, "n 3 size size"], wanted: Bool[Tensor, " n"]) -> None:
    rows = send(wanted.nonzero().squeeze(1), views.device)
    if len(rows):
        chosen = views.index_select(0, rows)
        views.index_copy_(0, rows, torch.where(chosen >= BRIGHT, 1 - chosen, chosen))
