"""Batch norm in groups: one device normalizes as several would, each with its own part of the batch.

In momentum contrast an image and its key should not share their batch companions, or the encoder finds the right key by
the statistics it was normalized with. Several devices avoid it by exchanging images before keys are encoded (He et al.
2020, section 3.3). On one device both parts are needed: groups here, and keys encoded `in_random_order`. Groups are
counted over the whole batch and images are exchanged over all of it, however many processes share it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from iecl import counter, parallel
from iecl.errors import UserError
from iecl.parts.other_norm import OtherNorm, replace_norms
from iecl.parts.sync_norm import SyncNorm
from iecl.transfer import send


class SplitNorm(OtherNorm):
    """Batch norm whose training statistics are those of `groups` equal parts of the batch, one after the other.

    The batch is that of all processes, and each of them has its share of the groups. Weights and running statistics are
    stored as in torch's batch norm; each running statistic moves to the mean of the groups.
    """

    groups: int

    def normalized(self, x: Tensor) -> Tensor:
        """Normalize each group by itself."""
        groups = self._groups_of(len(x))
        if self.running_mean is None or self.running_var is None:
            return torch.cat([self._normalize(part, None, None, 0.0) for part in x.chunk(groups)])
        share = self.next_share()
        means, variances = (r.repeat(groups, 1) for r in (self.running_mean, self.running_var))
        parts = zip(x.chunk(groups), means, variances, strict=True)
        made = torch.cat([self._normalize(part, mean, variance, share) for part, mean, variance in parts])
        self.running_mean.copy_(means.mean(0))
        self.running_var.copy_(variances.mean(0))
        return made

    def _groups_of(self, images: int) -> int:
        """How many of the groups are those of this process, which has so many of the images."""
        world = parallel.world()
        if self.groups % world:
            raise UserError(
                f"{self.groups} groups cannot be shared by {world} processes",
                where="method.norm_groups",
                do=f"use a multiple of {world}, or another number of processes",
            )
        if images * world % self.groups:
            raise UserError(
                f"{images * world} images cannot be cut into {self.groups} equal groups",
                where="method.norm_groups",
                do="use a training.batch_size that is a multiple of it",
            )
        return self.groups // world

    def _normalize(self, part: Tensor, mean: Tensor | None, variance: Tensor | None, share: float) -> Tensor:
        return batch_norm(part, mean, variance, self.weight, self.bias, True, share, self.eps)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.num_features}, groups={self.groups}"


def split_norm(norm: _BatchNorm, groups: int) -> SplitNorm:
    """The same norm in groups."""
    made = SplitNorm.like(norm)
    made.groups = groups
    return made


def split_norms(groups: int, *modules: nn.Module) -> None:
    """Replace every batch norm in the modules by one in `groups`; names and values of the weights stay."""
    if not replace_norms(partial(split_norm, groups=groups), *modules):
        raise UserError(
            "the network has no batch norm that could be cut into groups",
            where="method.norm_groups",
            do="set it to 0: there is no leak to fix",
        )


def sees_parts(module: nn.Module) -> bool:
    """Whether batch norms see a part of the batch only: a group, a chunk, or the images of one process."""
    chunked = [part for whole in module.modules() if getattr(whole, "takes_chunks", False) for part in whole.modules()]
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    return any(isinstance(part, _BatchNorm) for part in chunked) or any(
        isinstance(norm, SplitNorm) or (parallel.has_others() and not isinstance(norm, SyncNorm)) for norm in norms
    )


@torch.no_grad()
def share_statistics(*modules: nn.Module) -> None:
    """Give every process the running statistics of all groups; they move alike, so once for each step will do."""
    if not parallel.is_on():
        return
    norms = [part for module in modules for part in module.modules() if isinstance(part, SplitNorm)]
    held = [r for norm in norms for r in (norm.running_mean, norm.running_var) if r is not None]
    if held:
        means = torch.split(parallel.average(torch.cat(held)), [len(r) for r in held])
        for r, mean in zip(held, means, strict=True):
            r.copy_(mean)


def in_random_order(encode: Callable[[Tensor], Tensor], x: Tensor, key: int) -> Tensor:
    """`encode`, without gradient, on the rows of all processes in an order drawn from `key`.

    Each process encodes its share of that order; the results are those of all rows, back in their own order.
    """
    rows = parallel.gather(x.detach())
    order = send(counter.permutation(key, len(rows)), x.device)
    mine = order[parallel.rank() * len(x) :][: len(x)]
    return parallel.gather(encode(rows[mine]).detach())[order.argsort()]
