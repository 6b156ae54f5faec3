"""What a method is: parts, a step that returns named losses, and what it needs from the trainer.

A method knows nothing of optimizers, logging, devices, files or processes beyond `parallel.gather`. All state that
shapes its next step is a parameter or a persistent buffer. Time enters as a `Clock`, randomness through the counter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from iecl.parts.momentum_copy import MomentumCopy
from iecl.schedule import Clock
from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec


@dataclass(frozen=True)
class Step:
    """What one step gives the trainer."""

    losses: dict[str, Float[Tensor, ""]]
    """Weighted scalar terms; the objective is their sum, each is logged as loss/<name>."""
    features: Float[Tensor, "rows width"]
    """Encoder output of the full views, one view after the other; meters read it."""
    projections: dict[str, Float[Tensor, "n out"]] = field(default_factory=dict)
    """What was made anyway: online projections "anchor" and "query", the momentum copy's "key" of the query."""
    readings: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    """For the log only."""


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that the optimizer treats alike."""

    name: str
    parameters: list[nn.Parameter]
    weight_decay: float | None = None
    """None: the optimizer's own."""
    rate: float | None = None
    """Peak learning rate; None: the optimizer's own."""
    is_constant: bool = False
    """Whether it keeps its peak learning rate, without warm-up or cosine."""
    momentum: float | None = None
    """Of SGD and LARS, first beta of AdamW; None: the optimizer's own."""


@dataclass(frozen=True)
class DataFacts:
    """What a method may know of the data it is built for; `unlabeled` are samples that lack the label others have."""

    samples: int
    classes: int
    """0 without labels."""
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    unlabeled: int = 0


Encode = Callable[[Float[Tensor, "n 3 h w"]], Float[Tensor, "n width"]]
Survey = Callable[[Encode], Float[Tensor, "samples width"]]
"""Applies a function, without gradient, to a plain view of every sample and returns all rows on every process."""


@dataclass(frozen=True)
class SmallBatch:
    """What is known of a method with few images in a batch."""

    below: int
    reason: str


IN_BATCH = SmallBatch(
    256,
    "its negatives are the other images of the batch: SimCLR's accuracy falls below 256 (Chen et al. 2020, figure 9)",
)


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """The settings of one method; each method file has its own."""


class Method(nn.Module, ABC):
    """The contract. A method's only base is this class, and no method is a base of another."""

    Settings: ClassVar[type[MethodSettings]]
    views: ViewSpec = ViewSpec()
    min_batch: int = 2
    """Fewest images per process with which the loss means anything."""
    needs_facts: ClassVar[bool] = False
    """Whether the constructor takes `DataFacts` after the settings."""
    online: frozenset[str] = frozenset({"anchor", "query"})
    """Which of the first two views the loss sends gradient to: an input block can learn from it only there."""
    takes_mixtures: bool = False
    """Whether its loss has answers for a query that shows two images."""
    has_target: ClassVar[bool] = False
    """Whether a branch without gradient sees `views.targets`."""
    small_batch: SmallBatch | None = None
    """Below which batch it is known to lose accuracy; None: nothing is known."""
    backbone: nn.Module

    @abstractmethod
    def step(self, views: Views, clock: Clock) -> Step:
        """The losses of one batch of views."""

    def project(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n out"]:
        """The online projection of a view, with gradient: what the entropy terms read."""
        features: Tensor = self.encoder()(x)
        projector = getattr(self, "projector", None)
        return features if projector is None else projector(features)

    def encoder(self) -> nn.Module:
        """The backbone that the run is for: what evaluation reads and export writes."""
        return self.backbone

    def encoders(self) -> list[nn.Module]:
        """The encoder and its momentum copies."""
        copies = [part.parts[0] for part in self.modules() if isinstance(part, MomentumCopy)]
        return [self.encoder(), *copies]

    @classmethod
    def has_group_norms(cls, settings: Any) -> bool:
        """Whether its batch norms see the same groups of images however many processes share a batch."""
        return False

    def before_epoch(self, survey: Survey, clock: Clock) -> Iterable[nn.Parameter]:
        """Before the first step of each epoch; returns parameters drawn again, whose past the optimizer forgets."""
        return ()

    def after_backward(self, clock: Clock) -> None:
        """Between the last backward pass and the optimizer step: the place to hold weights still."""

    def after_step(self, clock: Clock) -> None:
        """Once after each optimizer step: momentum copies, budgets."""

    def meters(self, number: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Readings that are too expensive for every step: asked for when a run reads its meters, right after a step.

        `number` is how many readings came before: what is expensive even then can be left out of most.
        """
        return {}

    def param_groups(self) -> Iterable[ParamGroup]:
        """Trainable parameters by treatment; by default one group."""
        return [ParamGroup("weights", [p for p in self.parameters() if p.requires_grad])]
