"""Spectral norm for convolutions, iterated once per optimiser step and not at every forward pass.

torch's own version runs a power iteration whenever `.weight` is read in training mode: two views cost two iterations,
and anything that looks at the weight changes the run. Here reading is pure. The weight is the stored kernel divided by
`u^T W v`, and `iterate` moves u and v when the optimiser has moved the kernel. The norm is that of the kernel reshaped
to (out, in·height·width), which bounds the norm of the convolution only up to the side of the kernel.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from iecl import counter
from iecl.errors import UserError
from iecl.estimators.precision import full_precision

FIRST_ITERATIONS = 15  # a random start is within a percent after this many


class SpectralScale(nn.Module):
    """Divides a kernel by its largest singular value, as estimated by the vectors u and v."""

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        if not weight.any():
            raise UserError(
                "a convolution with zero weights cannot be normalised", do="initialise it, or leave spectral norm off"
            )
        matrix = weight.detach().flatten(1)
        start = counter.normal(counter.key(0, "spectral norm"), torch.arange(1), len(matrix))[0].to(matrix)
        self.register_buffer("u", normalize(start, dim=0))
        self.register_buffer("v", normalize(matrix.T @ self.u, dim=0))
        self.iterate(weight, FIRST_ITERATIONS)

    def forward(self, weight: Tensor) -> Tensor:
        """The kernel with norm 1; the gradient passes through the norm too."""
        # Copies, since u and v move in place between this forward pass and a later one.
        return weight / _bilinear(self.u.clone(), weight.flatten(1), self.v.clone())

    @torch.no_grad()
    def iterate(self, weight: Tensor, times: int = 1) -> None:
        """Follow a kernel that has moved."""
        matrix = weight.detach().flatten(1)
        for _ in range(times):
            self.u.copy_(normalize(matrix @ self.v, dim=0))
            self.v.copy_(normalize(matrix.T @ self.u, dim=0))


@full_precision
def _bilinear(u: Tensor, matrix: Tensor, v: Tensor) -> Tensor:
    """The product u'Mv; with three digits, as autocast has it, the bound would be off by a percent."""
    return torch.dot(u, matrix @ v)


def normalise_convolutions(module: nn.Module) -> int:
    """Put spectral norm on every convolution of `module`; returns how many there are."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    for convolution in convolutions:
        parametrize.register_parametrization(convolution, "weight", SpectralScale(convolution.weight), unsafe=True)
    return len(convolutions)


def spectral_scales(module: nn.Module) -> Iterator[tuple[SpectralScale, Tensor]]:
    """Every spectral norm in `module` with the kernel that it divides."""
    for part in module.modules():
        if isinstance(part, parametrize.ParametrizationList):
            for scale in part:
                if isinstance(scale, SpectralScale):
                    yield scale, part.original


def follow_kernels(module: nn.Module, times: int = 1) -> None:
    """One power iteration for each normalised kernel: call it after the optimiser step."""
    for scale, kernel in spectral_scales(module):
        scale.iterate(kernel, times)


def fold(module: nn.Module) -> None:
    """Replace every normalised kernel by its value: plain weights under their plain names, for export."""
    for part in list(module.modules()):
        if isinstance(part, nn.Conv2d) and parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight", leave_parametrized=True)
