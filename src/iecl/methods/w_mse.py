"""W-MSE: whiten the embeddings of each view, then only pull the views together (Ermolov et al. 2021)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from iecl import counter, parallel
from iecl.backbones.factory import width_of
from iecl.errors import UserError
from iecl.losses.whitening import whitened_mse
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec


@dataclass(frozen=True, kw_only=True)
class WMSESettings(MethodSettings):
    """Whitening instead of negatives; the batch is whitened in groups."""

    hidden_dim: int = setting(1024, "width of the projector's hidden layer", low=1, high=65_536)
    out_dim: int = setting(64, "length of a projection", low=1, high=65_536)
    num_views: int = setting(2, "views of each image; 4 in the paper's better form", low=2, high=8)
    whitening_size: int = setting(
        0, "images whitened together, at least 2 × out_dim; 0: the smallest share of the batch that suffices", low=0
    )
    whitening_repeats: int = setting(
        1, "random divisions into groups over which the loss is averaged", low=1, high=1000
    )
    shrink: float = setting(0.0, "share of the identity in the covariance; the authors use 0", low=0, high=1)

    def __post_init__(self) -> None:
        if 0 < self.whitening_size < 2 * self.out_dim:
            raise ValueError(
                f"whitening {self.out_dim} dimensions needs groups of at least {2 * self.out_dim} images, "
                f"method.whitening_size is {self.whitening_size}: with fewer the covariance is close to singular"
            )


@final
class WMSE(Method):
    """Whitened embeddings cannot collapse, so nothing else has to push them apart.

    formula:
        z = projector(backbone(view)), all views in one batch
        w = L^-1 (z - mean), L L' = covariance of a random group of images, for each view of its own
        loss = mean over pairs of views of 2 - 2 cos(w_i, w_j), no view held still
    """

    Settings = WMSESettings

    def __init__(self, backbone: nn.Module, settings: WMSESettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim)
        self.views = ViewSpec(global_crops=settings.num_views)
        self.least = settings.whitening_size or 2 * settings.out_dim
        self.min_batch = max(2, -(-self.least // parallel.world()))  # groups are made over all processes

    def step(self, views: Views, clock: Clock) -> Step:
        """Whiten random groups of all processes' images, the same groups in every view."""
        h = torch.cat([self.backbone(view) for view in views.global_crops])
        z = self.projector(h).chunk(len(views.global_crops))  # all views at once: batch norm sees them together
        everyone, positions = [parallel.gather(rows) for rows in z], parallel.gather(views.positions)
        losses = []
        for repeat in range(self.settings.whitening_repeats):
            order = self._order(positions, clock, repeat)
            shuffled = [rows[order] for rows in everyone]
            losses.append(whitened_mse(*shuffled, group=self._group(len(order)), shrink=self.settings.shrink))
        return Step({"whitened": torch.stack(losses).mean()}, h, {"anchor": z[0], "query": z[1]})

    def _order(self, positions: Int64[Tensor, " n"], clock: Clock, repeat: int) -> Int64[Tensor, " n"]:
        """A random order that depends on which images there are, not on how they lie in the batch."""
        key = counter.key(clock.seed, "w-mse/groups", clock.epoch, repeat)
        return counter.bits(key, positions).squeeze(1).argsort()

    def _group(self, batch: int) -> int:
        if self.settings.whitening_size:
            size = self.settings.whitening_size if batch % self.settings.whitening_size == 0 else 0
        else:
            size = next((size for size in range(self.least, batch + 1) if batch % size == 0), 0)
        if not size:
            raise UserError(
                f"a batch of {batch} images cannot be cut into groups of {self.least}"
                + ("" if self.settings.whitening_size else " or more"),
                where="training.batch_size",
                do=f"use a multiple of {self.least}, or a smaller method.out_dim",
            )
        return size
