r"""A block whose expansion is guaranteed: \(g(x) = x + a \sum_i W_i^T \tanh(W_i x + b_i + \text{noise})\).

Each map is tied to its exact adjoint and tanh never falls, so the Jacobian \(I + a \sum_i W_i^T D_i W_i\) with
\(D_i \ge 0\) is symmetric with every eigenvalue at least 1: no direction contracts and log|det J| >= 0, whatever the
weights; a row of such layers keeps the bound. SiLU and GELU would break it, since they fall somewhere. Given the noise
the bound holds too, and noise can only add entropy.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from iecl import parallel
from iecl.counter import Stream
from iecl.errors import UserError


class CertifiedSAIB(nn.Module):
    """A monotone, tied-weight residual block that keeps the RMS of its change at a budget.

    >>> block = CertifiedSAIB(image_size=32, budget=0.5)
    >>> x = torch.randn(8, 3, 32, 32)
    >>> round((block(x) - x).square().mean().sqrt().item(), 3)
    0.5
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch: int = 4,
        units: int = 32,
        cascade: int = 1,
        noise: str = "image",
        noise_scale: float = 1.0,
        budget: float = 0.5,
        channels: int = 3,
    ) -> None:
        """Build for square pictures of `image_size`; `budget` is in units of the normalised image."""
        super().__init__()
        if patch < 1 or image_size % patch:
            fits = ", ".join(str(p) for p in range(1, image_size + 1) if image_size % p == 0)
            raise UserError(
                f"SAIB cannot cut pictures of {image_size}×{image_size} into patches of {patch}",
                where="saib.patch",
                do=f"a patch that fits: {fits}",
            )
        self.image_size, self.noise = image_size, noise
        # Layers in a row share the budget: changes of layers that agree add up at most to it.
        self.layers = nn.ModuleList(
            _Layer(channels, patch, units, noise_scale, budget / cascade) for _ in range(cascade)
        )

    def forward(self, x: Float[Tensor, "n c h w"], stream: Stream | None = None) -> Float[Tensor, "n c h w"]:
        """Images to images of the same shape; without a stream, or outside training, there is no noise."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            raise UserError(
                f"SAIB was built for {self.image_size}×{self.image_size} pixels, these pictures are "
                f"{x.shape[-2]}×{x.shape[-1]}",
                do="build another block for this size",
            )
        noisy = stream if self.training and self.noise != "none" else None
        for number, layer in enumerate(self.layers):
            x = layer(x, noisy, number, self.noise == "image")
        return x

    def after_step(self) -> None:
        """Hold the change at the budget while the weights move; once after each optimiser step."""
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            layer.spend_budget()

    def extra_repr(self) -> str:
        """What `print` shows beside the parts."""
        return f"any batch, {self.image_size}×{self.image_size}, noise={self.noise}"


class _Layer(nn.Module):
    """One monotone residual: a patch map that changes tint and texture, and a 3×3 map that changes fine detail."""

    gain: Tensor
    seen: Tensor

    def __init__(self, channels: int, patch: int, units: int, noise_scale: float, budget: float) -> None:
        super().__init__()
        self.patch, self.noise_scale, self.budget = patch, noise_scale, budget
        self.coarse = nn.Parameter(torch.randn(units, channels, patch, patch) / (patch * channels**0.5))
        self.fine = nn.Parameter(torch.randn(units // 2, channels, 3, 3) / (3 * channels**0.5))
        self.bias = nn.Parameter(torch.zeros(units + units // 2))
        # The factor a. It moves between optimiser steps and not within a forward pass: were it a function of the
        # batch, the Jacobian would have further terms and the bound would be lost. 0: the first batch sets it.
        self.register_buffer("gain", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))  # RMS of the last change at gain 1

    def forward(self, x: Tensor, stream: Stream | None, number: int, image_wide: bool) -> Tensor:
        units = len(self.coarse)
        coarse = conv2d(x, self.coarse, self.bias[:units], stride=self.patch)
        fine = conv2d(x, self.fine, self.bias[units:], padding=1)
        if stream is not None:
            coarse = coarse + self._noise(coarse, stream, 2 * number, image_wide)
            fine = fine + self._noise(fine, stream, 2 * number + 1, image_wide)
        change = conv_transpose2d(coarse.tanh(), self.coarse, stride=self.patch)
        change = change + conv_transpose2d(fine.tanh(), self.fine, padding=1)
        if self.training:
            self.seen.copy_(parallel.average(change.square().mean()).sqrt())
            if not self.gain:
                self.spend_budget()
        return x + self.gain.clone() * change  # a copy: backward must not meet the gain that the next step sets

    def _noise(self, hidden: Tensor, stream: Stream, part: int, image_wide: bool) -> Tensor:
        """One draw per unit and image, shared by all places, or one per unit and place."""
        shape = (hidden.shape[1], 1, 1) if image_wide else tuple(hidden.shape[1:])
        columns = shape[0] * shape[1] * shape[2]
        return self.noise_scale * stream.normal(columns, part).reshape(-1, *shape)

    @torch.no_grad()
    def spend_budget(self) -> None:
        self.gain.copy_(self.budget / self.seen.clamp(min=1e-6))
