"""Embeddings on a plane: the same picture for the same rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from iecl import counter, parallel
from iecl.errors import UserError

ENOUGH_ROWS = 20_000
"""Directions are steady by then; the time to find them grows with the rows."""
KEPT = 50
"""Directions that distances are measured in, by t-SNE, by UMAP and for clusters."""
MOST_FOR_TSNE = 20_000
LEAST = 5
"""Images that t-SNE and UMAP have something to say of."""


@dataclass(frozen=True)
class MapLayout:
    """Points on a plane."""

    title: str
    note: str
    points: Float[Tensor, "n 2"]


def reduced(features: Float[Tensor, "n width"]) -> tuple[Float[Tensor, "n kept"], float]:
    """Unit rows in their main directions, at most 50, and the share of the variance that the first two hold.

    A direction points to where its largest weight is positive, so that no picture is a mirror image of another.
    """
    rows = normalize(features, dim=1)
    some = rows[counter.permutation(counter.key(0, "report/directions"), len(rows))[:ENOUGH_ROWS]]
    mean = some.mean(0)
    centered = (some - mean).double()
    values, vectors = torch.linalg.eigh(centered.T @ centered / max(1, len(some) - 1))
    order = values.argsort(descending=True)[:KEPT]
    chosen = vectors[:, order]
    chosen = chosen * chosen.gather(0, chosen.abs().argmax(0, keepdim=True)).sign()
    share = (values[order[:2]].sum() / values.sum().clamp_min(1e-12)).item()
    made = (rows - mean) @ chosen.float()
    if made.shape[1] < 2:  # a backbone of one number
        made = torch.cat([made, made.new_zeros(len(made), 1)], dim=1)
    return made, share


def _pca(rows: Tensor, share: float) -> MapLayout:
    note = f"PCA: the two directions in which images differ most; they hold {100 * share:.0f} % of all differences."
    return MapLayout("PCA", note, rows[:, :2])


def _tsne(rows: Tensor, share: float) -> MapLayout:
    if len(rows) > MOST_FOR_TSNE:
        do = f"add --images {MOST_FOR_TSNE}, or take umap"
        raise UserError(f"t-SNE of {len(rows):,} images takes hours", where="--map", do=do)
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(rows) - 1) / 4)
    with threadpool_limits(1):  # its threads and those that UMAP started wait for each other: 100 times slower
        made = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(rows.numpy())
    return MapLayout("t-SNE", f"t-SNE, perplexity {perplexity:.0f}, seed 0{_CAUTION}", torch.from_numpy(made.copy()))


def _umap(rows: Tensor, share: float) -> MapLayout:
    """Begins with PCA, on one thread: the same seed gives the same picture."""
    from umap import UMAP

    near = min(15, len(rows) - 1)
    begin = rows[:, :2] / rows[:, :2].abs().max().clamp_min(1e-12) * 10  # the width that UMAP's own start has
    with parallel.threads(1):  # numba's own threads change the number of torch's
        made = UMAP(n_neighbors=near, init=begin.numpy(), random_state=0, n_jobs=1).fit_transform(rows.numpy())
    return MapLayout("UMAP", f"UMAP, {near} neighbors, seed 0{_CAUTION}", torch.from_numpy(made.copy()))


_CAUTION = ": near points are alike; the distance of far ones, and how large a group is drawn, says nothing."
_WAYS: dict[str, Callable[[Tensor, float], MapLayout]] = {"pca": _pca, "tsne": _tsne, "umap": _umap}


def lay_out(name: str, rows: Float[Tensor, "n kept"], share: float) -> MapLayout:
    """Rows and share as `reduced` gives them, on a plane.

    Raises:
        UserError: there are too few images for it, or too many.
    """
    if name != "pca" and len(rows) < LEAST:
        raise UserError(f"a map of {len(rows)} images by {name} says nothing", where="--map", do="take pca")
    return _WAYS[name](rows, share)
