r"""A block whose expansion is guaranteed: \(g(x) = x + a \sum_i W_i^T \tanh(W_i x + b_i + \text{noise})\).

Each map is tied to its exact adjoint and tanh never falls, so the Jacobian \(I + a \sum_i W_i^T D_i W_i\) with
\(D_i \ge 0\) is symmetric with every eigenvalue at least 1: no direction contracts and log|det J| >= 0, whatever the
weights; a row of such layers keeps the bound. SiLU and GELU would break it, since they fall somewhere. Given the noise
the bound holds too, and noise can only add entropy. Where the budget holds for each image the gain a depends on the
image: log|det J| >= 0 still holds, sigma_min >= 1 does not (docs/proofs/certified.md).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from iecl import counter, parallel
from iecl.counter import Stream
from iecl.errors import UserError
from iecl.estimators.log_det import LogDet
from iecl.meters.entropy_gain import EntropyGain, gain_of
from iecl.saib.certificate import Certificate, certify
from iecl.saib.contract import InputBlock
from iecl.saib.jacobian import TiedJacobian
from iecl.saib.settings import SAIBSettings
from iecl.settings import build

FAINT = 1e-3
"""RMS of a change at gain 1 below which an image's own budget is not reached: its gain would have no bound."""


class CertifiedSAIB(InputBlock):
    """A monotone, tied-weight residual block that keeps its change within a budget.

    >>> block = CertifiedSAIB(image_size=32, budget=0.5)
    >>> x = torch.randn(8, 3, 32, 32)
    >>> round((block(x) - x).square().mean().sqrt().item(), 3)
    0.5
    """

    is_mixing, is_certified = False, True
    gain_images, gain_interval = 8, 1
    gain_steps = 8  # with eigenvalues between 1 and 10 the quadrature is off by less than a thousandth of a nat

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int = 4,
        hidden_dim: int = 32,
        cascade: int = 1,
        noise: str = "image",
        noise_scale: float = 1.0,
        budget: float = 0.5,
        budget_kind: str = "rms",
        channels: int = 3,
    ) -> None:
        """Build for square images of `image_size`; `budget` is in units of the normalized image.

        It bounds the RMS of the change over a batch (`rms`: held there) or of each image (`image`: held there), or the
        change of every single pixel, whatever image and noise (`pixel`: proved, never exceeded and seldom reached).
        """
        super().__init__()
        given = {
            "patch_size": patch_size,
            "hidden_dim": hidden_dim,
            "cascade": cascade,
            "noise": noise,
            "noise_scale": noise_scale,
        }
        build(SAIBSettings, given | {"budget": budget, "budget_kind": budget_kind}, "saib", "CertifiedSAIB")
        if not isinstance(image_size, int) or image_size < 1:
            raise UserError(f"image_size is {image_size!r}", where="CertifiedSAIB", do="give the side of the images")
        if patch_size < 1 or image_size % patch_size:
            fits = ", ".join(str(p) for p in range(1, image_size + 1) if image_size % p == 0)
            raise UserError(
                f"SAIB cannot cut images of {image_size}×{image_size} into patches of {patch_size}",
                where="saib.patch_size",
                do=f"a patch that fits: {fits}",
            )
        self.image_size, self.noise, self.has_expansion = image_size, noise, budget_kind != "image"
        # Layers in a row share the budget: changes of layers that agree add up at most to it.
        self.layers = nn.ModuleList(
            _Layer(channels, patch_size, hidden_dim, noise_scale, budget / cascade, budget_kind) for _ in range(cascade)
        )

    def forward(self, x: Float[Tensor, "n c h w"], stream: Stream | None = None) -> Float[Tensor, "n c h w"]:
        """Images to images of the same shape; without a stream, or outside training, there is no noise."""
        self._check(x)
        noisy = stream if self.training and self.noise != "none" else None
        for number, layer in enumerate(self.layers):
            x = layer(x, noisy, number, self.noise == "image")
        return x

    def _check(self, x: Tensor) -> None:
        if x.shape[-2:] != (self.image_size, self.image_size):
            raise UserError(
                f"SAIB was built for {self.image_size}×{self.image_size} pixels, these images are "
                f"{x.shape[-2]}×{x.shape[-1]}",
                do="build another block for this size",
            )

    def after_step(self) -> None:
        """Hold the change at the budget while the weights move; once after each optimizer step."""
        for layer in self._rows():
            layer.spend_budget()

    def redraw(self, key: int) -> None:
        """Draw all weights again; the same key gives the same weights, and the next batch sets the gain."""
        with counter.seeded(key):
            for layer in self._rows():
                layer.reset_parameters()

    def at(self, stream: Stream | None) -> Callable[[Tensor], Tensor]:
        """The block with its noise fixed."""
        return lambda x: self.linearised(x, stream)[0]

    def linearised(
        self, x: Float[Tensor, "n c h w"], stream: Stream | None = None
    ) -> tuple[Float[Tensor, "n c h w"], list[TiedJacobian]]:
        """What the block makes of `x`, and the Jacobian of each layer on the way; no buffer changes.

        With a stream the noise is that of training. A block that has not seen a batch takes the gain that `x` gives it.
        """
        self._check(x)
        x = x.contiguous(memory_format=torch.channels_last)  # products with the Jacobian are faster so
        found = []
        for number, layer in enumerate(self._rows()):
            x, jacobian = layer.linearised(x, stream if self.noise != "none" else None, number, self.noise == "image")
            found.append(jacobian)
        return x, found

    def certificate(
        self, x: Float[Tensor, "n c h w"], stream: Stream | None = None, *, exact: bool = True
    ) -> Certificate:
        """Proved bounds on what the block does to small changes of each image, at any depth and state of training.

        Computed in float64 from the slopes at `x`; with a stream, given its noise. `exact` also asks for log det J
        itself where a row of patches is small (up to 512 numbers: 32×32 pixels in patches of 4); it costs three
        products with J for each of these numbers.

        >>> block = CertifiedSAIB(image_size=8, hidden_dim=8, cascade=2)
        >>> found = block.certificate(torch.randn(4, 3, 8, 8))
        >>> bool((found.sigma_min >= 1).all()), bool((found.log_det > 0).all())
        (True, True)
        """
        with torch.no_grad():
            layers = [jacobian.double() for jacobian in self.linearised(x, stream)[1]]
        return certify(layers, exact=exact and self.has_expansion, is_gain_fixed=self.has_expansion)

    def log_det(
        self,
        x: Float[Tensor, "n c h w"],
        stream: Stream | None = None,
        *,
        probes: int = 2,
        steps: int = 8,
        seed: int = 0,
    ) -> LogDet:
        """Log of |det J| at each image, differentiable: patch maps exactly, 3×3 maps by random signs.

        Bias: the truncation of Lanczos, given; 0 in the limit. Cost: for each layer, probe and step about one forward
        pass of the block.
        """
        return self.expansion(x, stream, probes=probes, steps=steps, seed=seed)[1]

    def expansion(
        self, x: Float[Tensor, "n c h w"], stream: Stream | None = None, *, probes: int, steps: int, seed: int
    ) -> tuple[Float[Tensor, "n c h w"], LogDet]:
        """What the block makes of `x`, and its `log_det` there."""
        y, layers = self.linearised(x, stream)
        parts = [layer.log_det(probes=probes, steps=steps, seed=seed + i) for i, layer in enumerate(layers)]
        return y, LogDet(
            torch.stack([part.value for part in parts]).sum(0),
            torch.stack([part.standard_error for part in parts]).square().sum(0).sqrt(),
            torch.stack([part.truncation for part in parts]).sum(0),
        )

    def entropy_gain(
        self,
        x: Float[Tensor, "n c h w"],
        stream: Stream | None = None,
        *,
        probes: int = 2,
        steps: int = 8,
        seed: int = 0,
    ) -> EntropyGain:
        """`iecl.entropy.entropy_gain` of this block with images as the ruler, at any size of image.

        >>> block = CertifiedSAIB(image_size=32, budget=0.5)
        >>> found = block.entropy_gain(torch.randn(2, 3, 32, 32))
        >>> bool(found.total > 10 * found.standard_error > 0)
        True
        """
        if not self.has_expansion:
            return super().entropy_gain(x, stream, probes=probes, steps=steps, seed=seed)
        y, log_det = self.expansion(x, stream, probes=probes, steps=steps, seed=seed)
        return gain_of(x, y, log_det, x[0].numel())

    def _rows(self) -> "list[_Layer]":
        return [layer for layer in self.layers if isinstance(layer, _Layer)]

    def extra_repr(self) -> str:
        """What `print` shows beside the parts."""
        return f"any batch, {self.image_size}×{self.image_size}, noise={self.noise}"


