"""MoCo-v2: match the momentum copy's key of the other view among many keys (He et al. 2020; Chen et al. 2020)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import counter, parallel
from iecl.backbones.factory import width_of
from iecl.losses.info_nce import info_nce, info_nce_queue
from iecl.methods.contract import IN_BATCH, Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.parts.queue import Queue
from iecl.parts.split_norm import in_random_order, sees_parts, share_statistics, split_norms
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Mixture, Views


@dataclass(frozen=True, kw_only=True)
class MoCoV2Settings(MethodSettings):
    """Momentum contrast; a queue of 0 takes the other images of the batch as negatives."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(128, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(2, "linear layers of the projector", low=1, high=4)
    norm: bool = setting(False, "batch norm in the projector's hidden layers")
    temperature: float = setting(0.2, "divides the cosines", above=0)
    decoupled: bool = setting(False, "the right answer is no part of the denominator (DCL, Yeh et al. 2022)")
    symmetric: bool = setting(False, "also match the anchor's key to the query: twice the forward passes")
    queue_size: int = setting(4096, "past keys kept as negatives; 0: the other images of the batch", low=0)
    ema_momentum: Ramp = setting(Ramp.constant(0.99), "share of the momentum copy kept at each step", low=0, high=1)
    norm_groups: int = setting(
        0,
        "groups of the batch over all processes that batch norm treats apart, with shuffled keys; 0: plain batch norm",
        low=0,
    )


@final
class MoCoV2(Method):
    """An online encoder with gradient, a momentum copy without, and InfoNCE between them.

    formula:
        z = projector(backbone(anchor))                 with gradient
        k = momentum copy of both, of the query         without
        loss = mean of -log softmax(cos(z, keys) / temperature) at the own key
        momentum copy <- m * copy + (1 - m) * online, m = ema_momentum, after each optimizer step
    """

    Settings = MoCoV2Settings
    has_target = True

    def __init__(self, backbone: nn.Module, settings: MoCoV2Settings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers, norm=settings.norm
        )
        if settings.norm_groups:
            split_norms(settings.norm_groups, backbone, self.projector)
            self.min_batch = max(2, -(-2 * settings.norm_groups // parallel.world()))
        self.momentum = MomentumCopy(backbone, self.projector)
        self.queue = Queue(settings.queue_size, settings.out_dim) if settings.queue_size else None
        self.online = frozenset({"anchor", "query"} if settings.symmetric else {"anchor"})
        self.small_batch = None if settings.queue_size else IN_BATCH
        self.takes_mixtures = settings.symmetric

    @classmethod
    def has_group_norms(cls, settings: MoCoV2Settings) -> bool:
        """As the setting says."""
        return settings.norm_groups > 0

    def step(self, views: Views, clock: Clock) -> Step:
        """`ctr(q_anchor, k_query)`, and the other way round when symmetric."""
        (anchor, query), (target_anchor, target_query) = views.global_crops[:2], views.targets[:2]
        h_anchor = self.backbone(anchor)
        z_anchor = self.projector(h_anchor)
        k_query = self._keys(target_query, clock, view=1)
        if not self.settings.symmetric:
            loss = self._contrast(z_anchor, k_query)
            self._remember(k_query)
            first = parallel.rank() * len(z_anchor)
            return Step(
                {"contrast": loss}, h_anchor, {"anchor": z_anchor, "key": k_query[first : first + len(z_anchor)]}
            )
        h_query = self.backbone(query)  # one view at a time: batch norm sees one view, as in the paper
        z_query = self.projector(h_query)
        k_anchor = self._keys(target_anchor, clock, view=0)
        loss = (self._contrast(z_anchor, k_query) + self._contrast(z_query, k_anchor, views.mixture)) / 2
        self._remember(torch.cat([k_query, k_anchor]))
        return Step({"contrast": loss}, torch.cat([h_anchor, h_query]), {"anchor": z_anchor, "query": z_query})

    def _keys(self, x: Float[Tensor, "n 3 h w"], clock: Clock, view: int) -> Float[Tensor, "all out"]:
        """Keys of a view over all processes; a key never carries gradient, and anchors stay on their process."""
        if not sees_parts(self.momentum):
            return parallel.gather(self.momentum(x))
        # Each key among other images than its anchor, or the statistics of their part would tell which key is right.
        key = counter.key(clock.seed, "moco/shuffle", clock.step, view)
        return in_random_order(self.momentum, x, key)

    def _contrast(
        self, z: Float[Tensor, "n out"], keys: Float[Tensor, "all out"], mixture: Mixture | None = None
    ) -> Float[Tensor, ""]:
        first, temperature, decoupled = parallel.rank() * len(z), self.settings.temperature, self.settings.decoupled
        mixed = {} if mixture is None else {"partners": mixture.partner, "shares": mixture.share}
        if self.queue is None:
            return info_nce(z, keys, temperature, first=first, decoupled=decoupled, **mixed)
        if mixture is not None:  # past keys are wrong answers, and so are the other keys of the batch
            return info_nce(z, keys, temperature, self.queue.read(), first, decoupled=decoupled, **mixed)
        return info_nce_queue(z, keys[first : first + len(z)], self.queue.read(), temperature, decoupled=decoupled)

    def _remember(self, keys: Tensor) -> None:
        if self.queue is not None:
            self.queue.push(keys)

    def after_step(self, clock: Clock) -> None:
        """Move the momentum copy, once the optimizer has moved the online encoder."""
        self.momentum.follow(self.backbone, self.projector, keep=self.settings.ema_momentum.at(clock))
        share_statistics(self)
