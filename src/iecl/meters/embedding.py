"""Readings of features and projections: is the run learning, or is it collapsing? No gradient, no state."""

import math

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float, Int
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators import coding_rate as rate
from iecl.estimators import spectrum, sphere
from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_rows

MOST_ROWS = 1024
"""`read_embedding` looks at no more rows than this: the readings are steady by then and cost grows with its square."""


@torch.no_grad()
@full_precision
def effective_rank(features: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Over how many directions images differ, from 1 to min(batch - 1, dim).

    exp of the entropy of the spectrum of the normalized rows around their mean: features after a ReLU share a large
    common part that says nothing about differences. Rows that differ by less than about a thousandth count as equal,
    or a collapsed encoder's rounding would pass for a full spectrum.

    >>> round(effective_rank(torch.eye(4)).item(), 4), round(effective_rank(torch.ones(4, 4)).item(), 4)
    (3.0, 1.0)
    """
    check_rows(features, "the effective rank")
    unit = F.normalize(features, dim=1)
    return spectrum.effective_rank(unit - unit.mean(0), least_norm=1e-3 * math.sqrt(len(unit)))


@torch.no_grad()
@full_precision
def feature_std(features: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Mean standard deviation of a column of the normalized rows, times sqrt(dim): 1 isotropic, 0 collapsed.

    It misses a collapse to a few clusters or directions, which `effective_rank` sees.

    >>> corners = torch.tensor([[1., 1], [1, -1], [-1, 1], [-1, -1]])
    >>> round(feature_std(corners).item(), 4), feature_std(torch.ones(4, 2)).item()
    (1.0, 0.0)
    """
    check_rows(features, "the feature std")
    unit = F.normalize(features, dim=1)
    return unit.std(0, correction=0).mean() * math.sqrt(features.shape[1])


@torch.no_grad()
@full_precision
def alignment(anchor: Float[Tensor, "batch dim"], query: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Mean squared distance of the two views of an image on the unit sphere: 0 the same, 2 unrelated, 4 opposite.

    >>> alignment(torch.eye(2), torch.eye(2).flip(0)).item()
    2.0
    """
    return (F.normalize(anchor, dim=1) - F.normalize(query, dim=1)).square().sum(1).mean()


@torch.no_grad()
def uniformity(projections: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Log mean potential of different rows on the unit sphere, sharpness 2: 0 all equal, about -4 spread evenly.

    >>> round(uniformity(torch.eye(4)).item(), 4)
    -4.0
    """
    return sphere.uniformity(projections)


@torch.no_grad()
@full_precision
def entropy(projections: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Coding rate of the normalized rows in nats; depends on batch and width, so compare it within one run.

    >>> round(entropy(3 * torch.eye(4)).item(), 4)     # 2 log(1 + 4)
    3.2189
    """
    return rate.coding_rate(F.normalize(projections, dim=1))


@torch.no_grad()
@full_precision
def neighbor_accuracy(
    features: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    k: int = 20,
    temperature: float = 0.07,
    chunk: int = 1024,
) -> Float[Tensor, ""]:
    """Share of rows whose nearest other rows vote for their label, from 0 to 1.

    The `k` rows of largest cosine vote with weight exp(cosine / temperature); a row never votes for itself.
    Rows without a label (-1) neither vote nor count. `chunk` rows are compared at a time: memory, not the result.

    >>> z = torch.tensor([[1., 0.1], [1, 0], [0, 1], [0.1, 1]])
    >>> neighbor_accuracy(z, torch.tensor([0, 0, 1, 0]), k=1).item()     # the last two vote for each other
    0.5

    Raises:
        UserError: unless there are more labeled rows than neighbors.
    """
    labeled = labels >= 0
    unit, labels = F.normalize(features[labeled], dim=1), labels[labeled].long()
    if len(unit) <= k:
        raise UserError(
            f"{k} neighbors need at least {k + 1} labeled images, there are {len(unit)}",
            where="neighbor accuracy",
            do="use fewer neighbors or more images",
        )
    classes = int(labels.max()) + 1
    right = torch.zeros((), dtype=torch.long, device=unit.device)
    for first in range(0, len(unit), chunk):
        cosine = unit[first : first + chunk] @ unit.T
        row = torch.arange(len(cosine), device=unit.device)
        cosine[row, first + row] = -torch.inf
        near, index = cosine.topk(k, dim=1)
        # exp((cosine - 1) / t) is the same vote: a common factor that keeps small temperatures from overflowing.
        weights = ((near - 1) / temperature).exp()
        votes = unit.new_zeros(len(cosine), classes).scatter_add_(1, labels[index], weights)
        right += (votes.argmax(1) == labels[first : first + chunk]).sum()
    return right / len(unit)


def read_embedding(
    features: Float[Tensor, "rows width"],
    anchor: Float[Tensor, "batch dim"] | None = None,
    query: Float[Tensor, "batch dim"] | None = None,
) -> dict[str, Tensor]:
    """All readings of a step by the names they have in the log.

    Rank and std are those of the features, uniformity and entropy those of the anchor's projections; what a step
    has no projections for is left out. Only the first 1024 rows of each are read.

    >>> z = torch.eye(8)
    >>> {name: round(value.item(), 2) for name, value in read_embedding(z, z, z).items()}
    ... # doctest: +NORMALIZE_WHITESPACE
    {'meter/effective_rank': 7.0, 'meter/feature_std': 0.94, 'meter/alignment': 0.0, 'meter/uniformity': -4.0,
     'meter/entropy': 6.44}
    """
    features = features[:MOST_ROWS].detach()
    found = {"meter/effective_rank": effective_rank(features), "meter/feature_std": feature_std(features)}
    if anchor is None:
        return found
    anchor = anchor[:MOST_ROWS].detach()
    if query is not None:
        found["meter/alignment"] = alignment(anchor, query[:MOST_ROWS].detach())
    return found | {"meter/uniformity": uniformity(anchor), "meter/entropy": entropy(anchor)}
