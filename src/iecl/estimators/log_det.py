"""Log-determinants of matrices too large to write down: the dual form of tied maps, and Lanczos quadrature.

A matrix is given by what it does to a vector, for a batch of matrices at once: `times` takes and returns rows of shape
(batch, dim). Probes are random signs drawn by counter, so that the same seed gives the same estimate anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iecl import counter
from iecl.errors import UserError
from iecl.estimators.precision import full_precision

Times = Callable[[Tensor], Tensor]
"""What a symmetric matrix does to each row of (batch, dim)."""


@dataclass(frozen=True)
class LogDet:
    """An estimate of a log-determinant for each matrix of a batch, in nats, and how far it may be off."""

    value: Float[Tensor, " batch"]
    standard_error: Float[Tensor, " batch"]
    """Deviation of the mean over probes; 0 where the value is exact, NaN for a single probe."""
    truncation: Float[Tensor, " batch"]
    """What the last step of Lanczos changed: an upper estimate of the quadrature's own, one-sided error."""


@dataclass(frozen=True)
class Tridiagonal:
    """A symmetric matrix seen from a start vector: A basis = basis T + a rest, T tridiagonal."""

    matrix: Float[Tensor, "batch steps steps"]
    basis: Float[Tensor, "batch steps dim"]
    length: Float[Tensor, " batch"]
    """Of the start vector."""
    residual: Float[Tensor, " batch"]
    """Length of the rest: 0 when the steps have seen all that the start vector can see."""

    def quadrature(self, steps: int | None = None) -> Float[Tensor, " batch"]:
        """Of start' log(A) start: Gauss's rule with the eigenvalues of T as nodes. Never too low, never NaN."""
        part = self.matrix if steps is None else self.matrix[:, :steps, :steps]
        nodes, vectors = torch.linalg.eigh(part)
        logs = nodes.clamp_min(torch.finfo(nodes.dtype).tiny).log()
        found: Tensor = self.length.square() * (vectors[:, 0].square() * logs).sum(1)
        return found

    def solution(self) -> Float[Tensor, "batch dim"]:
        """Of A y = start, as conjugate gradients would have it after as many steps."""
        first = torch.zeros_like(self.matrix[:, :, :1])
        first[:, 0] = 1
        weights = torch.linalg.solve(self.matrix, first).squeeze(2) * self.length[:, None]
        return torch.bmm(weights[:, None], self.basis)[:, 0]


@full_precision
def dual_log_det(
    weight: Float[Tensor, "units width"], slopes: Float[Tensor, "*batch units"]
) -> Float[Tensor, "*batch"]:
    """Log-determinant of I + W' D W for each row of slopes D >= 0, from the smaller of the two sides; exact.

    det(I + W' D W) = det(I + D W W'), which needs no root of D and so has a gradient at slopes of 0 too.

    Cost: for each row the smaller side cubed.

    >>> weight = torch.tensor([[1.0, 0], [1, 1], [0, 2]])
    >>> slopes = torch.tensor([1.0, 2, 3])     # the whole is [[4, 2], [2, 15]]
    >>> whole = torch.eye(2) + weight.T @ torch.diag(slopes) @ weight
    >>> round(dual_log_det(weight, slopes).item(), 5), round(whole.logdet().item(), 5)
    (4.02535, 4.02535)
    """
    units, width = weight.shape
    column = slopes[..., :, None]
    inner = column * (weight @ weight.T) if units <= width else weight.T @ (column * weight)
    identity = torch.eye(min(units, width), dtype=inner.dtype, device=inner.device)
    log_det: Tensor = torch.linalg.slogdet(identity + inner).logabsdet
    return log_det


