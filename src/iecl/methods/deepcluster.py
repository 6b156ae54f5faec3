"""DeepCluster: label all images by k-means of their features, learn the labels, and again (Caron et al. 2018)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from iecl import counter
from iecl.backbones.factory import width_of
from iecl.losses.pseudo_labels import NO_LABEL, pseudo_label_loss
from iecl.methods.contract import DataFacts, Method, MethodSettings, ParamGroup, Step, Survey
from iecl.parts.eval_mode import evaluating
from iecl.parts.kmeans import affordable, kmeans
from iecl.parts.pca import whitened
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views

HEAD_DEVIATION = 0.01  # the authors' code: a new head starts with nearly flat guesses


@dataclass(frozen=True, kw_only=True)
class DeepClusterSettings(MethodSettings):
    """Clustering and classifying in turn."""

    num_clusters: int = setting(10000, "labels; at most one for two images", low=2)
    components: int = setting(256, "principal components of the features that are clustered", low=1)
    iterations: int = setting(20, "rounds of k-means", low=1, high=10_000)


@final
class DeepCluster(Method):
    """A backbone and a linear head that is new with each epoch's labels.

    formula:
        labels = k-means of the whitened features of every image, before each epoch
        loss = mean over both views of share * -log softmax(head(backbone(view))) at the label
    """

    Settings = DeepClusterSettings
    needs_facts: ClassVar[bool] = True
    assigned: Tensor
    shares: Tensor

    def __init__(self, backbone: nn.Module, settings: DeepClusterSettings, facts: DataFacts) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.clusters = affordable(settings.num_clusters, facts.samples)
        self.head = nn.Linear(width_of(backbone), self.clusters)
        self.register_buffer("assigned", torch.full((facts.samples,), NO_LABEL))
        self.register_buffer("shares", torch.ones(self.clusters))

    def step(self, views: Views, clock: Clock) -> Step:
        """Cross-entropy of both views to the label of their image, clusters weighing the same whatever their size."""
        anchor, query = (self.backbone(x) for x in views.global_crops[:2])
        h = torch.cat([anchor, query])
        labels = self.assigned[views.index].repeat(2)
        loss = pseudo_label_loss(self.head(h), labels, self.shares[labels.clamp_min(0)])
        return Step({"label": loss}, h, {"anchor": anchor, "query": query})

    @torch.no_grad()
    def before_epoch(self, survey: Survey, clock: Clock) -> Iterable[nn.Parameter]:
        """Cluster what the backbone makes of every image, and draw a new head."""
        with evaluating(self.backbone):
            rows = survey(self.backbone)
        readable = rows.any(dim=1)
        _, labels = kmeans(
            whitened(rows[readable], self.settings.components),
            self.clusters,
            key=counter.key(clock.seed, "deepcluster/start", clock.epoch),
            iterations=self.settings.iterations,
        )
        self.assigned.fill_(NO_LABEL)
        self.assigned[readable] = labels
        sizes = labels.bincount(minlength=self.clusters)
        # An image weighs as often as it would be drawn if clusters were drawn first: 1 on average.
        self.shares.copy_(len(labels) / (sizes.clamp_min(1) * (sizes > 0).sum()))
        positions = torch.arange(self.clusters, device=rows.device)
        key = counter.key(clock.seed, "deepcluster/head", clock.epoch)
        self.head.weight.copy_(HEAD_DEVIATION * counter.normal(key, positions, self.head.in_features))
        self.head.bias.zero_()
        return self.head.parameters()

    def param_groups(self) -> Iterable[ParamGroup]:
        """The head apart: the authors move it without momentum."""
        backbone = [p for p in self.backbone.parameters() if p.requires_grad]
        return [ParamGroup("weights", backbone), ParamGroup("head", list(self.head.parameters()), momentum=0.0)]
