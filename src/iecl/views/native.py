"""The native path of `apply`: compiled loops instead of tensor operations, on a CPU where numba can be imported."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from iecl.compiled import Loops, loops, share_out
from iecl.views.params import ViewParams


def kernel() -> Loops | None:
    """The compiled loops, or None where they cannot be had."""
    return loops("iecl.views.kernels", "views are made")


def apply_natively(
    make: Loops,
    images: UInt8[Tensor, "n 3 height width"],
    draws: ViewParams,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    layout: torch.memory_format,
) -> Float[Tensor, "n 3 size size"]:
    """What `apply` does, with as many threads as torch uses; every view is the same bit for bit with any number."""
    count, _, height, width = images.shape
    views = torch.empty(count, 3, size, size, memory_format=layout)
    by_pixel = layout == torch.channels_last
    work = partial(
        make,
        height=height,
        width=width,
        images=images.contiguous().view(-1).numpy(),
        box=draws.box.float().contiguous().numpy(),
        flags=torch.stack([draws.flip, draws.jitter, draws.gray, draws.solarize], dim=1).numpy(),
        order=draws.order.contiguous().numpy(),
        factors=torch.stack([draws.brightness, draws.contrast, draws.saturation, draws.hue], dim=1).float().numpy(),
        sigma=draws.blur_sigma.float().contiguous().numpy(),
        mean=np.asarray(mean, np.float32),
        std=np.asarray(std, np.float32),
        size=size,
        by_pixel=by_pixel,
        out=(views.permute(0, 2, 3, 1) if by_pixel else views).view(-1).numpy(),
    )
    share_out(work, count, torch.get_num_threads())
    return views
