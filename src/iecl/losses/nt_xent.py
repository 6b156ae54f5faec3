"""NT-Xent: InfoNCE in which every view of the batch is an anchor (SimCLR, Chen et al. 2020, Algorithm 1)."""

import math

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def nt_xent(
    anchor: Float[Tensor, "batch dim"],
    query: Float[Tensor, "batch dim"],
    temperature: float,
    *,
    decoupled: bool = False,
) -> Float[Tensor, ""]:
    """Mean over all 2 batch views of -log softmax at the other view of the same image, among the 2 batch - 1 others.

    Rows are normalized inside. With several processes give it the gathered views, each gathered on its own, so that
    row i of both is the same image. Symmetric in its two arguments. `decoupled` leaves the right answer out of the
    denominator (DCL, Yeh et al. 2022).

    Collapse: log(2 batch - 1), whatever the temperature. One image gives 0 and no signal. Cost: (2 batch)^2 dim.

    >>> round(nt_xent(torch.eye(4), torch.eye(4), temperature=0.5).item(), 6)     # log(1 + 6 e^-2)
    0.594438
    >>> round(nt_xent(torch.ones(4, 8), torch.ones(4, 8), temperature=0.5).item(), 6)     # log 7
    1.94591
    """
    batch = len(anchor)
    z = F.normalize(torch.cat([anchor, query]), dim=1)
    itself = torch.eye(2 * batch, dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(itself, -math.inf)
    other_view = torch.arange(2 * batch, device=z.device).roll(batch)
    if not decoupled:
        return F.cross_entropy(logits, other_view)
    wrong = logits.scatter(1, other_view[:, None], -math.inf).logsumexp(1)
    return (wrong - logits.gather(1, other_view[:, None]).squeeze(1)).mean()