@torch.no_grad()
def lanczos(times: Times, start: Float[Tensor, "batch dim"], steps: int) -> Tridiagonal:
    """`steps` steps of Lanczos from `start`, with every new vector made orthogonal to all before.

    A row whose start sees only a part of its matrix runs out of directions early; it goes on with zero vectors and
    with its first entry of T, which lies inside the spectrum and changes none of the results.

    Cost: `steps` products with the matrix, and batch dim steps^2.
    """
    length = start.norm(dim=1)
    vector = start / length[:, None].clamp_min(1e-30)
    steps = min(steps, start.shape[1])
    matrix = start.new_zeros(len(start), steps, steps)
    basis = start.new_zeros(len(start), steps, start.shape[1])
    residual, has_ended = torch.zeros_like(length), length == 0
    for step in range(steps):
        basis[:, step] = vector
        before, rest = basis[:, : step + 1], times(vector)
        size = rest.norm(dim=1)
        along = torch.bmm(before, rest[:, :, None])
        matrix[:, step, step] = torch.where(has_ended, matrix[:, 0, 0] if step else 1.0, along[:, -1, 0])
        rest = rest - torch.bmm(along.mT, before)[:, 0]
        # Twice: once leaves an error that grows at each step by what was taken away over what is left, and in 32 bits
        # twenty steps are enough to lose every digit.
        rest = rest - torch.bmm(torch.bmm(before, rest[:, :, None]).mT, before)[:, 0]
        residual = rest.norm(dim=1)
        has_ended = residual <= 100 * torch.finfo(start.dtype).eps * size
        residual = torch.where(has_ended, 0.0, residual)
        vector = rest * torch.where(has_ended, 0.0, 1 / residual.clamp_min(1e-30))[:, None]
        if step + 1 < steps:
            matrix[:, step, step + 1] = matrix[:, step + 1, step] = residual
    return Tridiagonal(matrix, basis, length, residual)


def random_signs(seed: int, probe: int, like: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """A vector of plus and minus ones for each matrix of a batch; products of two entries are 0 on average."""
    batch, dim = like.shape
    drawn = counter.bits(counter.key(seed, "log-det probe", probe), torch.arange(batch, device=like.device), dim)
    return torch.where(drawn < 0, -1.0, 1.0).to(like.dtype)


@torch.no_grad()
def stochastic_log_det(
    times: Times, like: Float[Tensor, "batch dim"], *, probes: int = 4, steps: int = 20, seed: int = 0
) -> LogDet:
    """Log-determinant of symmetric positive matrices: mean of z' log(A) z over random signs z, by Lanczos quadrature.

    Bias: only the quadrature's, never downwards: with condition number k the error falls as
    ((sqrt k - 1) / (sqrt k + 1))^(2 steps), and `truncation` says what the last step changed.
    Standard error: falls as 1 / sqrt(probes), per dimension also as 1 / sqrt(dim). Exact for diagonal matrices.
    Cost: probes x steps products with the matrix.

    >>> matrix = torch.diag(torch.tensor([1.0, 2, 4], dtype=torch.float64))
    >>> found = stochastic_log_det(lambda v: v @ matrix, torch.zeros(1, 3, dtype=torch.float64), probes=2)
    >>> round(found.value.item(), 6), round(found.standard_error.item(), 6)     # log 8
    (2.079442, 0.0)

    Raises:
        UserError: for less than one probe or two steps.
    """
    check_effort(probes, steps)
    values, changes = [], []
    for probe in range(probes):
        seen = lanczos(times, random_signs(seed, probe, like), steps)
        values.append(seen.quadrature())
        changes.append((values[-1] - seen.quadrature(max(1, seen.basis.shape[1] - 1))).abs())
    return mean_of_probes(torch.stack(values), torch.stack(changes))


def mean_of_probes(values: Float[Tensor, "probes batch"], changes: Float[Tensor, "probes batch"]) -> LogDet:
    """One estimate from those of several probes."""
    return LogDet(
        values.mean(0),
        values.std(0) / len(values) ** 0.5 if len(values) > 1 else values[0] * torch.nan,
        changes.mean(0),
    )


def check_effort(probes: int, steps: int) -> None:
    """Raise a `UserError` unless there is something to estimate from."""
    if probes < 1 or steps < 2:
        raise UserError(
            f"an estimate needs at least 1 probe and 2 steps, not {probes} and {steps}",
            where="probes, steps",
            do="try 4 and 20",
        )
