"""A copy of an encoder that follows it slowly and never receives a gradient.

Batch norm: the copy runs in training mode with the statistics of its own batch, as in MoCo and BYOL, and keeps its own
running statistics; only parameters are averaged. A spectral norm's vectors are copied, not averaged (the mean of two
unit vectors is shorter than one, and signs may flip), and then iterated on the averaged kernel, so that the copy keeps
the bound.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from iecl.parts.spectral_norm import follow_kernels, spectral_scales


class MomentumCopy(nn.Module):
    """A slow copy of modules that are applied one after the other."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(deepcopy(part) for part in parts)
        self.parts.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """What the slow copy makes of `x`, without gradient."""
        for part in self.parts:
            x = part(x)
        return x

    @torch.no_grad()
    def follow(self, *online: nn.Module, keep: float) -> None:
        """Move to `keep * self + (1 - keep) * online`; call it once after the optimizer step."""
        for slow, fast in zip(self.parts, online, strict=True):
            fresh = dict(fast.named_parameters())
            own = dict(slow.named_parameters())  # by name: a parametrised module lists its parameters in another order
            torch._foreach_lerp_(list(own.values()), [fresh[name].detach() for name in own], 1 - keep)
            for (scale, _), (source, _) in zip(spectral_scales(slow), spectral_scales(fast), strict=True):
                scale.u.copy_(source.u)
                scale.v.copy_(source.v)
            follow_kernels(slow)
