"""How much a convolution can lengthen its input: the norm of the operator, not of its kernel.

The kernel as a matrix (out, in · height · width) has a norm that bounds the operator's only up to the kernel's side:
for stride 1, |kernel| <= |operator| <= side · |kernel|.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, normalize
from torch.nn.grad import conv2d_input

from iecl import counter
from iecl.errors import UserError
from iecl.estimators.precision import full_precision


@dataclass(frozen=True)
class Geometry:
    """How a convolution meets its input: what its norm depends on beside the kernel."""

    height: int
    width: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @classmethod
    def of(cls, convolution: nn.Conv2d, height: int, width: int) -> "Geometry":
        """That of a layer whose input has this size.

        Raises:
            UserError: for a layer that does not pad with zeros.
        """
        padding, stride, dilation = convolution.padding, convolution.stride, convolution.dilation
        if isinstance(padding, str) or convolution.padding_mode != "zeros":
            raise UserError(
                "the operator norm is known only for padding with a number of zeros",
                where=f"a convolution with padding {padding!r}, mode {convolution.padding_mode!r}",
                do="objective.encoder_norm = kernel",
            )
        step, around, apart = ((int(pair[0]), int(pair[1])) for pair in (stride, padding, dilation))
        return cls(height, width, step, around, apart, convolution.groups)

    def push(self, weight: Tensor, v: Float[Tensor, "1 in h w"]) -> Tensor:
        """What the convolution makes of `v`."""
        return conv2d(v, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def pull(self, weight: Tensor, u: Tensor) -> Float[Tensor, "1 in h w"]:
        """What its exact adjoint makes of `u`."""
        shape = (1, weight.shape[1] * self.groups, self.height, self.width)
        options = (self.stride, self.padding, self.dilation, self.groups)
        pulled: Tensor = conv2d_input(shape, weight, u, *options)  # type: ignore[no-untyped-call]
        return pulled


@full_precision
def circular_norm(weight: Float[Tensor, "out in kh kw"], height: int, width: int) -> Float[Tensor, ""]:
    """Norm of a convolution of stride 1 that wraps around at the border, exact and differentiable.

    On each frequency it is a matrix (out, in): the largest of their norms (Sedghi et al. 2019). With zeros around
    instead, the norm is at most that of a circular convolution on an image larger by the kernel's side less 1.
    Cost: height width min(out, in)^2 max(out, in).

    >>> circular_norm(torch.ones(1, 1, 3, 3), 16, 16).item()
    9.0
    """
    spectra = torch.fft.fft2(weight, s=(height, width)).permute(2, 3, 0, 1)
    norms: Tensor = torch.linalg.matrix_norm(spectra, ord=2)
    return norms.max()


@torch.no_grad()
@full_precision
def convolution_norm(
    weight: Float[Tensor, "out in kh kw"], geometry: Geometry, iterations: int = 200
) -> Float[Tensor, ""]:
    """Norm of a convolution at its real input size, by power iteration through it and its adjoint.

    Any stride, padding, dilation and groups. Never too large; after 200 iterations usually within a thousandth.
    Cost: two convolutions of one image for each iteration.

    >>> round(convolution_norm(torch.ones(1, 1, 3, 3), Geometry(16, 16, padding=(1, 1))).item(), 4)
    8.7968
    """
    u, v = start_vectors(weight, geometry)
    for _ in range(iterations):
        u = normalized(geometry.push(weight, v))
        v = normalized(geometry.pull(weight, u))
    return (u * geometry.push(weight, v)).sum()


def start_vectors(weight: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Unit vectors at which a power iteration begins: an output drawn by counter, and its image under the adjoint."""
    empty = weight.new_zeros(1, weight.shape[1] * geometry.groups, geometry.height, geometry.width)
    shape = geometry.push(weight, empty).shape
    drawn = counter.normal(counter.key(0, "spectral norm"), torch.arange(1), shape.numel())
    u = normalized(drawn.to(weight).reshape(shape))
    return u, normalized(geometry.pull(weight, u))


def normalized(x: Tensor) -> Tensor:
    """The tensor with length 1 as one long vector."""
    return normalize(x.flatten(), dim=0).reshape(x.shape)
