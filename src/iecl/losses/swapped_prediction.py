"""SwAV's loss: predict from one view the balanced cluster assignment of another (Caron et al. 2020)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import log_softmax

from iecl.estimators.precision import full_precision


@torch.no_grad()
@full_precision
def sinkhorn(scores: Float[Tensor, "n count"], epsilon: float, iterations: int) -> Float[Tensor, "n count"]:
    """Soft assignments of rows to prototypes that use all prototypes about equally; each row sums to 1.

    Sinkhorn-Knopp on exp(scores / epsilon): prototypes and rows are scaled in turn to equal sums, rows last. After a
    few iterations the prototypes' shares are near n / count and not equal to it. With several processes give it the
    scores of all. Done with logarithms, since exp(1 / 0.05) does not fit into 16 bits. Cost: iterations n count.

    >>> sinkhorn(torch.eye(2) * 9, epsilon=0.05, iterations=3)
    tensor([[1., 0.],
            [0., 1.]])
    >>> sinkhorn(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), epsilon=0.05, iterations=3)     # both rows like the first best
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    log_shares = scores / epsilon
    for _ in range(iterations):
        log_shares = log_shares - log_shares.logsumexp(0, keepdim=True)
        log_shares = log_shares - log_shares.logsumexp(1, keepdim=True)
    return log_shares.exp()


@full_precision
def swapped_prediction(
    scores: Float[Tensor, "views n count"], codes: Float[Tensor, "coded n count"], temperature: float
) -> Float[Tensor, ""]:
    """Mean over coded views c and all views v other than c of the cross-entropy of softmax(scores_v / t) to codes_c.

    `codes` belong to the first views, in order, and carry no gradient.

    Collapse: log(count), when no score tells prototypes apart. Cost: coded views n count.

    >>> flat = torch.zeros(2, 4, 5)
    >>> round(swapped_prediction(flat, flat.softmax(2), temperature=0.1).item(), 6)     # log 5
    1.609438
    """
    log_guesses = log_softmax(scores / temperature, dim=2)
    terms = [
        -(codes[code].detach() * log_guesses[view]).sum(1).mean()
        for code in range(len(codes))
        for view in range(len(scores))
        if view != code
    ]
    return torch.stack(terms).mean()
