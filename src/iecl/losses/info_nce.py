"""InfoNCE: tell the key of an anchor from all other keys (van den Oord et al. 2018)."""

import math

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float, Int64
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def info_nce(
    anchors: Float[Tensor, "anchor dim"],
    keys: Float[Tensor, "key dim"],
    temperature: float,
    negatives: Float[Tensor, "negative dim"] | None = None,
    first: int = 0,
    *,
    decoupled: bool = False,
    partners: Int64[Tensor, " anchor"] | None = None,
    shares: Float[Tensor, " anchor"] | None = None,
) -> Float[Tensor, ""]:
    """Mean over anchors i of -log softmax(a_i.k / t) at the key of i; the other keys of the batch are its negatives.

    Rows are normalized inside. The key of anchor i is row `first` + i: keys may come from all processes in rank order
    while the anchors are those of one. `negatives`, rows of a queue, are further wrong answers. `decoupled` leaves
    right answers out of the denominator (DCL, Yeh et al. 2022). An anchor that shows a mixture of two images has two
    right answers: its own key with weight `shares`, that of the anchor in row `partners` with the rest (i-Mix, Lee et
    al. 2021).

    Collapse: log(keys + negatives), whatever the temperature. A single key without negatives gives 0 and no signal.
    Cost: anchors (keys + negatives) dim.

    >>> round(info_nce(torch.eye(4), torch.eye(4), temperature=0.2).item(), 6)     # log(1 + 3 e^-5)
    0.020012
    >>> round(info_nce(torch.ones(4, 8), torch.ones(4, 8), temperature=0.2).item(), 6)     # log 4
    1.386294
    """
    candidates = keys if negatives is None else torch.cat([keys, negatives])
    logits = F.normalize(anchors, dim=1) @ F.normalize(candidates, dim=1).T / temperature
    own = torch.arange(first, first + len(anchors), device=anchors.device)
    if partners is None or shares is None:
        return _decoupled(logits, own[:, None]).mean() if decoupled else F.cross_entropy(logits, own)
    answers = torch.stack([own, first + partners], dim=1)
    weights = torch.stack([shares, 1 - shares], dim=1)
    right = (weights * logits.gather(1, answers)).sum(1)
    return (_spread(logits, answers if decoupled else answers[:, :0]) - right).mean()


def _decoupled(
    logits: Float[Tensor, "anchor candidate"], answers: Int64[Tensor, "anchor one"]
) -> Float[Tensor, " anchor"]:
    return _spread(logits, answers) - logits.gather(1, answers).squeeze(1)


def _spread(
    logits: Float[Tensor, "anchor candidate"], left_out: Int64[Tensor, "anchor some"]
) -> Float[Tensor, " anchor"]:
    """The logarithm of the denominator, without some of the candidates."""
    return logits.scatter(1, left_out, -math.inf).logsumexp(1)


@full_precision
def info_nce_queue(
    anchors: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "batch dim"],
    queue: Float[Tensor, "queue dim"],
    temperature: float,
    *,
    decoupled: bool = False,
) -> Float[Tensor, ""]:
    """Mean over anchors of -log softmax over the own key and the rows of the queue (MoCo, He et al. 2020, equation 1).

    Unlike `info_nce` the other keys of the batch are no negatives. Rows are normalized inside; the queue enters as
    it is now and may be overwritten afterwards. `decoupled`: as there.

    Collapse: log(queue + 1). Cost: batch queue dim.

    >>> unit = torch.eye(8)
    >>> round(info_nce_queue(unit[:2], unit[:2], unit[2:], temperature=0.2).item(), 6)     # log(1 + 6 e^-5)
    0.039632
    """
    anchors, keys = F.normalize(anchors, dim=1), F.normalize(keys, dim=1)
    right = (anchors * keys).sum(1, keepdim=True)
    # normalize makes new rows, so that writing into the queue before backward does no harm.
    wrong = anchors @ F.normalize(queue, dim=1).T
    logits = torch.cat([right, wrong], dim=1) / temperature
    answers = torch.zeros(len(anchors), dtype=torch.long, device=anchors.device)
    return _decoupled(logits, answers[:, None]).mean() if decoupled else F.cross_entropy(logits, answers)
