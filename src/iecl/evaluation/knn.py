"""Cosine kNN: the nearest training images vote, with weight exp(cosine / temperature) (Wu et al. 2018) or all alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores, accuracies, ranked_hits
from iecl.evaluation.features import Features
from iecl.evaluation.neighbors import BANK, QUERIES, nearest
from iecl.settings import setting


@dataclass(frozen=True, kw_only=True)
class KNNSettings:
    """How neighbors vote."""

    k: int = setting(20, "neighbors that vote", low=1)
    temperature: float = setting(0.07, "a vote weighs exp(cosine / temperature)", above=0)
    weights: str = setting("cosine", "what a vote weighs; uniform: all the same", choices=("cosine", "uniform"))

    @property
    def name(self) -> str:
        """As in `k=20 T=0.07 cosine` or `k=20 uniform`."""
        heat = f"T={self.temperature:g} " if self.weights == "cosine" else ""
        return f"k={self.k} {heat}{self.weights}"


STANDARD = (
    KNNSettings(k=20, temperature=0.07),  # DINO, solo-learn
    KNNSettings(k=200, temperature=0.1),  # Wu et al. 2018, lightly, VISSL
    KNNSettings(k=20, weights="uniform"),  # the plain vote of a textbook
)
"""What others report: found in the same search, since that costs next to nothing."""


@dataclass(frozen=True)
class KNNResult:
    """Shares of right answers, and the answers."""

    top1: float
    top5: float
    """Share with the right class among the five with most votes; a class without a vote never counts."""
    n: int
    predictions: Int64[Tensor, " n"]


def knn(
    bank: Features,
    queries: Features,
    k: int = 20,
    temperature: float = 0.07,
    weights: str = "cosine",
    *,
    chunk: tuple[int, int] = (QUERIES, BANK),
    device: torch.device | str = "cpu",
) -> KNNResult:
    """Classify each query by its k nearest rows of the bank; exact, in memory that does not grow with the queries.

    A bank of fewer than k rows votes as a whole. Of equally near rows the earlier ones vote; of classes with equal
    votes the lower number wins.

    >>> bank = Features(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([3, 5]), torch.arange(2))
    >>> knn(bank, Features(torch.tensor([[9.0, 1], [1, 9]]), torch.tensor([3, 3]), torch.arange(2)), k=1)
    KNNResult(top1=0.5, top5=0.5, n=2, predictions=tensor([3, 5]))

    Args:
        bank: labeled features that vote.
        queries: labeled features to classify.
        k: neighbors that vote.
        temperature: a vote weighs exp(cosine / temperature).
        weights: `cosine`, or `uniform` for votes that all weigh the same.
        chunk: rows of queries and of the bank that are compared at once.
        device: where to compare.

    Raises:
        UserError: labels are missing, a feature is not finite, or the two have features of different lengths.
    """
    voting = KNNSettings(k=k, temperature=temperature, weights=weights)
    (result,) = knn_by_each(bank, queries, [voting], chunk=chunk, device=device)
    return result


def knn_by_each(
    bank: Features,
    queries: Features,
    votings: Sequence[KNNSettings],
    *,
    chunk: tuple[int, int] = (QUERIES, BANK),
    device: torch.device | str = "cpu",
) -> list[KNNResult]:
    """The result of each way to vote, from one search for as many neighbors as the greatest k asks for."""
    bank, queries = bank.labeled("train"), queries.labeled("test")
    if bank.values.shape[1] != queries.values.shape[1]:
        raise UserError(f"features of length {bank.values.shape[1]} and {queries.values.shape[1]} cannot be compared")
    classes, n = int(max(bank.labels.max(), queries.labels.max())) + 1, len(queries)
    predictions = torch.empty(len(votings), n, dtype=torch.int64)
    hits = torch.zeros(len(votings), 2, dtype=torch.float64)
    most = max(voting.k for voting in votings)
    for found in nearest(bank.values, queries.values, most, chunk=chunk, device=device):
        cosine, labels = found.cosine.cpu(), bank.labels[found.index.cpu()]
        for number, voting in enumerate(votings):
            votes = _votes(cosine[:, : voting.k], labels[:, : voting.k], classes, voting)
            predictions[number, found.part] = votes.argmax(dim=1)  # the first of equal ones
            hits[number] += torch.tensor(ranked_hits(votes, queries.labels[found.part]))
    shares = (hits / n).tolist()
    return [KNNResult(top1, top5, n, own) for (top1, top5), own in zip(shares, predictions, strict=True)]


def _votes(
    cosine: Float[Tensor, "q k"], labels: Int64[Tensor, "q k"], classes: int, voting: KNNSettings
) -> Float[Tensor, "q classes"]:
    """Votes for each class, minus infinity for a class that no neighbor has."""
    if voting.weights == "uniform":
        weights = torch.ones_like(cosine, dtype=torch.float64)
    else:  # relative to the nearest one, which changes no order: exp(1 / temperature) overflows for small temperatures
        weights = ((cosine - cosine[:, :1]).double() / voting.temperature).exp()
    votes = weights.new_zeros(len(cosine), classes).scatter_add_(1, labels, weights)
    has_vote = torch.zeros_like(votes, dtype=torch.bool).scatter_(1, labels, value=True)
    return votes.masked_fill_(~has_vote, -torch.inf)


@final
class KNN(Evaluation):
    """kNN over the features of all training images."""

    Settings = KNNSettings

    def __init__(self, settings: KNNSettings) -> None:
        self.settings = settings

    @property
    def summary(self) -> str:
        """As in `knn/1 k=20 T=0.07 cosine`."""
        return f"knn/1 {self.settings.name}"

    def measure(self, context: EvaluationContext) -> Scores:
        """Classify every test image; what the standard protocols give is among the details as `also`."""
        votings = list(dict.fromkeys((self.settings, *STANDARD)))
        results = dict(
            zip(votings, knn_by_each(context.train, context.test, votings, device=context.device), strict=True)
        )
        result, also = results[self.settings], {voting.name: results[voting].top1 for voting in STANDARD}
        values = accuracies(result.top1, result.top5, context.counts["classes"])
        hits = result.predictions == context.test.labels
        return Scores(values, context.counts, context.protocol, context.seen, {"also": also}, hits)
