"""MinEnt: move outputs towards the nearest one-hot vectors, standardized so that all get used (Li et al. 2023)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.minimum_entropy import minimum_entropy, nearest_one_hot, standardized
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class MinEntSettings(MethodSettings):
    """Heads of several lengths, each with a loss of its own."""

    hidden_dim: int = setting(1024, "width of the hidden layers of each head", low=1, high=65_536)
    num_layers: int = setting(3, "linear layers of each head", low=1, high=4)
    heads: tuple[int, ...] = setting(
        (2048, 1024, 512, 256, 128, 64, 32, 16), "length of each head's output; the first is the projection", low=2
    )

    def __post_init__(self) -> None:
        if not self.heads:
            raise ValueError("heads is empty: give at least one length")


@final
class MinEnt(Method):
    """A backbone and heads; no negatives, no predictor, no momentum copy.

    formula:
        g = head(backbone(view)), for each head
        target = argmax of g standardized over the batch, without gradient
        loss = mean over heads and views of -log softmax(g) at the target of the other view
    """

    Settings = MinEntSettings

    def __init__(self, backbone: nn.Module, settings: MinEntSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        width = width_of(backbone)
        self.heads = nn.ModuleList(
            mlp(width, settings.hidden_dim, out, layers=settings.num_layers) for out in settings.heads
        )

    def step(self, views: Views, clock: Clock) -> Step:
        """Mean over heads of the cross-entropy to the other view's nearest one-hot vector."""
        anchor, query = (self.backbone(x) for x in views.global_crops[:2])
        outputs = [(head(anchor), head(query)) for head in self.heads]
        losses = [minimum_entropy(g, q, _targets(g), _targets(q)) for g, q in outputs]
        z_anchor, z_query = (standardized(g) for g in outputs[0])  # as they are, a common offset hides the rest
        return Step(
            {"entropy": torch.stack(losses).mean()},
            torch.cat([anchor, query]),
            {"anchor": z_anchor, "query": z_query},
        )

    def project(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n out"]:
        """The output of the first head, standardized over the batch: what the nearest one-hot vector is sought for."""
        return standardized(self.heads[0](self.backbone(x)))


def _targets(outputs: Float[Tensor, "n count"]) -> Int64[Tensor, " n"]:
    """The targets of our rows, standardized over the rows of all processes."""
    first = parallel.rank() * len(outputs)
    return nearest_one_hot(parallel.gather(outputs.detach()))[first : first + len(outputs)]
