"""Activations that are computed again for the backward pass instead of kept: less memory, about a third more time.

By blocks of the network (`training.gradient_checkpointing`), or by chunks of the batch (`training.grad_cache`), where
features of the whole batch are kept for the loss and activations of one chunk at a time. The second pass is the first
one again: torch's generators give the same numbers, buffers begin as they were, and what it does to them is dropped.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from iecl import parallel
from iecl.errors import UserError
from iecl.parts.spectral_norm import spectral_scales
from iecl.parts.split_norm import SplitNorm

Forward = Callable[..., Tensor]
Context = AbstractContextManager[None]
Buffers = dict[str, Tensor | None]
State = tuple[list[Buffers], list[int], list[Tensor | None]]
"""Buffers, groups of norms, and kernels that are made already."""


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
        block.forward = partial(_forgotten, block, block.forward)
    return len(blocks)


def blocks_in_rows(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost rows of a network: a ResNet's blocks, a transformer's layers."""
    for child in module.children():
        if isinstance(child, nn.Sequential):
            yield from (block for block in child.children() if any(True for _ in block.children()))
        else:
            yield from blocks_in_rows(child)


def _forgotten(module: nn.Module, forward: Forward, *inputs: Any, **named: Any) -> Tensor:
    return _computed_again(forward, (nullcontext(), _Surroundings(module)), *inputs, **named)


def _computed_again(forward: Forward, contexts: tuple[Context, Context], *inputs: Any, **named: Any) -> Tensor:
    """A pass in the first of the contexts, taken again in the second one whenever its gradients are asked for."""
    made: Tensor = checkpoint(forward, *inputs, use_reentrant=False, context_fn=lambda: contexts, **named)
    return made


def cache_gradients(encoder: nn.Module, chunk: int) -> None:
    """Let an encoder in training take at most `chunk` images at a time, whose activations alone are in memory.

    Whoever calls it gets the features of all images, and the gradients of their loss are those of the whole batch, as
    far as images do not meet in the encoder. Batch norm sees a chunk; its running statistics move once for each call,
    to the mean of the chunks. Norms in groups (`SplitNorm`) keep their groups, so that nothing changes.
    """
    encoder.forward = partial(_in_chunks, encoder, encoder.forward, chunk)
    encoder.__dict__["takes_chunks"] = True  # MoCo's keys then need other images around them than their anchors have


def sees_chunks(encoder: nn.Module) -> bool:
    """Whether there is a batch norm in it, whose statistics are then those of a chunk."""
    return any(isinstance(part, _BatchNorm) and not isinstance(part, SplitNorm) for part in encoder.modules())


def _in_chunks(encoder: nn.Module, forward: Forward, chunk: int, x: Tensor) -> Tensor:
    if not encoder.training:
        return forward(x)
    count = -(-len(x) // chunk)
    few, more = divmod(len(x), count)
    sizes = [few + 1] * more + [few] * (count - more)  # as equal as can be: a batch norm of one image means nothing
    around = _Surroundings(encoder, count)
    made, moved = [], list[list[Buffers]]()
    for part in torch.split(x, sizes):  # not by slices, each of which has a gradient as large as all of x
        with around:
            made.append(_computed_again(forward, (nullcontext(), around), part))
            moved.append([dict(table) for table in around.tables])
    _move(around.tables, moved)
    return torch.cat(made)


@torch.no_grad()
def _move(tables: list[Buffers], moved: list[list[Buffers]]) -> None:
    """Move buffers once, to the mean of what became of their copies."""
    for own, *others in zip(tables, *moved, strict=True):
        for name, buffer in own.items():
            if buffer is not None:
                parts = torch.stack([other[name] for other in others])
                buffer.copy_(parts.mean(0) if buffer.is_floating_point() else parts[-1])


class _Surroundings:
    """What a pass through a module reads besides its weights and its input, as it is now.

    As a context, any number of times: the module as it was, with copies of its buffers, which a pass may move.
    """

    def __init__(self, module: nn.Module, chunks: int = 1) -> None:
        """Of norms in groups, one of so many chunks of a batch has its share."""
        parts = list(module.modules())
        self.tables = [part._buffers for part in parts]
        self.norms = [part for part in parts if isinstance(part, SplitNorm)]
        self.scales = [scale for scale, _ in spectral_scales(module)]
        buffers, groups, kernels = self._now()
        self.past = [_copies(table) for table in buffers], [count // chunks for count in groups], kernels
        if any(count % (chunks * parallel.world()) for count in groups):
            raise UserError(
                f"{groups[0]} groups of a batch cannot be shared by {chunks} chunks",
                where="method.norm_groups, training.grad_cache",
                do="let a chunk hold one group or several whole ones",
            )

    def __enter__(self) -> None:
        buffers, groups, kernels = self.past
        self.later = self._now()
        self._set([_copies(table) for table in buffers], groups, kernels)

    def __exit__(self, *_: object) -> None:
        self._set(*self.later)

    def _now(self) -> State:
        return (
            [dict(table) for table in self.tables],
            [norm.groups for norm in self.norms],
            [scale.made for scale in self.scales],
        )

    def _set(self, buffers: list[Buffers], groups: list[int], kernels: list[Tensor | None]) -> None:
        for table, others in zip(self.tables, buffers, strict=True):
            table.update(others)
        for norm, count in zip(self.norms, groups, strict=True):
            norm.groups = count
        for scale, made in zip(self.scales, kernels, strict=True):
            scale.made = made


def _copies(buffers: Buffers) -> Buffers:
    return {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}
