"""Random: the backbone as it was initialized, the floor under every other method."""

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from iecl.methods.contract import Method, MethodSettings, Step
from iecl.schedule import Clock
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class RandomSettings(MethodSettings):
    """Nothing can be set."""


@final
class Random(Method):
    """No weight of the backbone moves; its batch norms learn the statistics of the views.

    formula:
        loss = idle^2, with idle = 0 always
    """

    Settings = RandomSettings
    online = frozenset()

    def __init__(self, backbone: nn.Module, settings: RandomSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone.requires_grad_(False), settings
        # Optimizers and process groups refuse a model without a weight to train.
        self.idle = nn.Parameter(torch.zeros(1))

    def step(self, views: Views, clock: Clock) -> Step:
        """Forward passes in training mode, which move the running statistics and nothing else."""
        h_anchor, h_query = (self.backbone(view) for view in views.global_crops[:2])
        loss = self.idle.square().sum()
        return Step({"idle": loss}, torch.cat([h_anchor, h_query]), {"anchor": h_anchor, "query": h_query})
