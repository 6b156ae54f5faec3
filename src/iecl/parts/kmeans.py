"""k-means that gives the same clusters whenever and wherever it is run on the same rows.

Every process holds all rows and computes the same thing, so that nothing is sent. First centroids are rows that the
counter picks. Sums are matrix products with one-hot labels: adding rows by index has no fixed order on a GPU.
"""

import logging

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from iecl import counter
from iecl.errors import UserError
from iecl.estimators.precision import full_precision

log = logging.getLogger("iecl.parts")

CHUNK = 2**24  # similarities held at a time: 64 MB, where a million rows and 3,000 centroids would need 12 GB


@torch.no_grad()
@full_precision
def kmeans(
    rows: Float[Tensor, "n width"], count: int, *, key: int, iterations: int, spherical: bool = False
) -> tuple[Float[Tensor, "count width"], Int64[Tensor, " n"]]:
    """Centroids, and for each row the number of its nearest one.

    `spherical` compares directions: rows and centroids have length 1 and the nearest has the largest cosine. A centroid
    that no row is nearest to stays where it is.

    >>> corners = torch.tensor([[0.0, 0], [0, 1], [9, 0], [9, 1]])
    >>> centroids, labels = kmeans(corners, 2, key=0, iterations=5)
    >>> centroids[labels].tolist()
    [[0.0, 0.5], [0.0, 0.5], [9.0, 0.5], [9.0, 0.5]]
    """
    if len(rows) < count:
        raise UserError(f"{len(rows)} rows cannot make {count} clusters", where="method.num_clusters", do="lower it")
    rows = normalize(rows, dim=1) if spherical else rows
    centroids = rows[counter.permutation(key, len(rows))[:count].to(rows.device)]
    for _ in range(iterations):
        sums, sizes = _sums(rows, _nearest(rows, centroids, spherical), count)
        centroids = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp_min(1), centroids)
        centroids = normalize(centroids, dim=1) if spherical else centroids
    return centroids, _nearest(rows, centroids, spherical)


def affordable(wanted: int, samples: int) -> int:
    """How many clusters `samples` images can make: `wanted`, or half as many as there are images.

    >>> affordable(100, samples=5000), affordable(100, samples=60)
    (100, 30)
    """
    if samples < 4:
        raise UserError(f"{samples} images cannot be clustered", where="--data", do="bring at least 4")
    most = samples // 2
    if wanted > most:
        log.warning(
            "%d clusters are too many for %d images: making %d, of two images on average", wanted, samples, most
        )
    return min(wanted, most)


def _nearest(rows: Tensor, centroids: Tensor, spherical: bool) -> Tensor:
    """Largest r.c - |c|^2 / 2, which is the smallest |r - c|^2; the second term is the same for unit centroids."""
    shift = 0 if spherical else centroids.square().sum(1) / 2
    return torch.cat([(some @ centroids.T - shift).argmax(1) for some in torch.split(rows, _chunk(len(centroids)))])


def _sums(rows: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sum and number of the rows of each cluster."""
    sums, sizes = rows.new_zeros(count, rows.shape[1]), rows.new_zeros(count)
    step = _chunk(count)
    for some, theirs in zip(torch.split(rows, step), torch.split(labels, step), strict=True):
        members = one_hot(theirs, count).to(rows.dtype)
        sums += members.T @ some
        sizes += members.sum(0)
    return sums, sizes


def _chunk(count: int) -> int:
    return max(1, CHUNK // count)
