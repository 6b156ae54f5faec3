"""NNCLR: the right answer for a view is what lies nearest to the other view among past images (Dwibedi et al. 2021)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.info_nce import info_nce
from iecl.methods.contract import IN_BATCH, Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.parts.neighbors import nearest_rows
from iecl.parts.queue import Queue
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class NNCLRSettings(MethodSettings):
    """Projector, predictor, and the store of past projections."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(256, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    predictor_hidden_dim: int = setting(4096, "width of the predictor's hidden layer", low=1, high=65_536)
    temperature: float = setting(0.1, "divides the cosines", above=0)
    queue_size: int = setting(65536, "past projections among which the nearest is sought", low=1)


@final
class NNCLR(Method):
    """SimCLR's contrast with a neighbor in place of the view itself, and a predictor before the comparison.

    formula:
        z = projector(backbone(view)),  p = predictor(z)
        near(z) = row of the queue with the greatest cosine to z, without gradient
        contrast(z, p) = mean of -log softmax(cos(near(z), predictions of the batch) / temperature) at the own p
        loss = contrast(z anchor, p query) / 2 + contrast(z query, p anchor) / 2
        queue <- z anchor, after the loss
    """

    Settings = NNCLRSettings
    small_batch = IN_BATCH

    def __init__(self, backbone: nn.Module, settings: NNCLRSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone),
            settings.hidden_dim,
            settings.out_dim,
            layers=settings.num_layers,
            last_norm=True,
            last_affine=True,
        )
        self.predictor = mlp(settings.out_dim, settings.predictor_hidden_dim, settings.out_dim)
        self.queue = Queue(settings.queue_size, settings.out_dim)

    def step(self, views: Views, clock: Clock) -> Step:
        """Find the prediction of the other view by the neighbor of this one; the mean of both directions."""
        h = [self.backbone(x) for x in views.global_crops[:2]]  # one view at a time: batch norm sees one view
        z_anchor, z_query = (self.projector(x) for x in h)
        p_anchor, p_query = self.predictor(z_anchor), self.predictor(z_query)
        past = self.queue.read()  # before the batch enters, or each image would be its own neighbor
        loss = (self._contrast(z_anchor, p_query, past) + self._contrast(z_query, p_anchor, past)) / 2
        self.queue.push(parallel.gather(z_anchor.detach()))
        return Step({"contrast": loss}, torch.cat(h), {"anchor": z_anchor, "query": z_query})

    def _contrast(
        self, z: Float[Tensor, "n out"], predictions: Float[Tensor, "n out"], past: Float[Tensor, "queue out"]
    ) -> Float[Tensor, ""]:
        """Rows are neighbors, a look-up without gradient; the softmax runs over the predictions of all processes."""
        neighbors = nearest_rows(z, past)[:, 0]
        first = parallel.rank() * len(z)
        return info_nce(neighbors, parallel.gather(predictions), self.settings.temperature, first=first)
