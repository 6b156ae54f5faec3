"""How near is a training step to what the machine can do? Arithmetic of the step against bare products, in one run.

`product` is one large matrix product, the most that this machine gives. `convolutions` are the backbone's own, one by
one, forward and backward, channels-last, with nothing between them: what a step could reach if norms, activations,
additions, loss and optimizer were free. The arithmetic of a step is counted by torch (two for each multiply-add of the
forward pass), and taken three times, for forward and backward.
"""

import gc
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.stepping import CLOCK, channels_last, make, stepper
from benchmarks.bench.turns import Arm, over, seconds, summaries, summary, take_turns
from iecl.backbones.factory import make_backbone
from iecl.training.cost import views_of

ROUNDS, SIZE, QUICK_SIZE = 5, 2048, 256
Case = tuple[str, int, int]
"""Backbone, side of a view, images in a batch."""
CASES: tuple[Case, ...] = (("resnet10-w16", 32, 256), ("resnet18-small", 32, 32), ("resnet50", 224, 4))
QUICK_CASES: tuple[Case, ...] = (("resnet10-w16", 32, 8),)
PRECISIONS = {"32 bits": False, "bf16": True}


def measure(effort: Effort) -> Content:
    """Shares of the step's arithmetic speed in that of products and of convolutions."""
    content: Content = {
        "setting": "SimCLR steps on views that are ready",
        "unit": "operations a second over those of the other in the same round",
        "results": {},
        "cases": [],
    }
    size = QUICK_SIZE if effort.is_quick else SIZE
    for backbone, side, images in QUICK_CASES if effort.is_quick else CASES:
        for precision, is_bf16 in PRECISIONS.items():
            arms = {
                "product": _products(size, is_bf16),
                "convolutions": _convolutions(backbone, side, 2 * images, is_bf16),
                "step": _steps(backbone, side, images, is_bf16),
            }
            found = take_turns(arms, effort.rounds_of(ROUNDS))
            shares = {f"step over {arm}": over(found["step"], found[arm]) for arm in ("product", "convolutions")}
            where = {"backbone": backbone, "side": side, "batch": images, "precision": precision}
            name = f"{backbone}, {side} px, batch {images}, {precision}"
            content["results"] |= effort.rows({f"{name}: {share}": own for share, own in shares.items()})
            content["cases"].append(
                where | {share: summary(own) for share, own in shares.items()} | {"gigaflops": summaries(found)}
            )
            effort.keep(content)
            del arms
            gc.collect()
    return content


def _rate(flops: float, work: Callable[[], object]) -> float:
    """Billions of operations a second."""
    return flops / seconds(work) / 1e9


def _products(size: int, is_bf16: bool) -> Arm:
    """A large matrix product."""
    one, other = (torch.randn(size, size).to(torch.bfloat16 if is_bf16 else torch.float32) for _ in range(2))
    return partial(_rate, 2 * size**3, lambda: one @ other)


def _convolutions(backbone: str, side: int, images: int, is_bf16: bool) -> Arm:
    """Every convolution of a backbone by itself, forward and backward."""
    found: list[tuple[nn.Conv2d, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        found.append((layer, inputs[0].detach()))

    network = make_backbone(backbone).to(memory_format=torch.channels_last)
    hooks = [part.register_forward_hook(keep) for part in network.modules() if isinstance(part, nn.Conv2d)]
    x = torch.randn(images, 3, side, side).contiguous(memory_format=torch.channels_last)
    with FlopCounterMode(display=False) as counted:
        network(x)
    for hook in hooks:
        hook.remove()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        outs = [layer(x.requires_grad_()) for layer, x in found]
    slopes = [torch.randn_like(out) for out in outs]
    del outs

    def work() -> None:
        for (layer, x), slope in zip(found, slopes, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                layer(x).backward(slope)

    return partial(_rate, 3 * counted.get_total_flops(), work)


def _steps(backbone: str, side: int, images: int, is_bf16: bool) -> Arm:
    """A whole SimCLR step on views that are ready."""
    method = make("simclr", [], backbone=backbone, batch=images, side=side)
    with FlopCounterMode(display=False) as counted:
        method.step(channels_last(views_of(method.views, images, side)), CLOCK)
    step = stepper(method, batch=images, side=side, is_bf16=is_bf16)
    return partial(_rate, 3 * counted.get_total_flops(), step)
