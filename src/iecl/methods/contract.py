"""What a method is: parts, a step that returns named losses, and what it needs from the trainer.

A method knows nothing of optimizers, logging, devices, files or processes beyond `parallel.gather`. All state that
shapes its next step is a parameter or a persistent buffer. Time enters as a `Clock`, randomness through the counter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

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


@dataclass(frozen=True)
class DataFacts:
    """What a method may know of the data it is built for."""

    samples: int
    classes: int
    """0 without labels."""
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


Encode = Callable[[Float[Tensor, "n 3 h w"]], Float[Tensor, "n width"]]
Survey = Callable[[Encode], Float[Tensor, "samples width"]]
"""Applies a function, without gradient, to a plain view of every sample and returns all rows on every process."""


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

    @abstractmethod
    def step(self, views: Views, clock: Clock) -> Step:
        """The losses of one batch of views."""

    @abstractmethod
    def project(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n out"]:
        """The online projection of a view, with gradient: what the entropy terms read."""

    @abstractmethod
    def encoder(self) -> nn.Module:
        """The backbone that the run is for: what evaluation reads and export writes."""

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
