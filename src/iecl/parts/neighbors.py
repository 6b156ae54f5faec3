"""Look up the stored rows that are nearest to new ones."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from iecl.estimators.precision import full_precision


@torch.no_grad()
@full_precision
def nearest_rows(
    z: Float[Tensor, "n dim"], rows: Float[Tensor, "stored dim"], count: int = 1
) -> Float[Tensor, "n count dim"]:
    """The `count` rows with the greatest cosine to each z, nearest first. A look-up: no gradient passes.

    >>> nearest_rows(torch.tensor([[2.0, 1.0]]), torch.eye(2), count=2)
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    cosines = normalize(z, dim=1) @ normalize(rows, dim=1).T
    return rows[cosines.topk(count, dim=1).indices]
