"""The native path of `apply`: compiled loops instead of tensor operations, on a CPU where numba can be imported."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from iecl.views.draw import Draws

log = logging.getLogger("iecl.views")
Kernel = Callable[..., None]
SHARES = 4
"""Parts of a batch for each thread, so that one with many blurred pictures does not keep the others waiting."""


@cache
def kernel() -> Kernel | None:
    """The compiled loops, or None where they cannot be had; compiled once for an installation, which takes seconds."""
    try:
        from iecl.views import kernels
    except ImportError as error:
        log.warning("views are made by torch, several times slower than by numba, which cannot be imported: %s", error)
        return None
    if kernels.switched_off():
        return None
    try:
        return kernels.compiled(keep=True)
    except Exception as error:  # no folder that may be written, no room, a spoilt file: whatever a disk can do
        log.warning("compiled views cannot be kept, so every process compiles them for some seconds: %s", error)
        return kernels.compiled(keep=False)


def apply_natively(
    make: Kernel,
    images: UInt8[Tensor, "n 3 height width"],
    draws: Draws,
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
        flags=torch.stack([draws.flip, draws.jitter, draws.grey, draws.solarise], dim=1).numpy(),
        order=draws.order.contiguous().numpy(),
        factors=torch.stack([draws.brightness, draws.contrast, draws.saturation, draws.hue], dim=1).float().numpy(),
        sigma=draws.blur_sigma.float().contiguous().numpy(),
        mean=np.asarray(mean, np.float32),
        std=np.asarray(std, np.float32),
        size=size,
        by_pixel=by_pixel,
        out=(views.permute(0, 2, 3, 1) if by_pixel else views).view(-1).numpy(),
    )
    _share_out(work, count, torch.get_num_threads())
    return views


def _share_out(work: Kernel, count: int, threads: int) -> None:
    """Call `work` on ranges that make up all rows; this thread works too."""
    step = -(-count // (threads * SHARES)) if threads > 1 else count
    ranges = iter([(begin, min(begin + step, count)) for begin in range(0, count, step)])
    others = [_helpers(threads - 1).submit(_take, work, ranges) for _ in range(threads - 1)]
    _take(work, ranges)
    for other in others:
        other.result()


def _take(work: Kernel, ranges: Iterator[tuple[int, int]]) -> None:
    for begin, end in ranges:  # threads take from the same iterator, each the next range
        work(begin, end)


@lru_cache(maxsize=1)
def _helpers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="iecl-views")


if hasattr(os, "register_at_fork"):  # a forked process has the memory of its parent and none of its threads
    os.register_at_fork(after_in_child=_helpers.cache_clear)
