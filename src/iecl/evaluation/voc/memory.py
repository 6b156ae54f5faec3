"""Is there memory for a batch? Told before the first step: a system without memory ends a program without a word."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from iecl.errors import UserError
from iecl.training.machine import free_memory

_BYTES = 4  # of a 32-bit number
Run = Callable[[Any, Tensor], Any]
"""Sends images through those parts of a network that see whole maps."""


def kept_bytes(network: nn.Module, run: Run, size: tuple[int, int]) -> int:
    """What the backward pass of one image waits for, at least: the outputs of convolutions and norms.

    Nothing is computed; torch follows the shapes alone.
    """
    total = 0

    def count(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += output.numel() * _BYTES

    shapes = deepcopy(network).to("meta").eval()
    for part in shapes.modules():
        if isinstance(part, nn.Conv2d | nn.BatchNorm2d):
            part.register_forward_hook(count)
    with torch.no_grad():
        run(shapes, torch.empty(1, 3, *size, device="meta"))
    return total


def check_room(
    network: nn.Module, run: Run, batch: int, size: tuple[int, int], device: torch.device, name: str
) -> None:
    """Refuse a batch that cannot fit into memory.

    Args:
        network: a detector or segmenter.
        run: sends images through it.
        batch: images in a step.
        size: height and width of the largest of them.
        device: where they are trained on.
        name: the backbone's.

    Raises:
        UserError: the maps alone take more than is free.
    """
    needed, free = batch * kept_bytes(network, run, size) / 2**20, free_memory(device)
    if free and needed > free:
        raise UserError(
            f"{batch} images of {size[0]}×{size[1]} through {name} need more than {needed / 1024:.0f} GB of memory, "
            f"{free / 1024:.0f} GB are free",
            where="batch",
            do="lower it with --set batch_size=..., or take smaller images; a backbone with a stem for small images "
            "keeps maps of full size",
        )
