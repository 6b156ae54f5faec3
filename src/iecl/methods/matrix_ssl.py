"""Matrix-SSL: matrix cross-entropies between the covariances of an online and a slow encoder (Zhang et al. 2024)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.matrix_cross_entropy import matrix_alignment, matrix_uniformity
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class MatrixSSLSettings(MethodSettings):
    """Matrix uniformity and alignment with a predictor and a momentum copy."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(
        2048, "length of a projection; the loss multiplies matrices of this side", low=1, high=65_536
    )
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    predictor_hidden_dim: int = setting(512, "width of the predictor's hidden layer", low=1, high=65_536)
    weight: float = setting(1.0, "weight λ of the uniformity", low=0)
    ridge: float = setting(
        1.0, "multiple μ of the identity in each covariance; above 1 the series diverges", above=0, high=1
    )
    alignment: float = setting(1.0, "weight γ of the alignment of covariances", low=0)
    order: int = setting(4, "last power in the series of the matrix logarithm", low=1, high=16)
    ema_momentum: Ramp = setting(
        Ramp(start=0.996, end=1.0), "share of the momentum copy kept at each step", low=0, high=1
    )


@final
class MatrixSSL(Method):
    """Spread the cross-covariance over all directions, and give both encoders the same covariance.

    formula:
        z = predictor(projector(backbone(view)))        with gradient
        k = momentum copy of projector and backbone     without
        C(a, b) = a' J b / batch, unit rows, J centers
        MCE(P, Q) = -tr(P log Q)
        loss = mean over (z_anchor, k_query), (z_query, k_anchor) of
               MCE(weight I, C(k, z) + ridge I) + alignment * MCE(C(k, k) + ridge I, C(z, z) + ridge I)
    """

    Settings = MatrixSSLSettings
    has_target = True

    def __init__(self, backbone: nn.Module, settings: MatrixSSLSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers, last_norm=True
        )
        self.predictor = mlp(settings.out_dim, settings.predictor_hidden_dim, settings.out_dim)
        self.momentum = MomentumCopy(backbone, self.projector)

    def step(self, views: Views, clock: Clock) -> Step:
        """Both orders of the views, over the images of all processes."""
        anchor, query = views.global_crops[:2]
        h_anchor, h_query = self.backbone(anchor), self.backbone(query)
        z_anchor, z_query = self.projector(h_anchor), self.projector(h_query)
        predicted = [parallel.gather(self.predictor(z)) for z in (z_anchor, z_query)]
        targets = [parallel.gather(self.momentum(view)) for view in reversed(views.targets[:2])]  # of the other view
        pairs = list(zip(targets, predicted, strict=True))
        losses = {"uniformity": torch.stack([self._uniformity(k, z) for k, z in pairs]).mean()}
        if self.settings.alignment:
            losses["alignment"] = torch.stack([self._alignment(k, z) for k, z in pairs]).mean()
        return Step(losses, torch.cat([h_anchor, h_query]), {"anchor": z_anchor, "query": z_query})

    def _uniformity(self, k: Float[Tensor, "all out"], z: Float[Tensor, "all out"]) -> Float[Tensor, ""]:
        settings = self.settings
        return matrix_uniformity(k, z, weight=settings.weight, ridge=settings.ridge, order=settings.order)

    def _alignment(self, k: Float[Tensor, "all out"], z: Float[Tensor, "all out"]) -> Float[Tensor, ""]:
        settings = self.settings
        return settings.alignment * matrix_alignment(k, z, ridge=settings.ridge, order=settings.order)

    def after_step(self, clock: Clock) -> None:
        """Move the momentum copy, once the optimizer has moved the online encoder."""
        self.momentum.follow(self.backbone, self.projector, keep=self.settings.ema_momentum.at(clock))
