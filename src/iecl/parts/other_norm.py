"""Batch norms of another kind in the place of torch's: the same weights and statistics, under the same names."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from iecl.errors import UserError

KNOWN = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormAct2d")
"""Torch's, and timm's, which holds a dropout and an activation that follow it."""


class OtherNorm(_BatchNorm):
    """What kinds of batch norm have in common, for any number of dimensions. In evaluation all are torch's."""

    is_alone = False
    """Whether the images of this process are the whole batch, and it is torch's batch norm in training too."""

    @classmethod
    def like(cls, norm: _BatchNorm) -> Self:
        """The same norm, with its very weights and what follows it, as one of this kind."""
        if type(norm).__name__ not in KNOWN:
            raise UserError(
                f"{type(norm).__name__} is a batch norm whose statistics cannot be taken over other images",
                where="training.sync_batch_norm, method.norm_groups",
                do="set the one to off and the other to 0, or choose another --backbone",
            )
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        made._parameters, made._buffers, made._modules = norm._parameters, norm._buffers, norm._modules
        made.training = norm.training
        return made

    def forward(self, x: Tensor) -> Tensor:
        """The norm, and what follows it."""
        x = self.normalized(x) if self.training and not self.is_alone else super().forward(x)
        for part in self.children():
            x = part(x)
        return x

    def normalized(self, x: Tensor) -> Tensor:
        """The norm alone, in training."""
        raise NotImplementedError

    def next_share(self) -> float:
        """By how much running statistics move now; without a momentum they are the mean of all batches so far."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _check_input_dim(self, input: Tensor) -> None:  # torch's name
        """Any number of dimensions."""


def replace_norms(make: Callable[[_BatchNorm], OtherNorm], *modules: nn.Module) -> int:
    """Replace every batch norm of torch's in the modules; returns how many there were.

    A batch norm that is itself one of the modules cannot be replaced; give its parent.
    """
    found = 0
    for module in modules:
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, _BatchNorm) and not isinstance(child, OtherNorm):
                    setattr(parent, name, make(child))
                    found += 1
    return found


@contextmanager
def alone(module: nn.Module) -> Iterator[None]:
    """Let norms take the images of a process as the whole batch: for images that all processes have in common."""
    norms = [part for part in module.modules() if isinstance(part, OtherNorm)]
    for norm in norms:
        norm.is_alone = True
    try:
        yield
    finally:
        for norm in norms:
            norm.is_alone = False
