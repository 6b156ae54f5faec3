"""A layer that does nothing forwards and turns the gradient round backwards: two players, one objective."""

from typing import Any

import torch
from torch import Tensor


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def reverse_gradient(x: Tensor) -> Tensor:
    """`x` itself; whatever made `x` will climb the loss that others descend.

    >>> x = torch.ones(2, requires_grad=True)
    >>> reverse_gradient(x).sum().backward()
    >>> x.grad
    tensor([-1., -1.])
    """
    reversed_: Tensor = _Reverse.apply(x)
    return reversed_
