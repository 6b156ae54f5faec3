"""Barlow Twins: make the cross-correlation of the features of two views the identity (Zbontar et al. 2021)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.cross_correlation import barlow_twins
from iecl.methods.contract import Method, MethodSettings, ParamGroup, SmallBatch, Step
from iecl.parts.mlp import mlp
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class BarlowTwinsSettings(MethodSettings):
    """Redundancy reduction; a wide projection is part of the method."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(2048, "length of a projection", low=2, high=65_536)
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    off_diagonal: float = setting(0.0051, "weight of the squared correlations of different features", low=0)
    scale: float = setting(1.0, "multiplies the loss, which starts near the length of a projection", above=0)
    bias_lr: float = setting(0.0, "peak learning rate of biases and norms; 0: the optimizer's own", low=0)


@final
class BarlowTwins(Method):
    """Each feature agrees with itself over the views and with no other feature.

    formula:
        z = projector(backbone(view)), standardized over the batch
        C = z_anchor' z_query / batch
        loss = scale * (sum_i (C_ii - 1)^2 + off_diagonal * sum_{i != j} C_ij^2)
    """

    Settings = BarlowTwinsSettings
    small_batch = SmallBatch(128, "69.7 % with 128 against 71.7 % with 1,024 (facebookresearch/barlowtwins#7)")

    def __init__(self, backbone: nn.Module, settings: BarlowTwinsSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers)

    def step(self, views: Views, clock: Clock) -> Step:
        """Correlate the views over the images of all processes."""
        h_anchor, h_query = (self.backbone(view) for view in views.global_crops[:2])
        z_anchor, z_query = self.projector(h_anchor), self.projector(h_query)
        # Gathered with gradient before the statistics: summing C over processes instead would lose gradient.
        own, others = barlow_twins(parallel.gather(z_anchor), parallel.gather(z_query))
        losses = {
            "invariance": self.settings.scale * own,
            "redundancy": self.settings.scale * self.settings.off_diagonal * others,
        }
        return Step(losses, torch.cat([h_anchor, h_query]), {"anchor": z_anchor, "query": z_query})

    def param_groups(self) -> Iterable[ParamGroup]:
        """One group, or two where biases and norms have a rate of their own, as in the authors' code."""
        weights = [p for p in self.parameters() if p.requires_grad]
        if not self.settings.bias_lr:
            return [ParamGroup("weights", weights)]
        thick, thin = ([p for p in weights if (p.ndim > 1) == is_thick] for is_thick in (True, False))
        return [ParamGroup("weights", thick), ParamGroup("biases", thin, rate=self.settings.bias_lr)]
