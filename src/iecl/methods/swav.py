"""SwAV: predict the balanced cluster assignment of one view from the others (Caron et al. 2020)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.swapped_prediction import sinkhorn, swapped_prediction
from iecl.methods.contract import Method, MethodSettings, SmallBatch, Step
from iecl.parts.mlp import mlp
from iecl.parts.multi_crop import encode_views, multi_crop
from iecl.parts.prototypes import Prototypes
from iecl.parts.queue import Queue
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class SwAVSettings(MethodSettings):
    """Swapped assignments; many more prototypes than images in a batch need the queue."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layer", low=1, high=65_536)
    out_dim: int = setting(128, "length of a projection", low=1, high=65_536)
    num_prototypes: int = setting(3000, "directions that views are assigned to", low=2)
    temperature: float = setting(0.1, "divides the cosines of the prediction", above=0)
    epsilon: float = setting(0.05, "divides the cosines of the assignment: smaller is harder", above=0)
    iterations: int = setting(3, "rounds of balancing the assignment", low=1, high=10_000)
    freeze_epochs: int = setting(1, "first epochs in which the prototypes do not move", low=0)
    queue_size: int = setting(0, "past projections that are balanced along with the batch; 0: none", low=0)
    queue_start_epoch: int = setting(15, "first epoch (from 0) in which the queue is used", low=0)
    local_crops: int = setting(0, "small views, which only predict", low=0, high=64)


@final
class SwAV(Method):
    """Codes from the two full views, without gradient; predictions from every view.

    formula:
        z = projector(backbone(view));  scores = cos(z, prototypes)
        code = sinkhorn(scores of a full view / epsilon), without gradient
        loss = mean over codes and other views of -sum code * log softmax(scores / temperature)
    """

    Settings = SwAVSettings
    small_batch = SmallBatch(
        256, "a batch far smaller than the prototypes leaves some of them empty (facebookresearch/swav)"
    )

    def __init__(self, backbone: nn.Module, settings: SwAVSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(width_of(backbone), settings.hidden_dim, settings.out_dim)
        self.prototypes = Prototypes(settings.num_prototypes, settings.out_dim)
        self.queues = nn.ModuleList(
            Queue(settings.queue_size, settings.out_dim) for _ in range(2 if settings.queue_size else 0)
        )
        self.views = multi_crop(settings.local_crops)

    def step(self, views: Views, clock: Clock) -> Step:
        """Cross-entropy of each view's prediction to the code of every other full view."""
        n = len(views.positions)
        h = encode_views(self.backbone, views)
        z = self.projector(h).unflatten(0, (-1, n))
        scores = self.prototypes(z.flatten(0, 1)).unflatten(0, (-1, n))
        codes = torch.stack([self._code(scores[i], z[i], i, clock) for i in range(2)])
        loss = swapped_prediction(scores, codes, self.settings.temperature)
        return Step({"swap": loss}, h[: 2 * n], {"anchor": z[0], "query": z[1]})

    @torch.no_grad()
    def _code(
        self, scores: Float[Tensor, "n count"], z: Float[Tensor, "n out"], view: int, clock: Clock
    ) -> Float[Tensor, "n count"]:
        """The balanced assignment of our rows, among those of all processes and of the queue."""
        settings, rows = self.settings, parallel.gather(scores.detach())
        first = parallel.rank() * len(scores)
        balanced = rows
        if settings.queue_size:
            queue, keys = self.queues[view], parallel.gather(z.detach())
            assert isinstance(queue, Queue)
            # It fills from the first step on, and is random until it is full.
            if clock.epoch >= settings.queue_start_epoch and clock.step * len(keys) >= settings.queue_size:
                balanced = torch.cat([rows, self.prototypes(queue.read())])
            queue.push(keys)
        codes = sinkhorn(balanced, settings.epsilon, settings.iterations)
        return codes[first : first + len(scores)]

    def after_backward(self, clock: Clock) -> None:
        """Hold the prototypes still at first: random ones that move run into each other."""
        if clock.epoch < self.settings.freeze_epochs:
            self.prototypes.weight.grad = None

    def after_step(self, clock: Clock) -> None:
        """Prototypes have length 1 before every forward pass."""
        self.prototypes.renormalize()
