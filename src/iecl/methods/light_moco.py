"""Light-MoCo: momentum contrast for small networks, with a softer answer (Lin et al. 2023)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import counter, parallel
from iecl.backbones.factory import width_of
from iecl.errors import UserError
from iecl.losses.smoothed_info_nce import SPREADS, neighbor_shares, smoothed_info_nce
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.parts.queue import Queue
from iecl.parts.split_norm import in_random_order, sees_parts, share_statistics, split_norms
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class LightMoCoSettings(MethodSettings):
    """MoCo-v2's parts, and how much of the answer the nearest negatives get."""

    hidden_dim: int = setting(
        2048, "width of the projector's hidden layers, wider than a small network's feature", low=1, high=65_536
    )
    out_dim: int = setting(128, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(2, "linear layers of the projector", low=1, high=4)
    norm: bool = setting(False, "batch norm in the projector's hidden layers")
    temperature: float = setting(0.2, "divides the cosines", above=0)
    symmetric: bool = setting(False, "add the contrast of the query with the anchor's key; the sum, not the mean")
    queue_size: int = setting(4096, "past keys kept as negatives", low=1)
    ema_momentum: Ramp = setting(Ramp.constant(0.99), "share of the momentum copy kept at each step", low=0, high=1)
    norm_groups: int = setting(0, "groups of the whole batch that batch norm treats apart; 0: none", low=0)
    smooth: Ramp = setting(Ramp.constant(0.2), "part of the target that goes to the nearest negatives")
    num_neighbors: int = setting(10, "negatives that share it", low=1)
    spread: str = setting("equal", "how they share it, see the docs", choices=SPREADS)
    plain_epochs: int = setting(1, "epochs before it starts: at first the nearest negatives are random", low=0)


@final
class LightMoCo(Method):
    """An online encoder, a momentum copy, a queue, and InfoNCE with a smoothed answer.

    formula:
        z = projector(backbone(anchor)),  k = momentum copy of both, of the query
        y = 1 - smooth on the own key, smooth spread over the rows of the queue nearest to z
        loss = mean of -sum y log softmax(cos(z, key and queue) / temperature);  symmetric: plus the other way round
        momentum copy <- m * copy + (1 - m) * online, m = ema_momentum, after each optimizer step
    """

    Settings = LightMoCoSettings
    has_target = True

    def __init__(self, backbone: nn.Module, settings: LightMoCoSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        if settings.num_neighbors > settings.queue_size:
            raise UserError(
                f"a queue of {settings.queue_size} does not hold {settings.num_neighbors} neighbors",
                where="method.num_neighbors",
                do=f"use at most {settings.queue_size}",
            )
        neighbor_shares(settings.spread, 0.1, settings.num_neighbors)  # now, and not in the first step that smooths
        self.projector = mlp(
            width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers, norm=settings.norm
        )
        if settings.norm_groups:
            split_norms(settings.norm_groups, backbone, self.projector)
            self.min_batch = max(2, -(-2 * settings.norm_groups // parallel.world()))
        self.momentum = MomentumCopy(backbone, self.projector)
        self.queue = Queue(settings.queue_size, settings.out_dim)
        self.online = frozenset({"anchor", "query"} if settings.symmetric else {"anchor"})

    @classmethod
    def has_group_norms(cls, settings: LightMoCoSettings) -> bool:
        """As the setting says."""
        return settings.norm_groups > 0

    def step(self, views: Views, clock: Clock) -> Step:
        """The smoothed contrast of the anchor with the query's key, and the other way round when symmetric."""
        (anchor, query), (target_anchor, target_query) = views.global_crops[:2], views.targets[:2]
        h_anchor = self.backbone(anchor)
        z_anchor, k_query = self.projector(h_anchor), self._keys(target_query, clock, view=1)
        loss = self._contrast(z_anchor, k_query, clock)
        if not self.settings.symmetric:
            self.queue.push(parallel.gather(k_query))
            return Step({"contrast": loss}, h_anchor, {"anchor": z_anchor, "key": k_query})
        h_query = self.backbone(query)
        z_query, k_anchor = self.projector(h_query), self._keys(target_anchor, clock, view=0)
        loss = loss + self._contrast(z_query, k_anchor, clock)
        self.queue.push(torch.cat([parallel.gather(k_anchor), parallel.gather(k_query)]))
        return Step({"contrast": loss}, torch.cat([h_anchor, h_query]), {"anchor": z_anchor, "query": z_query})

    def _keys(self, x: Float[Tensor, "n 3 h w"], clock: Clock, view: int) -> Float[Tensor, "n out"]:
        """Keys of a view; where norms see parts of the batch, each among other images than its anchor."""
        if not sees_parts(self.momentum):
            made: Tensor = self.momentum(x)
            return made
        keys = in_random_order(self.momentum, x, counter.key(clock.seed, "moco/shuffle", clock.step, view))
        return keys[parallel.rank() * len(x) :][: len(x)]

    def _contrast(self, z: Float[Tensor, "n out"], keys: Float[Tensor, "n out"], clock: Clock) -> Float[Tensor, ""]:
        settings = self.settings
        mass = settings.smooth.at(clock) if clock.epoch >= settings.plain_epochs else 0.0
        shares = neighbor_shares(settings.spread, mass, settings.num_neighbors)
        return smoothed_info_nce(z, keys, self.queue.read(), settings.temperature, shares)

    def after_step(self, clock: Clock) -> None:
        """Move the momentum copy, once the optimizer has moved the online encoder."""
        self.momentum.follow(self.backbone, self.projector, keep=self.settings.ema_momentum.at(clock))
        share_statistics(self)
