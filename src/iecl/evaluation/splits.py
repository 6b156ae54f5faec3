"""Fixed parts of the training images: a hash of an image's name decides, so that anyone can draw them again.

An image is called by its path below the data's folder, or by its number in a named dataset. One more image
therefore moves hardly any other from one part to another, and unreadable files move none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from jaxtyping import Int64
from torch import Tensor

from iecl import counter
from iecl.data.source import Source, name_in

RULE = (
    "of each class the images with the lowest draws; a draw is counter.bits(key(seed, 'labels', try), hash), a hash "
    "is counter.key(0, 'picture NAME'), a name is the path below the data's folder or the number in a named set"
)
VALIDATION_SHARE = 0.1
"""Share of the training images that a hyper-parameter is chosen on."""


@dataclass(frozen=True)
class Budget:
    """How many labels there are: a number for each class, or a share of them."""

    shots: int = 0
    share: float = 0.0

    @property
    def name(self) -> str:
        """As in `5shot` or `10pct`."""
        return f"{self.shots}shot" if self.shots else f"{100 * self.share:g}pct"

    def counts(self, sizes: Int64[Tensor, " classes"]) -> Int64[Tensor, " classes"]:
        """Images to take of classes of these sizes: what there is of a small one, one at least of any.

        >>> Budget(shots=5).counts(torch.tensor([100, 3, 0])), Budget(share=0.1).counts(torch.tensor([100, 3, 0]))
        (tensor([5, 3, 0]), tensor([10,  1,  0]))
        """
        wanted = torch.full_like(sizes, self.shots) if self.shots else (sizes * self.share).round().long().clamp_min(1)
        return torch.minimum(wanted, sizes)

    def misfits(self, sizes: Int64[Tensor, " classes"]) -> int:
        """How many classes are too small for what was asked: fewer images than shots, a share of less than one."""
        is_small = sizes < self.shots if self.shots else (sizes * self.share).round() < 1
        return int((is_small & (sizes > 0)).sum())


def names_of(source: Source, index: Int64[Tensor, " n"]) -> list[str]:
    """What the images with these numbers are called, whatever folder the data were copied to.

    >>> from iecl.data.source import ArraySource
    >>> names_of(ArraySource("digits", torch.zeros(3, 3, 8, 8, dtype=torch.uint8)), torch.tensor([2, 0]))
    ['2', '0']
    """
    return [name_in(source, i) for i in index.tolist()]


def hashes_of(names: Iterable[str]) -> Int64[Tensor, " n"]:
    """64 bits for each name, always the same."""
    return torch.tensor([counter.key(0, f"picture {name}") for name in names], dtype=torch.int64)


def fingerprint(names: Iterable[str]) -> str:
    """Eight hexadecimal digits that change with any name, in whatever order the names come."""
    return blake2b("\n".join(sorted(names)).encode(errors="surrogateescape"), digest_size=4).hexdigest()


def labeled_part(
    labels: Int64[Tensor, " n"], hashes: Int64[Tensor, " n"], budget: Budget, seed: int, attempt: int = 0
) -> Int64[Tensor, " part"]:
    """Rows whose labels are known under a budget; a greater budget of the same kind holds those of a smaller one."""
    draws = counter.bits(counter.key(seed, "labels", attempt), hashes).squeeze(1)
    return _lowest(labels, draws, budget.counts(labels.bincount()))


def split_for_validation(labels: Int64[Tensor, " n"], hashes: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to choose by: a tenth of each class, one at least of a class of two or more."""
    sizes = labels.bincount()
    counts = torch.maximum((sizes * VALIDATION_SHARE).long(), (sizes - 1).clamp(0, 1))
    draws = counter.bits(counter.key(0, "probe/held out"), hashes).squeeze(1)
    chosen = _lowest(labels, draws, counts)
    is_kept = torch.ones(len(labels), dtype=torch.bool)
    is_kept[chosen] = False
    return is_kept.nonzero().squeeze(1), chosen


def _lowest(
    labels: Int64[Tensor, " n"], draws: Int64[Tensor, " n"], counts: Int64[Tensor, " classes"]
) -> Int64[Tensor, " part"]:
    """The rows with the lowest draws of each class, `counts` of them, in rising order."""
    order = draws.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, in the order of the draws
    own, sizes = labels[order], labels.bincount()
    place = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[own]
    return order[place < counts[own]].sort().values


def published(names: Sequence[str], parts: Sequence[Int64[Tensor, " part"]]) -> list[list[str]]:
    """The names of the images of each part: what others need to measure on the same ones."""
    return [[names[row] for row in part.tolist()] for part in parts]
