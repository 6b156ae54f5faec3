"""What a part of IE-CL does in a step, by itself: where steps take seconds, their noise is larger than the part.

Of spectral norm: the kernels are divided, the gradient passes through the division, u and v move. Of KL and entropy:
both terms and their gradient, from the projections on. Of the block: forward and backward, and the slope of the view,
which the first convolution of a host without a block need not find.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.bench.stepping import CLOCK, channels_last
from iecl import counter
from iecl.methods.ie_cl import IECL
from iecl.parts.spectral_norm import follow_kernels
from iecl.training.cost import views_of

Work = Callable[[], object]


def work_of(part: str, method: IECL, *, batch: int, side: int) -> Work:
    """The work of `spectral norm`, `kl and entropy` or `certified block` in one step of a method that has it."""
    if part == "spectral norm":
        return _of_spectral_norm(method)
    views = channels_last(views_of(method.views, batch, side))
    return (
        _of_terms(method, views.global_crops) if part == "kl and entropy" else _of_block(method, views.global_crops[1])
    )


def _of_spectral_norm(method: IECL) -> Work:
    convolutions = [
        part for part in method.modules() if isinstance(part, nn.Conv2d) and parametrize.is_parametrized(part)
    ]
    slopes = [torch.randn_like(part.weight) for part in convolutions]

    def work() -> None:
        kernels = [part.weight for part in convolutions]  # of the momentum copy too, which needs no gradient
        pairs = [(kernel, slope) for kernel, slope in zip(kernels, slopes, strict=True) if kernel.requires_grad]
        torch.autograd.backward([kernel for kernel, _ in pairs], [slope for _, slope in pairs])
        follow_kernels(method)
        method.zero_grad()

    return work


def _of_terms(method: IECL, full: tuple[Tensor, ...]) -> Work:
    with torch.no_grad():
        made = method.step(views_of(method.views, len(full[0]), full[0].shape[-1]), CLOCK)
    own = {name: torch.randn_like(z).requires_grad_() for name, z in made.projections.items()}

    def work() -> None:
        terms = [method.terms.loss(*term) for term in method.terms.of_projections(own).items()]
        torch.autograd.backward(torch.stack(terms).sum())

    return work


def _of_block(method: IECL, x: Tensor) -> Work:
    assert method.saib is not None
    block, stream = method.saib, counter.Stream(0, torch.arange(len(x)))
    first = next(part for part in method.encoder().modules() if isinstance(part, nn.Conv2d))
    seen = x.detach().clone(memory_format=torch.channels_last).requires_grad_()
    out, slope = first(seen), torch.randn_like(x)
    slope_out = torch.randn_like(out)

    def work() -> None:
        torch.autograd.grad(out, seen, slope_out, retain_graph=True)
        torch.autograd.backward(block(x, stream), slope)
        block.after_step()
        method.zero_grad()

    return work
