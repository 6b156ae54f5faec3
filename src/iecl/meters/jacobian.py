"""What a map does to volume: its Jacobian written out, or known by its products with vectors.

A map takes images of shape (n, ...). If it treats each of them alone, its Jacobian is one matrix for each image. A
map that mixes the images of a batch (the printed block, or batch norm in training) has one Jacobian for the whole
batch: give `is_mixing=True`, and the batch counts as one point. Maps are called once, as they are; of a module all
buffers are copied first, so that looking changes nothing. Arithmetic is that of the images: give a float64 map and
float64 images where digits matter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl.errors import UserError
from iecl.estimators.log_det import LogDet, lanczos, random_signs, stochastic_log_det
from iecl.estimators.precision import full_precision

Map = Callable[[Tensor], Tensor]


@final
class Linearised:
    """A map at given images: products with its Jacobian and its transpose, from one forward pass.

    >>> seen = Linearised(lambda x: x**2, torch.tensor([[1.0, 3.0]]))
    >>> seen.push(torch.ones(1, 2)), seen.pull(torch.ones(1, 2))
    (tensor([[2., 6.]]), tensor([[2., 6.]]))
    """

    def __init__(self, f: Map, x: Float[Tensor, "n ..."], *, is_mixing: bool = False) -> None:
        with torch.enable_grad():
            self.x = x.detach().clone().requires_grad_()
            self.y = _call(f, self.x)
            self._weights = torch.zeros_like(self.y).requires_grad_()
            # The pull-back is linear in its weights, so its own derivative by them is the push-forward.
            (self._pulled,) = torch.autograd.grad(
                self.y, self.x, self._weights, create_graph=True, materialize_grads=True
            )
        self.points = 1 if is_mixing else len(x)
        self.inputs, self.outputs = self.x.numel() // self.points, self.y.numel() // self.points

    def push(self, v: Float[Tensor, "points inputs"]) -> Float[Tensor, "points outputs"]:
        """J v for the Jacobian of each point."""
        if not self._pulled.requires_grad:
            return v.new_zeros(self.points, self.outputs)
        (pushed,) = torch.autograd.grad(
            self._pulled, self._weights, v.reshape(self.x.shape), retain_graph=True, materialize_grads=True
        )
        return pushed.reshape(self.points, self.outputs)

    def pull(self, u: Float[Tensor, "points outputs"]) -> Float[Tensor, "points inputs"]:
        """J' u for the Jacobian of each point."""
        (pulled,) = torch.autograd.grad(
            self.y, self.x, u.reshape(self.y.shape), retain_graph=True, materialize_grads=True
        )
        return pulled.reshape(self.points, self.inputs)

    def rows(self, chunk: int = 128) -> Float[Tensor, "points outputs inputs"]:
        """The whole Jacobian of each point, `chunk` rows at a time."""
        found = []
        for first in range(0, self.outputs, chunk):
            own = torch.arange(first, min(first + chunk, self.outputs), device=self.x.device)
            basis = self.y.new_zeros(len(own), self.points, self.outputs)
            basis[torch.arange(len(own)), :, own] = 1
            (part,) = torch.autograd.grad(
                self.y,
                self.x,
                basis.reshape(-1, *self.y.shape),
                retain_graph=True,
                is_grads_batched=True,
                materialize_grads=True,
            )
            found.append(part.reshape(len(own), self.points, self.inputs).transpose(0, 1))
        return torch.cat(found, 1)


def _call(f: Map, x: Tensor) -> Tensor:
    """What `f` makes of `x`; a module works on copies of its buffers."""
    if isinstance(f, nn.Module):
        buffers = {name: value.clone() for name, value in f.named_buffers()}
        made: Tensor = torch.func.functional_call(f, buffers, (x,))
        return made
    return f(x)


@torch.no_grad()
@full_precision
def jacobian(
    f: Map, x: Float[Tensor, "n ..."], *, is_mixing: bool = False, chunk: int = 128
) -> Float[Tensor, "points outputs inputs"]:
    """The Jacobian of `f` at each image, written out.

    Cost: one backward pass for each output, `chunk` of them at a time; outputs x inputs numbers for each image. A
    image of 3×32×32 under a map to its own size takes 75 MB in float64, one of 3×224×224 does not fit.

    >>> jacobian(lambda x: x.cumsum(1), torch.zeros(1, 2))
    tensor([[[1., 0.],
             [1., 1.]]])
    """
    return Linearised(f, x, is_mixing=is_mixing).rows(chunk)


@torch.no_grad()
def log_abs_det(f: Map, x: Float[Tensor, "n ..."], *, is_mixing: bool = False) -> Float[Tensor, " points"]:
    """Log of |det J| of a map to images of the same size, exact, in nats: the change of entropy at each image.

    Scale: c f has inputs x log c more. Bias: none. Cost: that of `jacobian`, and inputs^3.

    >>> round(log_abs_det(lambda x: 2 * x, torch.zeros(1, 3)).item(), 6)     # 3 log 2
    2.079442

    Raises:
        UserError: unless the map keeps the size.
    """
    matrix = jacobian(f, x, is_mixing=is_mixing)
    check_square(matrix.shape[1], matrix.shape[2])
    found: Tensor = torch.linalg.slogdet(matrix).logabsdet
    return found


@torch.no_grad()
def singular_values(f: Map, x: Float[Tensor, "n ..."], *, is_mixing: bool = False) -> Float[Tensor, "points values"]:
    """All singular values of the Jacobian at each image, largest first; exact, for small images.

    >>> singular_values(lambda x: x * torch.tensor([0.5, 3.0]), torch.ones(1, 2))
    tensor([[3.0000, 0.5000]])
    """
    found: Tensor = torch.linalg.svdvals(jacobian(f, x, is_mixing=is_mixing))
    return found


