"""MoCo-v3: predict the momentum copy's key of the other view among the keys of a large batch (Chen et al. 2021)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.errors import UserError
from iecl.losses.scaled_info_nce import scaled_info_nce
from iecl.methods.contract import IN_BATCH, Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class MoCoV3Settings(MethodSettings):
    """Projector, predictor, temperature and the pace of the momentum copy."""

    hidden_dim: int = setting(4096, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(256, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(2, "linear layers of the projector: 2 for a ResNet, 3 for a ViT", low=1, high=4)
    predictor_hidden_dim: int = setting(4096, "width of the predictor's hidden layer", low=1, high=65_536)
    predictor_norm: bool = setting(False, "batch norm after the predictor's last layer, as for a ViT")
    fixed_patches: bool = setting(False, "do not train how a ViT embeds patches, which keeps its training stable")
    temperature: float = setting(0.2, "divides the cosines; the loss is multiplied by twice this", above=0)
    ema_momentum: Ramp = setting(
        Ramp(start=0.99, end=1.0), "share of the momentum copy kept at each step", low=0, high=1
    )


@final
class MoCoV3(Method):
    """Symmetric contrast without a queue: the other images of the batch, over all processes, are the negatives.

    formula:
        p = predictor(projector(backbone(view)))        with gradient
        k = momentum copy of projector(backbone(view))  without
        contrast(p, k) = 2 temperature * mean of -log softmax(cos(p, keys) / temperature) at the own key
        loss = contrast(p anchor, k query) + contrast(p query, k anchor)
        momentum copy <- m * copy + (1 - m) * online, m = ema_momentum, after each optimizer step
    """

    Settings = MoCoV3Settings
    has_target, small_batch = True, IN_BATCH

    def __init__(self, backbone: nn.Module, settings: MoCoV3Settings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers, last_norm=True
        )
        self.predictor = mlp(
            settings.out_dim, settings.predictor_hidden_dim, settings.out_dim, last_norm=settings.predictor_norm
        )
        if settings.fixed_patches:
            patches = getattr(backbone, "patch_embed", None)  # timm's name
            if patches is None:
                raise UserError("this backbone embeds no patches", where="method.fixed_patches", do="set it to false")
            patches.requires_grad_(False)
        self.momentum = MomentumCopy(backbone, self.projector)

    def step(self, views: Views, clock: Clock) -> Step:
        """`ctr(q_anchor, k_query) + ctr(q_query, k_anchor)`: the sum, and each times 2t."""
        anchor, query = views.global_crops[:2]
        h = [self.backbone(x) for x in (anchor, query)]  # one view at a time: batch norm sees one view
        z_anchor, z_query = (self.projector(x) for x in h)
        target_anchor, target_query = views.targets[:2]
        loss = self._contrast(z_anchor, target_query) + self._contrast(z_query, target_anchor)
        return Step({"contrast": loss}, torch.cat(h), {"anchor": z_anchor, "query": z_query})

    def _contrast(self, z: Float[Tensor, "n out"], other: Float[Tensor, "n 3 h w"]) -> Float[Tensor, ""]:
        """A key never carries gradient, so gathering it is plain; predictions stay on their process."""
        keys = parallel.gather(self.momentum(other))
        return scaled_info_nce(self.predictor(z), keys, self.settings.temperature, first=parallel.rank() * len(z))

    def after_step(self, clock: Clock) -> None:
        """Move the momentum copy, once the optimizer has moved the online network."""
        self.momentum.follow(self.backbone, self.projector, keep=self.settings.ema_momentum.at(clock))
