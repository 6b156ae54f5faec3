"""The Jacobian of one certified layer at given images: I + a (W' D W + V' E V), never written out.

W is the patch map and V the 3×3 map, D and E the slopes of the activation, a the gain. Symmetric, and no eigenvalue is
below 1. M = I + a W' D W, the patch part, is block-diagonal: its determinant is exact and cheap through the dual form.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from iecl.estimators.log_det import (
    LogDet,
    Tridiagonal,
    check_effort,
    dual_log_det,
    lanczos,
    mean_of_probes,
    random_signs,
)

COLUMNS = 64
"""So many columns of the Jacobian are made at a time: memory, not the result."""


@dataclass(frozen=True)
class TiedJacobian:
    """What the layer does to small changes of each of n images."""

    coarse: Float[Tensor, "units c patch patch"]
    fine: Float[Tensor, "few c 3 3"]
    coarse_slopes: Float[Tensor, "n units rows columns"]
    fine_slopes: Float[Tensor, "n few h w"]
    gain: Float[Tensor, " n"]

    @property
    def patch(self) -> int:
        """Side of a patch."""
        return self.coarse.shape[-1]

    def patch_times(self, v: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """M v."""
        hidden = self.coarse_slopes * conv2d(v, self.coarse, stride=self.patch)
        return v + self._gains * conv_transpose2d(hidden, self.coarse, stride=self.patch)

    def times(self, v: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """J v."""
        hidden = self.fine_slopes * conv2d(v, self.fine, padding=1)
        return self.patch_times(v) + self._gains * conv_transpose2d(hidden, self.fine, padding=1)

    @property
    def _gains(self) -> Float[Tensor, "n 1 1 1"]:
        return self.gain[:, None, None, None]

    def patch_log_det(self) -> Float[Tensor, " n"]:
        """Log det M, exact and differentiable."""
        slopes = self.gain[:, None, None] * self.coarse_slopes.flatten(2).transpose(1, 2)
        return dual_log_det(self.coarse.flatten(1), slopes).sum(1)

    def log_det(self, *, probes: int, steps: int, seed: int = 0) -> LogDet:
        """Log det J = E[z' log(J) z] by random signs z and Lanczos; differentiable.

        The gradient is that of log det M, exact, plus E[(J^-1 z)' dJ z - (M^-1 z)' dM z], what the 3×3 map adds: both
        solutions come from Lanczos with the same signs, so that most of their noise cancels. (For the value itself the
        same split was measured to gain nothing.) Unbiased up to the truncation of Lanczos.
        """
        check_effort(probes, steps)
        n, c, height, width = self._shape()
        like = self.fine_slopes.new_zeros(n, height * width * c)
        values, changes, carried = [], [], []
        for probe in range(probes):
            signs = random_signs(seed, probe, like)
            whole = self._lanczos(self.times, signs, steps)
            values.append(whole.quadrature())
            changes.append((values[-1] - whole.quadrature(max(1, whole.basis.shape[1] - 1))).abs())
            if torch.is_grad_enabled():
                patch = self._lanczos(self.patch_times, signs, steps)
                both = (self.times, whole), (self.patch_times, patch)
                first, second = ((seen.solution() * self._on_rows(times, signs)).sum(1) for times, seen in both)
                carried.append(first - second)
        found = mean_of_probes(torch.stack(values), torch.stack(changes))
        if not carried:
            return found
        slope = self.patch_log_det() + torch.stack(carried).mean(0)
        return replace(found, value=found.value + (slope - slope.detach()))

    def _lanczos(self, times: Callable[[Tensor], Tensor], signs: Float[Tensor, "n size"], steps: int) -> Tridiagonal:
        return lanczos(lambda v: self._on_rows(times, v), signs, steps)

    def _on_rows(self, times: Callable[[Tensor], Tensor], rows: Float[Tensor, "n size"]) -> Float[Tensor, "n size"]:
        """A product with images that are given as rows, the channels of a pixel side by side.

        Convolutions of few channels are several times faster in that order, and there is nothing to copy.
        """
        n, c, height, width = self._shape()
        images = rows.reshape(n, height, width, c).permute(0, 3, 1, 2)
        return times(images).permute(0, 2, 3, 1).reshape(n, -1)

    @torch.no_grad()
    def exact_log_det(self) -> Float[Tensor, " n"]:
        """Log det J, exact: strips of patches see only their neighbors, so J is block-tridiagonal.

        Cost: with strips of c patch w numbers, three products with J for each of them, and h / patch Cholesky
        decompositions of that size.
        """
        blocks, links = self._strips()
        total = blocks.new_zeros(len(blocks))
        schur = blocks[:, 0]
        for strip in range(blocks.shape[1]):
            root = torch.linalg.cholesky(schur)
            total = total + 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
            if strip + 1 < blocks.shape[1]:
                half = torch.linalg.solve_triangular(root, links[:, strip], upper=False)
                schur = blocks[:, strip + 1] - half.mT @ half
        return total

    def _strips(self) -> tuple[Tensor, Tensor]:
        """Diagonal blocks of J, one for each strip, and the blocks that link each strip to the next."""
        n, c, height, width = self._shape()
        strips, size = height // self._strip_height(), c * self._strip_height() * width
        blocks = self.fine_slopes.new_zeros(n, strips, size, size)
        links = self.fine_slopes.new_zeros(n, strips - 1, size, size)
        for color in range(min(3, strips)):
            own = torch.arange(color, strips, 3)  # strips three apart do not touch: one product serves them all
            above = own[own > 0] - 1
            for first in range(0, size, COLUMNS):
                columns = torch.arange(first, min(first + COLUMNS, size))
                probe = blocks.new_zeros(n, len(columns), strips, size)
                probe[:, torch.arange(len(columns))[:, None], own, columns[:, None]] = 1
                image = self._cut(self._repeated(len(columns)).times(self._joined(probe.flatten(0, 1))))
                image = image.reshape(probe.shape).permute(0, 2, 3, 1)
                blocks[:, own, :, first : first + COLUMNS] = image[:, own]
                links[:, above, :, first : first + COLUMNS] = image[:, above]
        return blocks, links

    def _repeated(self, times: int) -> "TiedJacobian":
        """Each image several times in a row, so that one product serves several vectors."""
        names = ("coarse_slopes", "fine_slopes", "gain")
        return replace(self, **{name: getattr(self, name).repeat_interleave(times, 0) for name in names})

    def _strip_height(self) -> int:
        """Whole patches, and at least the two pixels that the 3×3 map and its adjoint reach together."""
        if self.patch > 1:
            return self.patch
        height = self.fine_slopes.shape[2]
        return 2 if height % 2 == 0 else height

    def _cut(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n strips size"]:
        n, c, _, width = x.shape
        return x.reshape(n, c, -1, self._strip_height(), width).transpose(1, 2).flatten(2)

    def _joined(self, strips: Float[Tensor, "n strips size"]) -> Float[Tensor, "n c h w"]:
        _, c, height, width = self._shape()
        return (
            strips.reshape(len(strips), -1, c, self._strip_height(), width)
            .transpose(1, 2)
            .reshape(-1, c, height, width)
        )

    def double(self) -> "TiedJacobian":
        """The same in float64, without gradient."""
        return TiedJacobian(**{field.name: getattr(self, field.name).detach().double() for field in fields(self)})

    def _shape(self) -> torch.Size:
        n, _, height, width = self.fine_slopes.shape
        return torch.Size((n, self.fine.shape[1], height, width))
