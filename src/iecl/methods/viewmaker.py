"""Viewmaker: a network makes the views that the contrastive loss finds hardest (Tamkin et al. 2021)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import counter, parallel
from iecl.backbones.factory import width_of
from iecl.losses.view_contrast import view_contrast
from iecl.methods.contract import DataFacts, Method, MethodSettings, ParamGroup, Step
from iecl.parts.gradient_reversal import reverse_gradient
from iecl.parts.mlp import mlp
from iecl.parts.view_maker import ViewMaker
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class ViewmakerSettings(MethodSettings):
    """An encoder that descends a contrastive loss and a view maker that climbs it."""

    hidden_dim: int = setting(512, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(128, "length of a projection", low=1, high=65_536)
    num_layers: int = setting(1, "linear layers of the projector", low=1, high=4)
    temperature: float = setting(0.07, "divides the cosines", above=0)
    budget: float = setting(0.05, "mean absolute change of a pixel, on the scale 0 to 1", above=0, high=1)
    width: int = setting(32, "channels of the view maker at full resolution", low=1, high=4096)
    blocks: int = setting(3, "residual blocks of the view maker, each with noise of its own", low=1, high=16)
    lr: float = setting(1e-3, "learning rate of the view maker, the same during the whole run", above=0)


@final
class Viewmaker(Method):
    """Two players and one loss: the encoder descends it, the view maker climbs it within its budget.

    formula:
        d = tanh(maker(image, noise)), scaled to mean |d| = budget
        view = clamp(image + d, 0, 1), for each view with other noise
        z = projector(backbone(view))
        loss = mean over anchors of log mean exp(cos(z_anchor, every z) / temperature)
               - cos(z_anchor, z_query) / temperature
        backbone, projector: descend; maker: climbs
    """

    Settings = ViewmakerSettings
    needs_facts = True
    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, settings: ViewmakerSettings, facts: DataFacts) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim, layers=settings.num_layers)
        self.maker = ViewMaker(budget=settings.budget, width=settings.width, blocks=settings.blocks)
        for name, values in (("mean", facts.mean), ("std", facts.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def step(self, views: Views, clock: Clock) -> Step:
        """Remake both views, and contrast them over all processes."""
        made = [self._remake(view, views, clock, number) for number, view in enumerate(views.global_crops[:2])]
        h_anchor, h_query = (self.backbone(view) for view in made)
        z_anchor, z_query = self.projector(h_anchor), self.projector(h_query)
        loss = view_contrast(parallel.gather(z_anchor), parallel.gather(z_query), self.settings.temperature)
        moved = [
            (after.detach() - before.detach()) * self.std
            for after, before in zip(made, views.global_crops, strict=False)
        ]
        return Step(
            {"contrast": loss},
            torch.cat([h_anchor, h_query]),
            {"anchor": z_anchor, "query": z_query},
            {"viewmaker/change": torch.stack(moved).abs().mean()},
        )

    def _remake(self, view: Tensor, views: Views, clock: Clock, number: int) -> Float[Tensor, "n 3 h w"]:
        """The view with the maker's change, on the scale 0 to 1 in between.

        The loss is one for both players, so that one backward pass serves both: the reversed gradient is exactly that
        of minus the loss, and the maker has a learning rate of its own. Only the change is reversed: what made the
        view before (an input block) keeps its sign.
        """
        stream = counter.Stream(counter.key(clock.seed, "viewmaker/noise", clock.epoch, number), views.positions)
        image = view.float() * self.std + self.mean
        change = reverse_gradient(self.maker(image.detach(), stream))
        return ((image + change).clamp(0, 1) - self.mean) / self.std

    def param_groups(self) -> Iterable[ParamGroup]:
        """The encoder, and the view maker at a rate of its own and without weight decay."""
        encoder = [p for part in (self.backbone, self.projector) for p in part.parameters() if p.requires_grad]
        maker = ParamGroup("maker", list(self.maker.parameters()), 0.0, self.settings.lr, is_constant=True)
        return [ParamGroup("weights", encoder), maker]
