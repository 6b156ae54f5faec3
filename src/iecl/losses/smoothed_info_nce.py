"""InfoNCE with part of the answer on the nearest negatives, which may be false ones (Light-MoCo, Lin et al. 2023)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.precision import full_precision

TIERS = {5: (1, 3, 5), 10: (1, 4, 10), 20: (2, 8, 20), 30: (3, 12, 30)}
"""Numbers of neighbors for which the authors' code has tiers, and the rank at which each tier ends."""

SPREADS = ("equal", "tiers", "level-tiers", "halving")


def neighbor_shares(spread: str, mass: float, neighbors: int) -> list[float]:
    """How a `mass` of the answer is spread over that many neighbors, nearest first; the shares sum to the mass.

    equal: the same for each (the authors' strategy 1; with one neighbor their 4, with the whole queue their 5).
    tiers: half of it on the first tier, a quarter on each of the others (2). level-tiers: a third on each tier (6).
    halving: each has half of the one before, and the last as much as the one before it (3).

    >>> neighbor_shares("halving", 0.4, 3)
    [0.2, 0.1, 0.1]
    """
    if spread == "equal":
        return [mass / neighbors] * neighbors
    if spread == "halving":
        return [mass / 2 ** min(rank, neighbors - 1) for rank in range(1, neighbors + 1)]
    if neighbors not in TIERS:
        known = ", ".join(map(str, TIERS))
        raise UserError(
            f"there are no tiers for {neighbors} neighbors", where="method.num_neighbors", do=f"one of: {known}"
        )
    masses = (1 / 2, 1 / 4, 1 / 4) if spread == "tiers" else (1 / 3, 1 / 3, 1 / 3)
    sizes = [after - before for before, after in pairwise((0, *TIERS[neighbors]))]
    return [mass * part / size for part, size in zip(masses, sizes, strict=True) for _ in range(size)]


@full_precision
def smoothed_info_nce(
    anchors: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "batch dim"],
    queue: Float[Tensor, "queue dim"],
    temperature: float,
    shares: Sequence[float],
) -> Float[Tensor, ""]:
    """Mean over anchors of -sum_j y_j log softmax_j over the own key and the rows of the queue.

    y puts `shares` on the nearest rows of the queue, nearest first, and what is left of 1 on the own key. Without
    shares it is `info_nce_queue`. Rows are normalized inside.

    Collapse: log(queue + 1), whatever the shares. Optimum: the entropy of y, not 0. Cost: batch queue dim.

    >>> unit = torch.eye(8)
    >>> round(smoothed_info_nce(unit[:2], unit[:2], unit[2:], 0.2, [0.1, 0.1]).item(), 6)     # 0.2 / t more than hard
    1.039632
    """
    anchors, keys = F.normalize(anchors, dim=1), F.normalize(keys, dim=1)
    right = (anchors * keys).sum(1, keepdim=True)
    wrong = anchors @ F.normalize(queue, dim=1).T
    answers = -F.log_softmax(torch.cat([right, wrong], dim=1) / temperature, dim=1)
    nearest = wrong.topk(len(shares), dim=1).indices + 1  # the own key stands before the queue
    spread = torch.tensor(shares, dtype=answers.dtype, device=answers.device)
    return ((1 - spread.sum()) * answers[:, 0] + answers.gather(1, nearest) @ spread).mean()
