"""A layer that does nothing forwards and scales the gradient backwards: two players, one objective."""

from typing import Any

import torch
from torch import Tensor


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradients[0], None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """`x` itself; the gradient on its way back is multiplied by `factor`: -1 turns it round, 0 stops it."""
    scaled: Tensor = _ScaledGradient.apply(x, factor)
    return scaled


def reverse_gradient(x: Tensor) -> Tensor:
    """`x` itself; whatever made `x` will climb the loss that others descend.

    >>> x = torch.ones(2, requires_grad=True)
    >>> reverse_gradient(x).sum().backward()
    >>> x.grad
    tensor([-1., -1.])
    """
    return scale_gradient(x, -1.0)
