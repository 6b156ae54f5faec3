"""Coding rate: a bounded stand-in for the entropy of rows on a sphere (Ma et al. 2007)."""

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_rows


@full_precision
def coding_rate(z: Float[Tensor, "batch dim"], epsilon_squared: float = 0.25) -> Float[Tensor, ""]:
    """Nats needed to code a row of `z` up to a mean squared error of `epsilon_squared`.

    R = 1/2 log det(I + dim / (batch epsilon^2) z^T z), not centered.

    Scale: 0 at z = 0, grows like dim log c once c z is large; give it normalized rows, or it is maximized by growing
    them. Unit rows: at most min(batch, dim)/2 log(1 + dim / (min(batch, dim) epsilon^2)).
    Bias: none as a bound on code length; as an entropy it is too large by what epsilon adds.
    Cost: batch dim min(batch, dim) for the Gram matrix of the smaller side, and that side cubed.
    Collapse: finite; the gradient then only stretches the common direction, it does not separate equal rows.

    >>> round(coding_rate(torch.eye(4), epsilon_squared=0.5).item(), 6)     # 2 log 3
    2.197225
    >>> round(coding_rate(torch.eye(4)[[0, 0, 0, 0]], epsilon_squared=0.5).item(), 6)     # 1/2 log 9
    1.098612
    """
    check_rows(z, "the coding rate")
    batch, dim = z.shape
    # det(I + A^T A) = det(I + A A^T): the smaller side gives the same number for less work.
    gram = z.T @ z if dim <= batch else z @ z.T
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    log_det: Tensor = torch.linalg.slogdet(identity + dim / (batch * epsilon_squared) * gram).logabsdet
    return log_det / 2
