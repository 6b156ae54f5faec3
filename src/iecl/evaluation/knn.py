"""Weighted cosine kNN: the nearest training images vote, with weight exp(cosine / temperature) (Wu et al. 2018)."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from iecl.errors import UserError
from iecl.evaluation.bench import Bench
from iecl.evaluation.contract import Evaluation, Scores, ranked_hits
from iecl.evaluation.features import Features
from iecl.settings import setting

QUERIES, BANK = 512, 16384
"""Rows of either side in one tile of cosines, which takes 32 MB however many images there are."""


@dataclass(frozen=True, kw_only=True)
class KNNSettings:
    """How neighbours vote."""

    k: int = setting(20, "neighbours that vote", low=1)
    temperature: float = setting(0.07, "a vote weighs exp(cosine / temperature)", above=0)


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
        bank: labelled features that vote.
        queries: labelled features to classify.
        k: neighbours that vote.
        temperature: a vote weighs exp(cosine / temperature).
        chunk: rows of queries and of the bank that are compared at once.
        device: where to compare.

    Raises:
        UserError: labels are missing, a feature is not finite, or the two have features of different lengths.
    """
    bank, queries = bank.labelled("train"), queries.labelled("test")
    if bank.values.shape[1] != queries.values.shape[1]:
        raise UserError(f"features of length {bank.values.shape[1]} and {queries.values.shape[1]} cannot be compared")
    classes = int(max(bank.labels.max(), queries.labels.max())) + 1
    rows = normalize(bank.values, dim=1).to(device)
    predictions = torch.empty(len(queries), dtype=torch.int64)
    hits1 = hits5 = 0
    for start in range(0, len(queries), chunk[0]):
        part = slice(start, start + chunk[0])
        cosine, index = _nearest(normalize(queries.values[part], dim=1).to(device), rows, k, chunk[1])
        votes = _votes(cosine.cpu(), bank.labels[index.cpu()], classes, temperature)
        predictions[part] = votes.argmax(dim=1)  # the first of equal ones
        first, five = ranked_hits(votes, queries.labels[part])
        hits1, hits5 = hits1 + first, hits5 + five
    n = len(queries)
    return KNNResult(top1=hits1 / n, top5=hits5 / n, n=n, predictions=predictions)


def _nearest(
    queries: Float[Tensor, "q width"], bank: Float[Tensor, "n width"], k: int, chunk: int
) -> tuple[Float[Tensor, "q k"], Int64[Tensor, "q k"]]:
    """Cosines and numbers of the k nearest rows: the best so far, challenged by one part of the bank after another."""
    best, index = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64).to(bank.device)
    for start in range(0, len(bank), chunk):
        cosine = queries @ bank[start : start + chunk].T
        found = _top(cosine, k)
        best = torch.cat([best, cosine.gather(1, found)], dim=1)
        index = torch.cat([index, found + start], dim=1)  # earlier rows stay on the left: they win ties
        kept = _top(best, k)
        best, index = best.gather(1, kept), index.gather(1, kept)
    return best, index


def _top(scores: Float[Tensor, "q n"], k: int) -> Int64[Tensor, "q k"]:
    """Columns of the k greatest scores from left to right, of equal scores the leftmost."""
    if k >= scores.shape[1]:
        return torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    values, columns = scores.topk(k)
    # topk takes any of several equal scores. That matters only where the last of the k is equal to one left out.
    (tied,) = ((scores >= values[:, -1:]).sum(dim=1) > k).nonzero(as_tuple=True)
    if len(tied):
        columns[tied] = scores[tied].argsort(dim=1, descending=True, stable=True)[:, :k]
    return columns.sort(dim=1).values


def _votes(
    cosine: Float[Tensor, "q k"], labels: Int64[Tensor, "q k"], classes: int, temperature: float
) -> Float[Tensor, "q classes"]:
    """Votes for each class, minus infinity for a class that no neighbour has."""
    # Relative to the nearest neighbour, which changes no order: exp(1 / temperature) would overflow for small ones.
    weights = ((cosine - cosine.amax(dim=1, keepdim=True)).double() / temperature).exp()
    votes = weights.new_zeros(len(cosine), classes).scatter_add_(1, labels, weights)
    has_vote = torch.zeros_like(votes, dtype=torch.bool).scatter_(1, labels, value=True)
    return votes.masked_fill_(~has_vote, -torch.inf)


@final
class KNN(Evaluation):
    """Weighted kNN over the features of all training pictures."""

    Settings = KNNSettings

    def __init__(self, settings: KNNSettings) -> None:
        self.settings = settings

    @property
    def summary(self) -> str:
        """As in `knn/1 k=20 T=0.07 cosine`."""
        return f"knn/1 k={self.settings.k} T={self.settings.temperature:g} cosine"

    def measure(self, bench: Bench) -> Scores:
        """Classify every test picture."""
        result = knn(bench.train, bench.test, self.settings.k, self.settings.temperature, device=bench.device)
        return Scores({"top1": result.top1, "top5": result.top5}, bench.counts, bench.protocol, bench.seen)