class _Layer(nn.Module):
    """One monotone residual: a patch map that changes tint and texture, and a 3×3 map that changes fine detail."""

    gain: Tensor
    seen: Tensor

    def __init__(
        self, channels: int, patch_size: int, hidden_dim: int, noise_scale: float, budget: float, budget_kind: str
    ) -> None:
        super().__init__()
        self.patch_size, self.noise_scale, self.budget, self.budget_kind = patch_size, noise_scale, budget, budget_kind
        self.coarse = nn.Parameter(torch.empty(hidden_dim, channels, patch_size, patch_size))
        self.fine = nn.Parameter(torch.empty(hidden_dim // 2, channels, 3, 3))
        self.bias = nn.Parameter(torch.empty(hidden_dim + hidden_dim // 2))
        # The factor a. It moves between optimizer steps and not within a forward pass: were it a function of the
        # batch, the Jacobian would have further terms and the bound would be lost. 0: the first batch sets it.
        self.register_buffer("gain", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))  # RMS of the last change at gain 1
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights; the next batch sets the gain."""
        for weight in (self.coarse, self.fine):  # drawn on the CPU: the same on every device
            weight.copy_(torch.randn(weight.shape) / weight[0].numel() ** 0.5)
        self.bias.zero_()
        self.gain.zero_()

    def forward(self, x: Tensor, stream: Stream | None, number: int, image_wide: bool) -> Tensor:
        coarse, fine = self._hidden(x, stream, number, image_wide)
        change = self._change(coarse.tanh(), fine.tanh())
        if self.budget_kind == "image":
            return x + self._gain_of_image(change)[:, None, None, None] * change
        if self.training:
            self.seen.copy_(parallel.average(change.square().mean()).sqrt())
            if not self.gain:
                self.spend_budget()
        return x + self.gain.clone() * change  # a copy: backward must not meet the gain that the next step sets

    def linearised(
        self, x: Tensor, stream: Stream | None, number: int, image_wide: bool
    ) -> tuple[Tensor, TiedJacobian]:
        """What the layer makes of `x`, and its Jacobian there."""
        coarse, fine = (hidden.tanh() for hidden in self._hidden(x, stream, number, image_wide))
        change = self._change(coarse, fine)
        if self.budget_kind == "image":
            gain = self._gain_of_image(change)
        else:
            gain = self.gain.clone() if self.gain else self._gain_for(change.detach().square().mean().sqrt())
            gain = gain.expand(len(x))
        slopes = (1 - coarse.square(), 1 - fine.square())
        return x + gain[:, None, None, None] * change, TiedJacobian(self.coarse, self.fine, *slopes, gain)

    def _hidden(self, x: Tensor, stream: Stream | None, number: int, image_wide: bool) -> tuple[Tensor, Tensor]:
        """Both maps of `x` before the activation, with noise if there is a stream."""
        hidden_dim = len(self.coarse)
        coarse = conv2d(x, self.coarse, self.bias[:hidden_dim], stride=self.patch_size)
        fine = conv2d(x, self.fine, self.bias[hidden_dim:], padding=1)
        if stream is not None:
            coarse = coarse + self._noise(coarse, stream, 2 * number, image_wide)
            fine = fine + self._noise(fine, stream, 2 * number + 1, image_wide)
        return coarse, fine

    def _change(self, coarse: Tensor, fine: Tensor) -> Tensor:
        change = conv_transpose2d(coarse, self.coarse, stride=self.patch_size)
        return change + conv_transpose2d(fine, self.fine, padding=1)

    def _noise(self, hidden: Tensor, stream: Stream, part: int, image_wide: bool) -> Tensor:
        """One draw per unit and image, shared by all places, or one per unit and place."""
        shape = (hidden.shape[1], 1, 1) if image_wide else tuple(hidden.shape[1:])
        columns = shape[0] * shape[1] * shape[2]
        return self.noise_scale * stream.normal(columns, part).reshape(-1, *shape)

    @torch.no_grad()
    def spend_budget(self) -> None:
        self.gain.copy_(self._gain_for(self.seen))

    def _gain_of_image(self, change: Tensor) -> Float[Tensor, " n"]:
        """The gain that gives the change of each image the budget as its RMS."""
        return self.budget / (change.square().mean((1, 2, 3)) + FAINT**2).sqrt()

    def _gain_for(self, seen: Tensor) -> Tensor:
        """The gain that keeps the budget, if the change at gain 1 has this RMS."""
        if self.budget_kind == "rms":
            return self.budget / seen.clamp(min=1e-6)
        return self.budget / self._largest_change().clamp(min=1e-6)

    @torch.no_grad()
    def _largest_change(self) -> Tensor:
        """No pixel of any image changes by more than this at gain 1, since tanh lies between -1 and 1."""
        # A pixel is in one patch, and in at most nine windows of the 3×3 map, at nine different places of the kernel.
        return self.coarse.abs().sum(0).amax((1, 2)).add(self.fine.abs().sum((0, 2, 3))).max()
