"""SimSiam: predict the own projection of the other view, held still (Chen and He 2021)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from iecl.backbones.factory import width_of
from iecl.losses.prediction import negative_cosine
from iecl.methods.contract import Method, MethodSettings, ParamGroup, SmallBatch, Step
from iecl.parts.mlp import mlp
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class SimSiamSettings(MethodSettings):
    """Projector and predictor."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(2048, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    predictor_hidden_dim: int = setting(512, "width of the predictor's hidden layer, a bottleneck", low=1, high=65_536)
    constant_predictor: bool = setting(True, "the predictor keeps its peak learning rate, without warm-up and cosine")


@final
class SimSiam(Method):
    """One encoder and projector for both views; only the predictor's side of each pair receives gradient.

    formula:
        z = projector(backbone(view)),  p = predictor(z)
        loss = - mean of cos(p anchor, z query held still) / 2
               - mean of cos(p query, z anchor held still) / 2
    """

    Settings = SimSiamSettings
    has_target = True
    small_batch = SmallBatch(64, "the authors go down to 64 (Chen and He 2021, table 2)")

    def __init__(self, backbone: nn.Module, settings: SimSiamSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers, last_norm=True
        )
        self.predictor = mlp(settings.out_dim, settings.predictor_hidden_dim, settings.out_dim)

    def step(self, views: Views, clock: Clock) -> Step:
        """Mean of both directions; the loss holds its targets still."""
        h = [self.backbone(x) for x in views.global_crops[:2]]  # one view at a time: batch norm sees one view
        z_anchor, z_query = (self.projector(x) for x in h)
        p_anchor, p_query = self.predictor(z_anchor), self.predictor(z_query)
        k_anchor, k_query = z_anchor, z_query
        if views.target_crops:
            k_anchor, k_query = (self.project(x) for x in views.target_crops)
        loss = (negative_cosine(p_anchor, k_query) + negative_cosine(p_query, k_anchor)) / 2
        return Step({"prediction": loss}, torch.cat(h), {"anchor": z_anchor, "query": z_query})

    def param_groups(self) -> Iterable[ParamGroup]:
        """The predictor apart: it must keep up with projections that change, also late in a run."""
        encoder = [p for part in (self.backbone, self.projector) for p in part.parameters() if p.requires_grad]
        predictor = list(self.predictor.parameters())
        return [
            ParamGroup("weights", encoder),
            ParamGroup("predictor", predictor, is_constant=self.settings.constant_predictor),
        ]
