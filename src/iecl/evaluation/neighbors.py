"""The exact nearest rows by cosine, in memory that does not grow with the number of queries."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from iecl.compiled import Loops, loops, share_out

QUERIES, BANK = 256, 65536
"""Rows of either side in one tile of cosines, which takes 64 MB however many images there are."""
_GROUP = 16  # cosines that share one maximum, at most; larger groups leave more to look through


@dataclass(frozen=True)
class Neighbors:
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
) -> Iterator[Neighbors]:
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
        yield Neighbors(part, *_search(asked, rows, k, chunk[1], room))


def _search(
    queries: Float[Tensor, "q width"], bank: Float[Tensor, "n width"], k: int, step: int, room: Float[Tensor, " cells"]
) -> tuple[Float[Tensor, "q k"], Int64[Tensor, "q k"]]:
    """Cosines and numbers of the k nearest rows: the best so far, challenged by one part of the bank after another."""
    for start in range(0, len(bank), step):
        some = bank[start : start + step]
        cosine = room[: len(queries) * len(some)].view(len(queries), len(some))
        torch.mm(queries, some.T, out=cosine)
        values, columns = top_columns(cosine, k)
        if not start:
            best, index = values, columns
            continue
        best, index = torch.cat([best, values], dim=1), torch.cat([index, columns + start], dim=1)
        kept = best.argsort(dim=1, descending=True, stable=True)[:, :k]  # earlier rows are on the left: they win ties
        best, index = best.gather(1, kept), index.gather(1, kept)
    return best, index


def top_columns(scores: Float[Tensor, "q n"], k: int) -> tuple[Float[Tensor, "q k"], Int64[Tensor, "q k"]]:
    """The k greatest scores and their columns, the greatest first, of equal ones the leftmost; all if k is greater.

    >>> top_columns(torch.tensor([[1.0, 3, 2, 2, 0]]), k=2)
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    if k >= scores.shape[1]:
        columns = scores.argsort(dim=1, descending=True, stable=True)
        return scores.gather(1, columns), columns
    is_plain = scores.device.type == "cpu" and scores.dtype == torch.float32
    select = loops("iecl.evaluation.top_k", "neighbors are found") if is_plain else None
    return top_by_tensors(scores, k) if select is None else _top_natively(select, scores, k)


def _top_natively(
    select: Loops, scores: Float[Tensor, "q n"], k: int
) -> tuple[Float[Tensor, "q k"], Int64[Tensor, "q k"]]:
    """With as many threads as torch uses. Larger groups have fewer maxima, of which one is chosen, and more members."""
    rows, count = scores.shape
    values, columns = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
    size = max(1, min(int((3 * count / k) ** 0.5), count // k))
    work = partial(
        select,
        count=count,
        size=size,
        scores=scores.contiguous().view(-1).numpy(),
        values=values.numpy(),
        columns=columns.numpy(),
    )
    share_out(work, rows, torch.get_num_threads())
    return values, columns


def top_by_tensors(scores: Float[Tensor, "q n"], k: int) -> tuple[Float[Tensor, "q k"], Int64[Tensor, "q k"]]:
    """`top_columns` by tensor operations, on any device, for fewer than all columns.

    Columns are put into groups. A group that holds one of the k greatest scores is among the k groups with the greatest
    maxima, so that k + 1 groups hold all of them and, if there is one, a score equal to the last of them.
    """
    size = min(int((scores.shape[1] / (k + 1)) ** 0.5), _GROUP)
    if size < 2:
        values, columns = scores.topk(k + 1)
    else:
        candidates = _candidates(scores, k + 1, size)
        values, places = scores.gather(1, candidates).topk(k + 1)
        columns = candidates.gather(1, places)
    # topk takes equal scores in any order, and any of those equal to the last one.
    (tied,) = (values[:, 1:] == values[:, :-1]).any(dim=1).nonzero(as_tuple=True)
    for row in tied.tolist():
        columns[row, :k] = _leftmost(scores[row], float(values[row, k - 1]), k)
    return values[:, :k], columns[:, :k]


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
    """Columns of the k greatest scores, of which `last` is the last, with equal ones from left to right."""
    (above,) = (scores > last).nonzero(as_tuple=True)
    (equal,) = (scores == last).nonzero(as_tuple=True)
    return torch.cat([above[scores[above].argsort(descending=True, stable=True)], equal[: k - len(above)]])
