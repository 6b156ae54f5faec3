"""S3OC: cluster centers as layers, hard assignments as targets (S3OCNet, Li et al. 2022), as read from its abstract.

No code is public. That targets come from the other view and are standardized over the batch is inferred from the
later MinEnt code of the same authors; the page in the docs says which part is whose.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.minimum_entropy import minimum_entropy, nearest_one_hot
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.prototypes import Directions
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class S3OCSettings(MethodSettings):
    """Layers of cluster centers, each on the similarities to the centers of the one before."""

    num_clusters: tuple[int, ...] = setting((1024, 512, 256, 128), "cluster centers of each layer", low=2)
    temperature: float = setting(0.1, "divides the similarities", above=0)

    def __post_init__(self) -> None:
        if not self.num_clusters:
            raise ValueError("num_clusters is empty: give the number of centers of at least one layer")


@final
class S3OC(Method):
    """A backbone and cascaded layers whose weights are cluster centers and whose outputs are similarities.

    formula:
        s = similarities to the centers of a layer, which are the next layer's input
        target = argmax of s standardized over the batch, without gradient
        loss = mean over layers and views of -log softmax(s / temperature) at the target of the other view
    """

    Settings = S3OCSettings

    def __init__(self, backbone: nn.Module, settings: S3OCSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        widths = (width_of(backbone), *settings.num_clusters[:-1])
        self.layers = nn.ModuleList(
            Directions(count, width) for count, width in zip(settings.num_clusters, widths, strict=True)
        )

    def step(self, views: Views, clock: Clock) -> Step:
        """Mean over layers of the cross-entropy to the cluster of the other view."""
        anchor, query = (self.backbone(x) for x in views.global_crops[:2])
        similar = list(zip(self._cascade(anchor), self._cascade(query), strict=True))
        losses = [minimum_entropy(a, q, _assign(a), _assign(q), self.settings.temperature) for a, q in similar]
        z_anchor, z_query = similar[0]
        return Step(
            {"cluster": torch.stack(losses).mean()},
            torch.cat([anchor, query]),
            {"anchor": z_anchor, "query": z_query},
        )

    def _cascade(self, h: Float[Tensor, "n width"]) -> list[Tensor]:
        """Similarities to the centers of each layer."""
        made = []
        for layer in self.layers:
            h = layer(h)
            made.append(h)
        return made

    def project(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n out"]:
        """The similarities to the centers of the first layer."""
        z: Tensor = self.layers[0](self.backbone(x))
        return z


def _assign(similar: Float[Tensor, "n count"]) -> Int64[Tensor, " n"]:
    """The cluster of each of our rows, after each center's similarities were standardized over all processes."""
    first = parallel.rank() * len(similar)
    return nearest_one_hot(parallel.gather(similar.detach()))[first : first + len(similar)]
