"""All4One: contrast neighbors, what a transformer makes of them, and single features (Estepa et al. 2023)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.feature_redundancy import feature_redundancy
from iecl.losses.info_nce import info_nce
from iecl.methods.contract import Method, MethodSettings, ParamGroup, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.parts.neighbors import nearest_rows
from iecl.parts.queue import Queue
from iecl.parts.sequence_summary import SequenceSummary
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class All4OneSettings(MethodSettings):
    """Heads, transformer, store of past keys, and the weight of each term."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(256, "length of a projection, a multiple of `heads`", low=2, high=65_536)
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    predictor_hidden_dim: int = setting(4096, "width of the hidden layer of both predictors", low=1, high=65_536)
    num_neighbors: int = setting(5, "past keys that are summarized", low=2)
    transformer_layers: int = setting(3, "layers of the transformer", low=1, high=64)
    heads: int = setting(8, "attention heads of the transformer", low=1)
    transformer_lr: float = setting(0.0, "the transformer's own peak learning rate; 0: the optimizer's", low=0)
    temperature: float = setting(0.2, "divides the cosines of the neighbor term", above=0)
    centroid_temperature: float = setting(0.1, "divides the cosines of the centroid term", above=0)
    neighbor_weight: float = setting(0.5, "weight of the neighbor term", low=0)
    centroid_weight: float = setting(0.5, "weight of the centroid term", low=0)
    feature_weight: float = setting(0.5, "weight of the feature term", low=0)
    queue_size: int = setting(98304, "past keys among which neighbors are sought", low=2)
    ema_momentum: Ramp = setting(
        Ramp(start=0.99, end=1.0), "share of the momentum copy kept at each step", low=0, high=1
    )


@final
class All4One(Method):
    """Three terms on two views; all targets come from a momentum copy and its past keys.

    formula:
        z = projector(backbone(view)),  k = momentum copy of it,  near = past keys nearest to k
        neighbor: near[0] of one view finds predictor(z) of the other, as in NNCLR
        centroid: transformer(near) of one view finds transformer(second predictor(z), near[:-1]) of the other
        feature: 5 (root of mean (C_ii - 1)^2 + root of mean C_ij^2), C = correlations of z and the other view's k
        loss = half of each;  queue <- k anchor, after the loss
    """

    Settings = All4OneSettings
    has_target = True

    def __init__(self, backbone: nn.Module, settings: All4OneSettings) -> None:
        super().__init__()
        self.backbone, self.settings, out = backbone, settings, settings.out_dim
        self.projector = mlp(
            width_of(backbone), settings.hidden_dim, out, layers=settings.num_layers, last_norm=True, last_affine=True
        )
        self.predictor = mlp(out, settings.predictor_hidden_dim, out)
        self.centroid_predictor = mlp(out, settings.predictor_hidden_dim, out)
        self.summary = SequenceSummary(
            out, settings.num_neighbors, layers=settings.transformer_layers, heads=settings.heads
        )
        self.momentum = MomentumCopy(backbone, self.projector)
        self.queue = Queue(settings.queue_size, out)

    def step(self, views: Views, clock: Clock) -> Step:
        """Neighbors of one view's key against the other view's prediction, three times over."""
        anchor, query = views.global_crops[:2]
        h = [self.backbone(x) for x in (anchor, query)]  # one view at a time: batch norm sees one view
        z_anchor, z_query = (self.projector(x) for x in h)
        k_anchor, k_query = (normalize(self.momentum(x), dim=1) for x in views.targets[:2])
        past = self.queue.read()  # before the batch enters, or each image would be its own neighbor
        near_anchor, near_query = (nearest_rows(k, past, self.settings.num_neighbors) for k in (k_anchor, k_query))
        neighbor = self._neighbor(near_anchor, z_query) + self._neighbor(near_query, z_anchor)
        c_anchor, s_anchor = self._summaries(near_anchor, z_anchor)
        c_query, s_query = self._summaries(near_query, z_query)
        centroid = self._centroid(c_anchor, s_query) + self._centroid(c_query, s_anchor)
        feature = feature_redundancy(*(parallel.gather(x) for x in (z_anchor, z_query, k_anchor, k_query)))
        self.queue.push(parallel.gather(k_anchor))
        losses = {
            "neighbor": self.settings.neighbor_weight * neighbor / 2,
            "centroid": self.settings.centroid_weight * centroid / 2,
            "feature": self.settings.feature_weight * feature,
        }
        return Step(losses, torch.cat(h), {"anchor": z_anchor, "query": z_query})

    def _neighbor(self, near: Float[Tensor, "n near out"], z: Float[Tensor, "n out"]) -> Float[Tensor, ""]:
        """NNCLR's contrast: find the prediction of the other view by the nearest past key."""
        return _contrast(near[:, 0], self.predictor(z), self.settings.temperature)

    def _summaries(
        self, near: Float[Tensor, "n near out"], z: Float[Tensor, "n out"]
    ) -> tuple[Float[Tensor, "n out"], Float[Tensor, "n out"]]:
        """The centroid of the neighbors, and the own prediction with all neighbors but the farthest."""
        own = torch.cat([self.centroid_predictor(z)[:, None], near[:, :-1]], dim=1)
        return self.summary(near), self.summary(own)

    def _centroid(self, centroids: Float[Tensor, "n out"], own: Float[Tensor, "n out"]) -> Float[Tensor, ""]:
        """Find the summary of the other view by the centroid of this one."""
        return _contrast(centroids, own, self.settings.centroid_temperature)

    def after_step(self, clock: Clock) -> None:
        """Move the momentum copy, once the optimizer has moved the online network."""
        self.momentum.follow(self.backbone, self.projector, keep=self.settings.ema_momentum.at(clock))

    def param_groups(self) -> Iterable[ParamGroup]:
        """The transformer apart: it may have a rate of its own."""
        own = list(self.summary.parameters())
        taken = {id(p) for p in own}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in taken]
        return [
            ParamGroup("weights", rest),
            ParamGroup("transformer", own, rate=self.settings.transformer_lr or None),
        ]


def _contrast(rows: Tensor, answers: Tensor, temperature: float) -> Tensor:
    """Rows of this process against the answers of all, which carry gradient."""
    return info_nce(rows, parallel.gather(answers), temperature, first=parallel.rank() * len(rows))
