"""VICReg's two guards against collapse: features that vary, and vary apart (Bardes et al. 2022)."""

from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def variance_hinge(z: Float[Tensor, "batch dim"], eps: float = 1e-4) -> Float[Tensor, ""]:
    """Mean over features of max(0, 1 - sqrt(variance + `eps`)), with the unbiased variance over the batch.

    `eps` keeps the gradient of the root finite at collapse. One row has no variance: NaN.

    Collapse: 1 - sqrt(eps), 0.99 by default. Deviations of 1 and more cost nothing. Cost: batch dim.

    >>> import torch
    >>> round(variance_hinge(torch.ones(4, 8)).item(), 6)
    0.99
    """
    return (1 - (z.var(0) + eps).sqrt()).clamp_min(0).mean()


@full_precision
def covariance_penalty(z: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Sum of the squared covariances of different features, divided by their number.

    Covariances are over the batch, dim x dim, and divided by batch - 1: with several processes give it the gathered
    rows, so that this is the whole batch.

    Collapse: 0, which is why it needs `variance_hinge` beside it. All features equal, with std 1: dim - 1.
    Cost: batch dim^2.

    >>> import torch
    >>> column = torch.tensor([1.0, -1, 1, -1])[:, None]
    >>> round(covariance_penalty(column.repeat(1, 3) * 0.75**0.5).item(), 6)
    2.0
    """
    centered = z - z.mean(0)
    covariance = centered.T @ centered / (len(z) - 1)
    return (covariance - covariance.diagonal().diag()).square().sum() / z.shape[1]
