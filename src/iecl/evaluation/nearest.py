"""The exact nearest rows by cosine, in memory that does not grow with the number of queries."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

QUERIES, BANK = 256, 65536
"""Rows of either side in one tile of cosines, which takes 64 MB however many images there are."""
_GROUP = 16  # cosines that share one maximum, at most; larger groups leave more to look through


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of some queries, the nearest one first; of equally near rows the earlier one goes first."""

    part: slice
    """Which queries these are."""
    cosine: Float[Tensor, "q k"]
    index: Int64[Tensor, "q k"]
    """Rows of the bank."""


def nearest(
    bank: Float[Tensor, "n width"],
    queries: Float[Tensor, "m width"],
    k: int,
    *,
    chunk: tuple[int, int] = (QUERIES, BANK),
    device: torch.device | str = "cpu",
) -> Iterator[Neighbours]:
    """The k rows of the bank with the greatest cosine to each query, or all rows if there are fewer.

    >>> bank = torch.tensor([[1.0, 0], [0, 1], [3, 0]])
    >>> [found] = nearest(bank, torch.tensor([[2.0, 1]]), k=2)
    >>> found.index      # rows 0 and 2 point the same way
    tensor([[0, 2]])
    """
    rows = normalize(bank, dim=1).to(device)
    room = rows.new_empty(min(chunk[0], len(queries)) * min(chunk[1], len(rows)))  # one tile, used again and again
    for start in range(0, len(queries), chunk[0]):
        part = slice(start, min(start + chunk[0], len(queries)))
        asked = normalize(queries[part], dim=1).to(device)
        yield Neighbours(part, *_search(asked, rows, k, chunk[1], room))


def _search(
    queries: Float[Tensor, "q width"], bank: Float[Tensor, "n width"], k: int, step: int, room: Float[Tensor, " cells"]
) -> tuple[Float[Tensor, "q k"], Int64[Tensor, "q k"]]:
    """Cosines and numbers of the k nearest rows: the best so far, challenged by one part of the bank after another."""
    best, index = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64).to(bank.device)
    for start in range(0, len(bank), step):
        some = bank[start : start + step]
        cosine = room[: len(queries) * len(some)].view(len(queries), len(some))
        torch.mm(queries, some.T, out=cosine)
        found = top_columns(cosine, k)
        best = torch.cat([best, cosine.gather(1, found)], dim=1)
        index = torch.cat([index, found + start], dim=1)  # earlier rows stay on the left: they win ties
        kept = best.argsort(dim=1, descending=True, stable=True)[:, :k]
        best, index = best.gather(1, kept), index.gather(1, kept)
    return best, index


def top_columns(scores: Float[Tensor, "q n"], k: int) -> Int64[Tensor, "q k"]:
    """Columns of the k greatest scores from left to right, of equal scores the leftmost; all columns if k is greater.

    Columns are put into groups. A group that holds one of the k greatest scores is among the k groups with the greatest
    maxima, so that k + 1 groups hold all of them and, if there is one, a score equal to the last of them.

    >>> top_columns(torch.tensor([[1.0, 3, 2, 2, 0]]), k=2)
    tensor([[1, 2]])
    """
    count = scores.shape[1]
    if k >= count:
        return torch.arange(count, device=scores.device).expand(len(scores), -1)
    size = min(int((count / (k + 1)) ** 0.5), _GROUP)
    if size < 2:
        top = scores.topk(k + 1)
        values, columns = top.values, top.indices
    else:
        candidates = _candidates(scores, k + 1, size)
        top = scores.gather(1, candidates).topk(k + 1)
        values, columns = top.values, candidates.gather(1, top.indices)
    columns = columns[:, :k].contiguous()
    # topk takes any of several equal scores. That matters only where the last of the k is equal to the next one.
    (tied,) = (values[:, k - 1] == values[:, k]).nonzero(as_tuple=True)
    for row in tied.tolist():
        columns[row] = _leftmost(scores[row], float(values[row, k]), k)
    return columns.sort(dim=1).values


def _candidates(scores: Float[Tensor, "q n"], groups: int, size: int) -> Int64[Tensor, "q c"]:
    """All columns of the groups with the greatest maxima, and the few columns that are in no group."""
    count = scores.shape[1]
    stride = count // size  # a group is every stride-th column: maxima of whole stretches are quicker to take
    maxima = scores[:, : stride * size].view(-1, size, stride).amax(dim=1)
    chosen = maxima.topk(groups, sorted=False).indices
    members = torch.arange(0, stride * size, stride, device=scores.device)
    grouped = (chosen[:, None, :] + members[:, None]).flatten(1)
    rest = torch.arange(stride * size, count, device=scores.device).expand(len(scores), -1)
    return torch.cat([grouped, rest], dim=1)


def _leftmost(scores: Float[Tensor, " n"], last: float, k: int) -> Int64[Tensor, " k"]:
    """Columns of the scores above the k-th one, filled up with the leftmost of those equal to it."""
    (above,) = (scores > last).nonzero(as_tuple=True)
    (equal,) = (scores == last).nonzero(as_tuple=True)
    return torch.cat([above, equal[: k - len(above)]])
