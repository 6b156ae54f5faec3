"""Activations that are computed again for the backward pass instead of kept: less memory, about a third more time."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from iecl.errors import UserError


def recompute_blocks(backbone: nn.Module, name: str) -> int:
    """Let every block of a backbone forget what is within it until the backward pass; returns how many there are.

    Losses, gradients, names of weights and running statistics are what they would be without.

    Raises:
        UserError: the backbone is not made of blocks in a row.
    """
    blocks = list(blocks_in_rows(backbone))
    if not blocks:
        raise UserError(
            f"{name} is not made of blocks in a row: nothing can be computed again",
            where="training.gradient_checkpointing",
        )
    for block in blocks:
        # On the object and not around it: a wrapper would change the names of its weights.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=partial(_contexts, block))
    return len(blocks)


def blocks_in_rows(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost rows of a network: a ResNet's blocks, a transformer's layers."""
    for child in module.children():
        if isinstance(child, nn.Sequential):
            yield from (block for block in child.children() if any(True for _ in block.children()))
        else:
            yield from blocks_in_rows(child)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """What surrounds the first pass through a block, and the second."""
    return nullcontext(), _without_counting(block)


@contextmanager
def _without_counting(block: nn.Module) -> Iterator[None]:
    """Batch norm uses the statistics of the batch again, but does not take them into its running ones twice."""
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, count) in zip(norms, before, strict=True):
        norm.momentum = 0.0
        norm.num_batches_tracked = None if count is None else count.clone()
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
