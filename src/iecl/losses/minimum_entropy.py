"""MinEnt's loss: move each output towards the nearest one-hot vector of the other view (Li et al. 2023)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from iecl.estimators.precision import full_precision

EPSILON = 1e-5  # batch norm's


@full_precision
def standardized(outputs: Float[Tensor, "n count"]) -> Float[Tensor, "n count"]:
    """Every column with mean 0 and variance 1 over the batch, as batch norm in training; equal columns become 0."""
    variance, mean = torch.var_mean(outputs, dim=0, correction=0)
    return (outputs - mean) / (variance + EPSILON).sqrt()


@torch.no_grad()
def nearest_one_hot(outputs: Float[Tensor, "n count"]) -> Int64[Tensor, " n"]:
    """For each row its largest entry, after every column was standardized over the batch.

    Without the standardization a column that is large for all rows would win them all. A batch of equal rows has no
    largest entry; it is answered with column 0. Several processes should standardize all their rows together.

    >>> nearest_one_hot(torch.tensor([[5.0, 1.0], [5.0, 0.0], [5.0, 0.0]])).tolist()     # column 0 is large everywhere
    [1, 0, 0]
    """
    return standardized(outputs).argmax(1)


@full_precision
def minimum_entropy(
    first: Float[Tensor, "n count"],
    second: Float[Tensor, "n count"],
    first_targets: Int64[Tensor, " n"],
    second_targets: Int64[Tensor, " n"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """Half the cross-entropy of softmax(first / t) to the targets of the second view, and half the other way round.

    The logits are the outputs themselves; only the targets (`nearest_one_hot`) come from standardized ones.

    Collapse: log(count) for flat outputs; near 0 where all rows are equal, since all then have target 0. Cost: n count.

    >>> g = 10 * torch.eye(4)
    >>> targets = nearest_one_hot(g)
    >>> round(minimum_entropy(g, g, targets, targets).item(), 6)     # log(1 + 3 e^-10)
    0.000136
    """
    forth = cross_entropy(first / temperature, second_targets)
    back = cross_entropy(second / temperature, first_targets)
    return (forth + back) / 2
