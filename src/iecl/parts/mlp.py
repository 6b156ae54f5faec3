"""One multi-layer perceptron for every projector and predictor."""

from itertools import pairwise

from torch import nn


def mlp(
    width: int,
    hidden: int,
    out: int,
    *,
    layers: int = 2,
    norm: bool = True,
    last_norm: bool = False,
    last_affine: bool = False,
    gelu: bool = False,
) -> nn.Sequential:
    """Linear layers with batch norm (if `norm`) and ReLU between them.

    `last_norm` ends with a batch norm, without scale and shift unless `last_affine`. `gelu` takes GELU for ReLU.

    >>> [type(layer).__name__ for layer in mlp(8, 16, 4)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    parts: list[nn.Module] = []
    widths = [width, *[hidden] * (layers - 1), out]
    for number, (narrow, wide) in enumerate(pairwise(widths), start=1):
        is_last = number == layers
        has_norm = last_norm if is_last else norm
        parts.append(nn.Linear(narrow, wide, bias=not has_norm))  # a bias before a batch norm would be subtracted again
        if has_norm:
            parts.append(nn.BatchNorm1d(wide, affine=last_affine or not is_last))
        if not is_last:
            parts.append(nn.GELU() if gelu else nn.ReLU(inplace=True))
    return nn.Sequential(*parts)
