"""Synchronized batch norm: each process normalizes its images by the statistics of the whole batch.

torch's own refuses a CPU. This one is the same on every device, so that what is tested here is what runs elsewhere.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from iecl import parallel
from iecl.parts.other_norm import OtherNorm, replace_norms


class SyncNorm(OtherNorm):
    """Batch norm whose training statistics are those of all processes, which bring equally many images.

    Weights and running statistics are stored as in torch's batch norm, and move alike in every process.
    """

    def normalized(self, x: Tensor) -> Tensor:
        """Normalize by the mean and the variance of all processes."""
        mean, variance = _statistics(x)
        if self.running_mean is not None and self.running_var is not None:
            share, count = self.next_share(), parallel.world() * x.numel() / x.shape[1]
            self.running_mean.lerp_(mean.to(self.running_mean), share)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), share)
        made: Tensor = _Normalized.apply(x, mean, variance, self.weight, self.bias, self.eps)
        return made


def sync_norms(*modules: nn.Module) -> int:
    """Replace every batch norm of torch's by a synchronized one; names and values of the weights stay."""
    return replace_norms(SyncNorm.like, *modules)


@torch.no_grad()
def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel over all processes: from means and variances, as sums of squares cancel."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    own = torch.stack(torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0))
    variances, means = parallel.gather(own[None]).unbind(1)
    return means.mean(0), variances.mean(0) + means.var(0, correction=0)


class _Normalized(torch.autograd.Function):
    """Batch norm by given statistics, with the gradient that passes through them to every process's images.

    With h the normalized x and S the slope of the output, that of x is scale * (S - mean of S - h * mean of S h), the
    means over all processes. Slopes of weight and bias are those of the own images: DDP takes their mean.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, mean, variance, weight)
        ctx.eps = eps
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable  # a second derivative would miss what passes through the statistics
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, variance, weight = ctx.saved_tensors
        # As if the statistics were constants; `by_weight` is the sum of S h, `by_bias` that of S.
        straight, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            slopes[0], x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        if ctx.needs_input_grad[0]:
            inverse = (variance + ctx.eps).rsqrt()
            scale = inverse if weight is None else inverse * weight
            means = parallel.average(torch.stack([by_bias, by_weight])) * x.shape[1] / x.numel()
            plain, along = (m.view(-1, *[1] * (x.ndim - 2)) for m in (scale * means[0], scale * means[1] * inverse))
            straight = (straight - plain - (x - mean.view_as(plain)) * along).to(straight.dtype)
        learned = (None, None) if weight is None else (by_weight, by_bias)
        return straight, None, None, *learned, None
