"""VICReg: match two views while every feature varies and no two vary together (Bardes et al. 2022)."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from torch import nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.variance_covariance import covariance_penalty, variance_hinge
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class VICRegSettings(MethodSettings):
    """Variance, invariance, covariance; projections keep their length."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(2048, "length of a projection", low=2, high=65_536)
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    invariance: float = setting(25.0, "weight of the squared distance of the views", low=0)
    variance: float = setting(25.0, "weight of the hinge on each feature's std, the mean of both views", low=0)
    covariance: float = setting(1.0, "weight of the squared covariances, the sum of both views", low=0)


@final
class VICReg(Method):
    """Three terms, each of which has a meaning of its own.

    formula:
        z = projector(backbone(view)), as it is
        v(z) = mean_j max(0, 1 - sqrt(var_j + 1e-4))
        c(z) = sum_{i != j} cov_ij^2 / out
        loss = invariance * mean (z_anchor - z_query)^2
             + variance * (v(z_anchor) + v(z_query)) / 2
             + covariance * (c(z_anchor) + c(z_query))
    """

    Settings = VICRegSettings

    def __init__(self, backbone: nn.Module, settings: VICRegSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers)

    def step(self, views: Views, clock: Clock) -> Step:
        """The distance on each process, the statistics over all of them."""
        settings = self.settings
        h_anchor, h_query = (self.backbone(view) for view in views.global_crops[:2])
        z_anchor, z_query = self.projector(h_anchor), self.projector(h_query)
        everyone = [parallel.gather(z_anchor), parallel.gather(z_query)]
        losses = {
            "invariance": settings.invariance * F.mse_loss(z_anchor.float(), z_query.float()),
            "variance": settings.variance * torch.stack([variance_hinge(z) for z in everyone]).mean(),
            "covariance": settings.covariance * torch.stack([covariance_penalty(z) for z in everyone]).sum(),
        }
        return Step(losses, torch.cat([h_anchor, h_query]), {"anchor": z_anchor, "query": z_query})
