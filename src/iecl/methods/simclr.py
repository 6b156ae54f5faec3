"""SimCLR: match two views of an image among all other views of the batch (Chen et al. 2020)."""

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.nt_xent import nt_xent
from iecl.methods.contract import IN_BATCH, Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class SimCLRSettings(MethodSettings):
    """One encoder, a projector that is thrown away, and a temperature."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(128, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(2, "linear layers of the projector", low=1, high=4)
    norm: bool = setting(True, "batch norm after every layer of the projector, the last one too")
    temperature: float = setting(0.1, "divides the cosines", above=0)
    decoupled: bool = setting(False, "the right answer is no part of the denominator (DCL, Yeh et al. 2022)")


@final
class SimCLR(Method):
    """Every view is an anchor, the other view of its image the right answer, all other views the wrong ones.

    formula:
        z = projector(backbone(view)) of both views of all n images
        loss = mean over the 2n views of -log softmax(cos(z, others) / temperature) at the other view of the image
    """

    Settings = SimCLRSettings
    small_batch = IN_BATCH

    def __init__(self, backbone: nn.Module, settings: SimCLRSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone),
            settings.hidden_dim,
            settings.out_dim,
            layers=settings.num_layers,
            norm=settings.norm,
            last_norm=settings.norm,
            last_affine=True,
        )
        last = self.projector[-1]
        if isinstance(last, nn.BatchNorm1d):
            last.bias.requires_grad_(False)  # the authors' last norm learns a scale and no shift

    def step(self, views: Views, clock: Clock) -> Step:
        """NT-Xent of the projections of both views, over all processes."""
        h = self.backbone(
            torch.cat(views.global_crops[:2])
        )  # one pass: batch norm sees both views, as in the authors' code
        z_anchor, z_query = self.projector(h).chunk(2)
        # Each view gathered by itself, with gradient: row i is the same image in both, on every process.
        both = parallel.gather(z_anchor), parallel.gather(z_query)
        loss = nt_xent(*both, self.settings.temperature, decoupled=self.settings.decoupled)
        return Step({"contrast": loss}, h, {"anchor": z_anchor, "query": z_query})
