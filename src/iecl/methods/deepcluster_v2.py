"""DeepCluster-v2: predict clusters of the last epoch's projections, in several clusterings (Caron et al. 2020)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl import counter, parallel
from iecl.backbones.factory import width_of
from iecl.losses.pseudo_labels import NO_LABEL, pseudo_label_loss
from iecl.methods.contract import DataFacts, Method, MethodSettings, Step, Survey
from iecl.parts.eval_mode import evaluating
from iecl.parts.kmeans import affordable, kmeans
from iecl.parts.mlp import mlp
from iecl.parts.multi_crop import encode_views, multi_crop
from iecl.parts.prototypes import cosines
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class DeepClusterV2Settings(MethodSettings):
    """Clusters of a memory bank as labels, their centers as fixed prototypes."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layer", low=1, high=65_536)
    out_dim: int = setting(128, "length of a projection", low=1, high=65_536)
    num_clusters: int = setting(3000, "labels of each clustering; at most one for two images", low=2)
    num_clusterings: int = setting(3, "clusterings, from different starts", low=1, high=100)
    temperature: float = setting(0.1, "divides the cosines", above=0)
    iterations: int = setting(10, "rounds of k-means", low=1, high=10_000)
    bank: int = setting(
        2, "full views kept for clustering, taken in turn; 1: the anchor alone, clean of a query block", low=1, high=2
    )
    local_crops: int = setting(0, "small views, which only predict", low=0, high=64)


@final
class DeepClusterV2(Method):
    """A projector, a bank of its last output for every image, and centroids that stay for an epoch.

    formula:
        centroids, labels = spherical k-means of the bank, before each epoch, several times
        loss = mean over clusterings and views of -log softmax(cos(z, centroids) / temperature) at the label
    """

    Settings = DeepClusterV2Settings
    needs_facts: ClassVar[bool] = True
    bank: Tensor
    seen: Tensor
    centroids: Tensor
    assigned: Tensor

    def __init__(self, backbone: nn.Module, settings: DeepClusterV2Settings, facts: DataFacts) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim)
        self.views = multi_crop(settings.local_crops)
        clusters = affordable(settings.num_clusters, facts.samples)
        self.register_buffer("bank", torch.zeros(settings.bank, facts.samples, settings.out_dim))
        self.register_buffer("seen", torch.zeros(facts.samples, dtype=torch.bool))
        self.register_buffer("centroids", torch.zeros(settings.num_clusterings, clusters, settings.out_dim))
        self.register_buffer("assigned", torch.full((settings.num_clusterings, facts.samples), NO_LABEL))

    def step(self, views: Views, clock: Clock) -> Step:
        """Mean over clusterings of the cross-entropy of every view to the label of its image."""
        n = len(views.positions)
        h = encode_views(self.backbone, views)
        z = self.projector(h)
        labels = self.assigned[:, views.index].repeat(1, len(z) // n)
        losses = [
            pseudo_label_loss(cosines(z, centroids) / self.settings.temperature, theirs)
            for centroids, theirs in zip(self.centroids, labels, strict=True)
        ]
        self._remember(torch.split(normalize(z.detach().float(), dim=1), n), views)
        return Step({"label": torch.stack(losses).mean()}, h[: 2 * n], {"anchor": z[:n], "query": z[n : 2 * n]})

    def _remember(self, unit: tuple[Float[Tensor, "n out"], ...], views: Views) -> None:
        """Every process keeps the rows of all."""
        index = parallel.gather(views.index)
        for view in range(self.settings.bank):
            self.bank[view, index] = parallel.gather(unit[view])
        self.seen[index] = True

    @torch.no_grad()
    def before_epoch(self, survey: Survey, clock: Clock) -> Iterable[nn.Parameter]:
        """Cluster the bank; images that the last epoch left out have no label in this one."""
        if clock.epoch == 0:
            with evaluating(self.backbone, self.projector):
                rows = survey(self.project)
            self.bank.copy_(normalize(rows, dim=1))  # to each view's place: there is one plain view
            self.seen.copy_(rows.any(dim=1))
        self.assigned.fill_(NO_LABEL)
        for number in range(self.settings.num_clusterings):
            centroids, labels = kmeans(
                self.bank[number % self.settings.bank][self.seen],
                self.centroids.shape[1],
                key=counter.key(clock.seed, "deepcluster-v2/start", clock.epoch, number),
                iterations=self.settings.iterations,
                spherical=True,
            )
            self.centroids[number] = centroids
            self.assigned[number, self.seen] = labels
        self.seen.fill_(False)
        return ()
