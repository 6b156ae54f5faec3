"""Linear operations on the rows and columns of a batch of images, each image with matrices of its own."""

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor


def resample(
    images: Shaped[Tensor, "n 3 height width"],
    down: Float[Tensor, "n top height"],
    across: Float[Tensor, "n side width"],
) -> Float[Tensor, "n 3 top side"]:
    """Multiply every column by `down` and every row by `across`: two batched products."""
    narrowed = images.to(across.dtype).flatten(1, 2) @ across.mT
    return down[:, None] @ narrowed.view(*images.shape[:3], across.shape[1])


def cut_matrix(
    start: Float[Tensor, " n"],
    length: Float[Tensor, " n"],
    pixels: int,
    size: int,
    mirrored: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n size pixels"]:
    """Weights that cut a part out of a line of `pixels` and interpolate it to `size` samples; each row sums to 1.

    Start and length are shares of the line. The filter is a triangle, one pixel to either side, or one sample when the
    part shrinks, so that fine detail is averaged and not skipped. A pixel counts by how much of it the part covers:
    none from outside the part leaks in, and a part need not begin on a pixel's edge.

    >>> cut_matrix(torch.tensor([0.5]), torch.tensor([0.5]), pixels=4, size=1)      # the mean of the second half
    tensor([[[0.0000, 0.0000, 0.5000, 0.5000]]])
    """
    first, last = (share[:, None, None] * pixels for share in (start, start + length))
    step = (last - first) / size
    sample = (torch.arange(size, device=start.device) + 0.5).expand(len(start), size)
    if mirrored is not None:
        sample = torch.where(mirrored[:, None], size - sample, sample)
    pixel = torch.arange(pixels, device=start.device)
    distance = (pixel + 0.5 - (first + step * sample[:, :, None])).abs()
    covered = (torch.minimum(pixel + 1, last) - torch.maximum(pixel, first)).clamp(0, 1)
    weights = (1 - distance / step.clamp_min(1)).clamp_min(0) * covered
    return weights / weights.sum(dim=2, keepdim=True)


def blur_matrix(sigma: Float[Tensor, " n"], size: int) -> Float[Tensor, "n size size"]:
    """Weights of a Gaussian blur along a line; the line goes on beyond its ends as its mirror image.

    The kernel spans about a tenth of the line, as SimCLR's does (23 of 224 pixels), and three pixels at least.
    """
    radius = min(max(1, size // 20), size - 1)
    offset = torch.arange(-radius, radius + 1, device=sigma.device)
    kernel = torch.softmax(-((offset / sigma[:, None]) ** 2) / 2, dim=1)
    source = _mirrored(torch.arange(size, device=sigma.device)[:, None] + offset, size)
    matrix = kernel.new_zeros(len(sigma), size, size)
    return matrix.scatter_add_(2, source.expand(len(sigma), -1, -1), kernel[:, None].expand(-1, size, -1))


def _mirrored(index: Int64[Tensor, "size taps"], size: int) -> Int64[Tensor, "size taps"]:
    """Places beyond either end brought back inside; the end itself is not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()
