"""Embeddings on a plane: the same picture for the same rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from iecl import counter
from iecl.errors import UserError, did_you_mean

ENOUGH_ROWS = 20_000
"""Directions are steady by then; the time to find them grows with the rows."""
KEPT = 50
"""Directions that distances are measured in, by t-SNE and for clusters."""
MOST_FOR_TSNE = 20_000


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
        raise UserError(
            f"t-SNE of {len(rows):,} images takes hours", where="--map", do=f"add --images {MOST_FOR_TSNE}, or take pca"
        )
    if len(rows) < 5:
        raise UserError(f"t-SNE of {len(rows)} images says nothing", where="--map", do="take pca")
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(rows) - 1) / 4)
    made = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(rows.numpy())
    note = (
        f"t-SNE, perplexity {perplexity:.0f}, seed 0: near points are alike; the distance of far ones, and how large a "
        "group is drawn, says nothing."
    )
    return MapLayout("t-SNE", note, torch.from_numpy(np.ascontiguousarray(made)))


WAYS: dict[str, Callable[[Tensor, float], MapLayout]] = {"pca": _pca, "tsne": _tsne}


def check_ways(names: tuple[str, ...]) -> None:
    """Refuse a name that no layout has."""
    for name in names:
        if name not in WAYS:
            raise UserError(f"no map is called {name!r}", where="--map", do=did_you_mean(name, WAYS))
