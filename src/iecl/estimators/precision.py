"""Arithmetic that a mixed-precision run must not shorten."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of tensors in float32 or better, also inside autocast.

    Under autocast a Gram matrix is computed in bf16, three digits, before any later step could be promoted: the
    region is therefore switched off and 16-bit arguments are widened. float64 stays float64.

    >>> gram = full_precision(lambda z: z.T @ z)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     gram(torch.ones(2, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        # Torch's meta device, on which operations are only counted, knows no autocast.
        with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
            widened: R = function(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})
            return widened

    return exact


def _widen(value: Any) -> Any:
    is_short = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_short else value
