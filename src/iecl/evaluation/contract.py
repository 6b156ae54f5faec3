"""What an evaluation is: settings, a protocol in words, and a way from two labelled sources to scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from iecl.evaluation.features import Features


@dataclass(frozen=True)
class Trial:
    """What every evaluation is given."""

    train: Features
    test: Features
    device: torch.device
    crops: Callable[[int, int], Features]
    """(seed, epoch) -> features of one random crop of each training picture."""
    progress: Callable[[int, int], None] | None = None
    """Is told how many steps are done, of how many."""


@dataclass(frozen=True)
class Scores:
    """Shares of the test pictures, between 0 and 1, and whatever else an evaluation has to say."""

    top1: float
    top5: float
    details: dict[str, Any] = field(default_factory=dict)


class Evaluation(ABC):
    """The contract. An evaluation holds its settings and nothing that was learnt."""

    Settings: ClassVar[type]

    @abstractmethod
    def __init__(self, settings: Any) -> None: ...

    @property
    @abstractmethod
    def summary(self) -> str:
        """The protocol in a few words: what a number must carry to be compared."""

    @property
    def rereads(self) -> bool:
        """Whether the training pictures are read more than once, so that keeping them decoded pays."""
        return False

    @abstractmethod
    def measure(self, trial: Trial) -> Scores:
        """The scores of the test pictures."""


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
