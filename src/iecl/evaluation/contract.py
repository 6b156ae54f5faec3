"""What an evaluation is: settings, a protocol in words, and a way from a model and data to scores."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl.evaluation.context import EvaluationContext


@dataclass(frozen=True)
class Scores:
    """What an evaluation found."""

    values: dict[str, float]
    """Numbers between 0 and 1; the first one stands for the evaluation where there is room for one."""
    counts: dict[str, int]
    """How many images and classes the numbers rest on: `n_train`, `n_test`, `classes`."""
    protocol: dict[str, Any]
    """Everything besides the settings that moves the numbers."""
    seen: str = ""
    """What the network saw of an image, for the protocol's short name."""
    details: dict[str, Any] = field(default_factory=dict)
    """Whatever else there is to say."""
    hits: Bool[Tensor, " n_test"] | None = field(default=None, compare=False)
    """Which test images were right, where the first number is the share of them."""
    lists: dict[str, Any] = field(default_factory=dict)
    """Names of the images that were learned from, where that is a choice: too long for the result itself."""


class Evaluation(ABC):
    """The contract. An evaluation holds its settings and nothing that was learned."""

    Settings: ClassVar[type]
    repeats_itself: ClassVar[bool] = False
    """Whether it takes several tries by itself, so that it need not be repeated with other seeds."""
    is_frozen: ClassVar[bool] = True
    """Whether the backbone stays as it is; one that is trained is trained in 32 bits."""
    rereads: bool = False
    """Whether training images are read more than once, so that keeping them decoded pays."""

    settings: Any

    @abstractmethod
    def __init__(self, settings: Any) -> None: ...

    @property
    @abstractmethod
    def summary(self) -> str:
        """The protocol in a few words: what a number must carry to be compared."""

    @abstractmethod
    def measure(self, context: EvaluationContext) -> Scores:
        """The scores of the context's model on its data; the model's weights are left as they are."""


def accuracies(top1: float, top5: float, classes: int) -> dict[str, float]:
    """The numbers of an evaluation by classes: being among five of five tells nothing.

    >>> accuracies(0.5, 1.0, classes=3)
    {'top1': 0.5}
    """
    return {"top1": top1, "top5": top5} if classes > 5 else {"top1": top1}


def first_right(scores: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Which labels have the greatest score, of equal ones the lower class number; one of minus infinity is never right.

    >>> first_right(torch.tensor([[1.0, 1.0], [0.0, 2.0], [-torch.inf, -torch.inf]]), torch.tensor([1, 1, 0]))
    tensor([False,  True, False])
    """
    best = scores.max(dim=1, keepdim=True).values
    first = (scores == best).int().argmax(dim=1)
    return (first == labels) & (best.squeeze(1) > -torch.inf)


def ranked_hits(scores: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"]) -> tuple[int, int]:
    """How many labels have the greatest score, and how many one of the five greatest.

    Of equal scores the lower class number goes first. A class with the score minus infinity is no candidate at all.

    >>> ranked_hits(torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, -torch.inf]]), torch.tensor([1, 2]))
    (0, 1)
    """
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :5]
    is_candidate = scores.gather(1, order) > -torch.inf
    hits = (order == labels[:, None]) & is_candidate
    return int(hits[:, 0].sum()), int(hits.any(dim=1).sum())