def stochastic_log_abs_det(
    f: Map, x: Float[Tensor, "n ..."], *, probes: int = 4, steps: int = 30, seed: int = 0, is_mixing: bool = False
) -> LogDet:
    """Log of |det J| = 1/2 tr log(J'J) by random signs and Lanczos: for images whose Jacobian cannot be written down.

    Bias: upwards, by the quadrature; negligible where the singular values lie within a factor of ten or so, visible
    where some are near 0 (`truncation` then is large). Standard error: given, falls as 1 / sqrt(probes).
    Cost: probes x steps pushes and pulls, about four forward passes of `f` each.

    >>> found = stochastic_log_abs_det(lambda x: -2 * x, torch.zeros(1, 8))
    >>> round(found.value.item(), 4), found.truncation.item()     # 8 log 2
    (5.5452, 0.0)
    """
    return log_det_of(Linearised(f, x, is_mixing=is_mixing), probes, steps, seed)


def log_det_of(seen: Linearised, probes: int, steps: int, seed: int) -> LogDet:
    """`stochastic_log_abs_det` of a map that has been called already."""
    check_square(seen.outputs, seen.inputs)
    like = seen.x.detach().new_zeros(seen.points, seen.inputs)
    found = stochastic_log_det(lambda v: seen.pull(seen.push(v)), like, probes=probes, steps=steps, seed=seed)
    return LogDet(found.value / 2, found.standard_error / 2, found.truncation / 2)


@dataclass(frozen=True)
class SingularRange:
    """Smallest and largest singular value of the Jacobian at each image, and how well each is known."""

    smallest: Float[Tensor, " points"]
    largest: Float[Tensor, " points"]
    tolerance: Float[Tensor, "points 2"]
    """Some singular value lies within this of `smallest`, and one within this of `largest`."""


def singular_range(
    f: Map, x: Float[Tensor, "n ..."], *, steps: int = 60, seed: int = 0, is_mixing: bool = False
) -> SingularRange:
    """The ends of the spectrum by Lanczos on J'J (or J J', whichever is smaller).

    The values lie inside the spectrum: `smallest` is never too small and `largest` never too large. Each is within its
    `tolerance` of a singular value; that it is the last one is likely after enough steps and not proved. With as many
    steps as the smaller side they are exact.
    Cost: `steps` pushes and pulls.

    >>> found = singular_range(lambda x: x * torch.tensor([3.0, 0.5, 1]), torch.ones(1, 3))
    >>> round(found.smallest.item(), 4), round(found.largest.item(), 4)
    (0.5, 3.0)
    """
    seen = Linearised(f, x, is_mixing=is_mixing)
    is_wide = seen.outputs < seen.inputs
    like = x.new_zeros(seen.points, min(seen.outputs, seen.inputs))

    def times(v: Tensor) -> Tensor:
        return seen.push(seen.pull(v)) if is_wide else seen.pull(seen.push(v))

    made = lanczos(times, random_signs(seed, 0, like), steps)
    nodes, vectors = torch.linalg.eigh(made.matrix)
    ends = nodes[:, [0, -1]].clamp_min(0).sqrt()
    # |A y - node y| is the residual times the last entry of T's eigenvector; |s² - e²| <= r gives |s - e| <= r / e.
    distance = made.residual[:, None] * vectors[:, -1, [0, -1]].abs()
    tolerance = torch.minimum(distance / ends.clamp_min(1e-30), distance.sqrt())
    return SingularRange(ends[:, 0], ends[:, 1], tolerance)


@dataclass(frozen=True)
class LogVolume:
    """How an encoder that changes the dimension changes volume, at each image."""

    value: Float[Tensor, " points"]
    """Sum of the logarithms of the singular values that are not 0, in nats."""
    rank: Float[Tensor, " points"]
    """How many there are."""


@torch.no_grad()
def log_volume(f: Map, x: Float[Tensor, "n ..."], *, is_mixing: bool = False, tolerance: float = 1e-7) -> LogVolume:
    """Log pseudo-determinant of the Jacobian at each image, through the Gram matrix of its smaller side.

    The volume that a small ball of directions keeps after the encoder, in its image. Directions with a singular value
    below `tolerance` times the largest count as destroyed: they lower `rank` and are left out of `value`, so compare
    values of equal rank only.

    Scale: c f has rank x log c more. Bias: none. Cost: a backward pass for each output, outputs^2 inputs, outputs^3.

    >>> weight = torch.tensor([[3.0, 0, 4], [0, 2, 0]])
    >>> found = log_volume(lambda x: x @ weight.T, torch.zeros(1, 3))
    >>> round(found.value.item(), 6), int(found.rank)     # log(5 · 2)
    (2.302585, 2)
    """
    matrix = jacobian(f, x, is_mixing=is_mixing).double()
    gram = matrix @ matrix.mT if matrix.shape[1] <= matrix.shape[2] else matrix.mT @ matrix
    squares = torch.linalg.eigvalsh(gram)
    # Squaring halves the digits: below 1e-7 of the largest a singular value cannot be told from rounding.
    is_kept = squares > max(tolerance, 1e-7) ** 2 * squares[:, -1:].clamp_min(1e-300)
    value = torch.where(is_kept, squares.clamp_min(1e-300).log() / 2, 0.0).sum(1)
    return LogVolume(value, is_kept.sum(1).to(value.dtype))


def check_square(outputs: int, inputs: int) -> None:
    """Raise a `UserError` unless a map keeps the size of its images."""
    if outputs != inputs:
        raise UserError(
            f"a map from {inputs} to {outputs} numbers has no determinant",
            where="log|det J|",
            do="iecl.entropy.log_volume measures maps that change the dimension",
        )
