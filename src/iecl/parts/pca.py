"""Principal components with equal variance: what k-means of DeepCluster sees instead of features."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

CHUNK = 2**16  # rows widened to doubles at a time
FLOOR = 1e-6  # of the largest variance: a direction with less is rounding noise, and whitening would blow it up


@torch.no_grad()
def whitened(rows: Float[Tensor, "n width"], most: int) -> Float[Tensor, "n components"]:
    """Rows in at most `most` leading principal components, each scaled to variance 1, then each row to length 1.

    >>> blob = torch.tensor([[4.0, 0, 7], [-4, 0, 7], [0, 1, 7], [0, -1, 7]])     # the last column never varies
    >>> whitened(blob, 3).shape, whitened(blob, 3).abs().amax(1).tolist()
    (torch.Size([4, 2]), [1.0, 1.0, 1.0, 1.0])
    """
    mean = rows.mean(0)
    pieces = torch.split(rows, CHUNK)
    scatter = torch.stack([_scatter(some - mean) for some in pieces]).sum(0)
    variances, axes = torch.linalg.eigh(scatter / (len(rows) - 1))  # ascending
    kept = variances[-most:] > FLOOR * variances[-1]
    if not kept.any():  # all rows are the same: there is nothing to tell apart, and nothing to divide by
        return rows.new_zeros(len(rows), 1)
    scaled = (axes[:, -most:][:, kept] / variances[-most:][kept].sqrt()).to(rows)
    return torch.cat([normalize((some - mean) @ scaled, dim=1) for some in pieces])


def _scatter(centered: Tensor) -> Tensor:
    """In doubles on the CPU: the squares of a narrow direction must survive, and not every accelerator has doubles."""
    exact = centered.cpu().double()
    return exact.T @ exact
