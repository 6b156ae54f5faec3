"""Entropies of embeddings that never fit in memory at once, and of those that several processes hold.

Each meter has `update` for a batch of rows, `merge` for what another meter has seen, and `value`. In whatever order and
however split the rows come, the value is that of the estimator on all of them: moments add up (in float64, by Chan's
formula), and a sample is chosen by counter from the numbers of the rows, not from the order in which they came.
"""

from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iecl import counter, parallel
from iecl.errors import UserError
from iecl.estimators import ENTROPIES
from iecl.estimators.gaussian import gaussian_entropy, shrunk
from iecl.estimators.spectrum import SMALLEST

MOMENTS = (*(name for name, entry in ENTROPIES.items() if entry.is_of_moments), "von-neumann", "effective-rank")
"""Entropies that are functions of the count, the mean and the covariance of the rows: exact on any number of rows."""
SAMPLED = tuple(name for name, entry in ENTROPIES.items() if not entry.is_of_moments)
"""Entropies that compare pairs of rows: exact up to the capacity of the sample, and of a random sample above it."""


@final
class Moments:
    """Count, mean and scatter of rows in float64.

    >>> left, right = Moments(2), Moments(2)
    >>> left.update(torch.tensor([[0.0, 0], [2, 2]]))
    >>> right.update(torch.tensor([[4.0, 1]]))
    >>> left.merge(right)
    >>> left.count, left.mean.tolist()
    (3, [2.0, 1.0])
    """

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64)

    @torch.no_grad()
    def update(self, z: Float[Tensor, "batch dim"]) -> None:
        """Take in a batch."""
        own = Moments(len(self.mean))
        if z.ndim != 2 or z.shape[1] != len(self.mean):
            raise UserError(
                f"this meter takes rows of width {len(self.mean)}",
                where=f"embeddings of shape {tuple(z.shape)}",
                do="build it for another width",
            )
        if len(z) == 0:
            return
        rows = z.detach().to("cpu", torch.float64)
        own.count, own.mean = len(rows), rows.mean(0)
        centered = rows - own.mean
        own.scatter = centered.T @ centered
        self.merge(own)

    def merge(self, other: "Moments") -> None:
        """Take in what another meter has seen (Chan et al. 1983)."""
        count = self.count + other.count
        if other.count == 0:
            return
        shift = other.mean - self.mean
        self.scatter = self.scatter + other.scatter + torch.outer(shift, shift) * (self.count * other.count / count)
        self.mean = self.mean + shift * (other.count / count)
        self.count = count

    def second(self) -> Float[Tensor, "dim dim"]:
        """z'z: the scatter about 0 instead of the mean."""
        return self.scatter + self.count * torch.outer(self.mean, self.mean)


