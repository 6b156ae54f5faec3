"""The contrastive loss of the Viewmaker paper (Tamkin et al. 2021), in which an anchor is among its own candidates."""

import math

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def view_contrast(
    anchor: Float[Tensor, "batch dim"], query: Float[Tensor, "batch dim"], temperature: float
) -> Float[Tensor, ""]:
    """Mean over anchors of log of the mean of exp(cos / t) over all 2 batch rows, minus cos(anchor, query) / t.

    The rows are all anchors and all queries, so that the anchor itself is one of them. Only the rows of the first view
    are anchors. Rows are normalized inside; with several processes give it the gathered rows. Its values are not those
    of `nt_xent`.

    Collapse: 0. Orthonormal images: -log batch, nearly, for a small temperature. Cost: 2 batch^2 dim.

    >>> view_contrast(torch.ones(4, 8), torch.ones(4, 8), temperature=0.5).abs().item() < 1e-6
    True
    >>> round(view_contrast(torch.eye(4), torch.eye(4), temperature=0.07).item(), 6)
    -1.386292
    """
    anchor, query = F.normalize(anchor, dim=1), F.normalize(query, dim=1)
    everything = torch.cat([anchor, query])
    spread = torch.logsumexp(anchor @ everything.T / temperature, dim=1) - math.log(len(everything))
    return (spread - (anchor * query).sum(1) / temperature).mean()
