"""BYOL: predict a momentum copy's projection of the other view, without negatives (Grill et al. 2020)."""

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from iecl.backbones.factory import width_of
from iecl.losses.prediction import unit_distance
from iecl.methods.contract import Method, MethodSettings, SmallBatch, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class BYOLSettings(MethodSettings):
    """Projector, predictor and the pace of the momentum copy."""

    hidden_dim: int = setting(4096, "width of the projector's hidden layer", low=1, high=65_536)
    out_dim: int = setting(256, "length of a projection", low=1, high=65_536)
    predictor_hidden_dim: int = setting(4096, "width of the predictor's hidden layer", low=1, high=65_536)
    ema_momentum: Ramp = setting(
        Ramp(start=0.99, end=1.0), "share of the momentum copy kept at each step", low=0, high=1
    )


@final
class BYOL(Method):
    """Online encoder, projector and predictor; a slow copy of encoder and projector gives the targets.

    formula:
        p = predictor(projector(backbone(view)))        with gradient
        k = momentum copy of projector(backbone(view))  without
        loss = mean of 2 - 2 cos(p anchor, k query)
             + mean of 2 - 2 cos(p query, k anchor)
        momentum copy <- m * copy + (1 - m) * online, m = ema_momentum, after each optimizer step
    """

    Settings = BYOLSettings
    has_target = True
    small_batch = SmallBatch(
        256, "its batch norms stand in for negatives: accuracy falls below 256 (Grill et al. 2020, figure 3)"
    )

    def __init__(self, backbone: nn.Module, settings: BYOLSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim)
        self.predictor = mlp(settings.out_dim, settings.predictor_hidden_dim, settings.out_dim)
        self.momentum = MomentumCopy(backbone, self.projector)

    def step(self, views: Views, clock: Clock) -> Step:
        """Each view predicts the copy's projection of the other one; the sum of both, not their mean."""
        anchor, query = views.global_crops[:2]
        h = [self.backbone(x) for x in (anchor, query)]  # one view at a time: batch norm sees one view
        z_anchor, z_query = (self.projector(x) for x in h)
        p_anchor, p_query = self.predictor(z_anchor), self.predictor(z_query)
        k_anchor, k_query = (self.momentum(x) for x in views.targets[:2])
        loss = unit_distance(p_anchor, k_query) + unit_distance(p_query, k_anchor)
        return Step({"prediction": loss}, torch.cat(h), {"anchor": z_anchor, "query": z_query})

    def after_step(self, clock: Clock) -> None:
        """Move the momentum copy, once the optimizer has moved the online network."""
        self.momentum.follow(self.backbone, self.projector, keep=self.settings.ema_momentum.at(clock))