@final
class StreamedMoments:
    """One of the entropies `MOMENTS`, accumulated; equal to the estimator on all rows.

    Scale, bias and collapse are those of the estimator of the same name in `iecl.entropy`.
    Cost: batch dim^2 for an update, dim^2 numbers of memory, dim^3 for the value.

    >>> meter = StreamedMoments("coding-rate", dim=4, epsilon_squared=0.5)
    >>> for row in torch.eye(4):
    ...     meter.update(row[None])
    >>> round(meter.value().item(), 6)     # 2 log 3
    2.197225
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        shrinkage: float = 0.1,
        floor: float = 1e-6,
        epsilon_squared: float = 0.25,
        order: float = 2.0,
    ) -> None:
        """Measure `name`; the other arguments are those of its estimator."""
        if name not in MOMENTS:
            raise UserError(f"{name!r} is no function of moments", where="name", do=f"one of: {', '.join(MOMENTS)}")
        self.name, self.moments = name, Moments(dim)
        self.shrinkage, self.floor, self.epsilon_squared, self.order = shrinkage, floor, epsilon_squared, order

    def update(self, z: Float[Tensor, "batch dim"], positions: Int[Tensor, " batch"] | None = None) -> None:
        """Take in a batch of rows; moments do not ask for their numbers, and count a repeated row again."""
        self.moments.update(z)

    def merge(self, other: Self) -> None:
        """Take in what another meter of the same kind has seen."""
        _check_same(self.name, other.name)
        self.moments.merge(other.moments)

    def merge_processes(self) -> None:
        """Take in what the meters of all other processes have seen; every process must call it."""
        for rank, other in enumerate(parallel.gather_objects(self.moments)):
            if rank != parallel.rank():
                self.moments.merge(other)

    def value(self) -> Float[Tensor, ""]:
        """The entropy of all rows so far, in nats; the effective rank as a number of directions."""
        seen, dim = self.moments, len(self.moments.mean)
        if seen.count < 2:
            raise UserError(f"{self.name} needs at least 2 rows", where=f"{seen.count} rows so far")
        if self.name == "gaussian-logdet":
            return gaussian_entropy(shrunk(seen.scatter / (seen.count - 1), seen.count, self.shrinkage, self.floor))
        if self.name == "coding-rate":
            factor = dim / (seen.count * self.epsilon_squared)
            log_det: Tensor = torch.linalg.slogdet(torch.eye(dim).double() + factor * seen.second()).logabsdet
            return log_det / 2
        shares = self._shares()
        order = self.order if self.name == "renyi" else 1.0
        if order != 1:
            return shares.pow(order).sum().log() / (1 - order)
        spread = -(shares * shares.log()).sum()
        return spread.exp() if self.name == "effective-rank" else spread

    def _shares(self) -> Float[Tensor, " shares"]:
        """Share of each direction in the squared norm; as many as rows or columns, whichever are fewer."""
        second = self.moments.second()
        shares = torch.linalg.eigvalsh(second / second.trace().clamp_min(1e-24))
        kept: Tensor = shares[-min(self.moments.count, len(shares)) :]
        return torch.cat([kept, kept.new_zeros(1)]).clamp_min(SMALLEST)  # last, as in `spectrum`, what is missing to 1


@final
class StreamedSample:
    """One of the entropies `SAMPLED`, of at most `capacity` rows that a counter chooses by their numbers.

    Up to `capacity` rows the value is that of the estimator on all of them; above, on a uniform sample that depends on
    the seed and the rows' numbers alone. A number counts once: a row that a sampler repeats to fill a batch does no
    harm.

    Scale and bias: those of the estimator, at `capacity` rows; entropies from neighbors depend on that number.
    Cost: batch log capacity for an update, capacity dim numbers of memory, capacity^2 dim for the value.

    >>> meter = StreamedSample("uniformity", capacity=8)
    >>> for number, row in enumerate(torch.eye(4)):
    ...     meter.update(row[None], torch.tensor([number]))
    >>> round(meter.value().item(), 6)
    4.0
    """

    def __init__(self, name: str, *, capacity: int = 4096, seed: int = 0) -> None:
        if name not in SAMPLED:
            raise UserError(f"{name!r} is not measured on a sample", where="name", do=f"one of: {', '.join(SAMPLED)}")
        self.name, self.capacity, self.key = name, capacity, counter.key(seed, "entropy sample")
        self.estimator = ENTROPIES[name].load()
        self.rows: Tensor | None = None
        self.positions = torch.zeros(0, dtype=torch.long)

    @torch.no_grad()
    def update(self, z: Float[Tensor, "batch dim"], positions: Int[Tensor, " batch"]) -> None:
        """Take in a batch of rows with their numbers in the dataset."""
        self._take(z.detach().to("cpu", torch.float64), positions.detach().cpu().long())

    def merge(self, other: Self) -> None:
        """Take in what another meter of the same kind, capacity and seed has seen."""
        _check_same((self.name, self.capacity, self.key), (other.name, other.capacity, other.key))
        if other.rows is not None:
            self._take(other.rows, other.positions)

    def merge_processes(self) -> None:
        """Take in what the meters of all other processes have seen; every process must call it."""
        for rows, positions in parallel.gather_objects((self.rows, self.positions)):
            if rows is not None:
                self._take(rows, positions)

    def value(self) -> Float[Tensor, ""]:
        """The entropy of the rows that were kept, in nats."""
        if self.rows is None:
            raise UserError(f"{self.name} needs at least 2 rows", where="0 rows so far")
        found: Tensor = self.estimator(self.rows)
        return found

    def _take(self, rows: Tensor, positions: Tensor) -> None:
        if self.rows is not None:
            rows, positions = torch.cat([self.rows, rows]), torch.cat([self.positions, positions])
        # The rows whose numbers hash lowest: the same ones whatever came first. Ties in the hash go by number.
        positions, first = _distinct(positions)
        order = counter.bits(self.key, positions).squeeze(1).argsort(stable=True)[: self.capacity]
        kept = order.sort().values  # by number, so that sums are added in one order
        self.rows, self.positions = rows[first[kept]], positions[kept]


def _distinct(positions: Tensor) -> tuple[Tensor, Tensor]:
    """The different numbers in rising order, and where each stands first."""
    order = positions.argsort(stable=True)
    ordered = positions[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first], order[is_first]


def _check_same(own: object, other: object) -> None:
    if own != other:
        raise UserError(
            f"a meter of {own} cannot take in one of {other}", where="merge", do="build both with the same arguments"
        )
