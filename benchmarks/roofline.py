"""How near is a training step to what the machine can do? Arithmetic of the step against bare products, in one run.

    python -m benchmarks.roofline

`product` is one large matrix product, the most that this machine gives. `convolutions` are the backbone's own, one by
one, forward and backward, channels-last, with nothing between them: what a step could reach if norms, activations,
additions, loss and optimiser were free. The arithmetic of a step is counted by torch (two for each multiply-add of the
forward pass), and taken three times, for forward and backward.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.result import summary, write
from benchmarks.stepping import CLOCK, make
from iecl.backbones.making import make_backbone
from iecl.training.costing import views_of
from iecl.training.optimisers import make_optimiser
from iecl.training.plan import make_plan

SIZE, REPEATS = 2048, 5
CASES = (("resnet10-w16", 32, 256), ("resnet18-small", 32, 32), ("resnet50", 224, 4))
"""Backbone, side of a view, pictures in a batch."""
Numbers = dict[str, torch.dtype | None]
PRECISIONS: Numbers = {"32 bits": None, "bf16": torch.bfloat16}


def rate(flops: float, work: Callable[[], Any]) -> float:
    """Billions of operations a second."""
    began = time.perf_counter()
    work()
    return flops / (time.perf_counter() - began) / 1e9


def products(kind: torch.dtype | None) -> Callable[[], float]:
    """A large matrix product."""
    one, other = (torch.randn(SIZE, SIZE).to(kind or torch.float32) for _ in range(2))
    return lambda: rate(2 * SIZE**3, lambda: one @ other)


def convolutions(backbone: str, side: int, images: int, kind: torch.dtype | None) -> Callable[[], float]:
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
    with torch.autocast("cpu", torch.bfloat16, enabled=kind is not None):
        outs = [layer(x.requires_grad_()) for layer, x in found]
    slopes = [torch.randn_like(out) for out in outs]
    del outs

    def work() -> None:
        for (layer, x), slope in zip(found, slopes, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=kind is not None):
                layer(x).backward(slope)

    return lambda: rate(3 * counted.get_total_flops(), work)


def steps(backbone: str, side: int, images: int, kind: torch.dtype | None) -> Callable[[], float]:
    """A whole SimCLR step on views that are ready."""
    method = make("simclr", [], backbone=backbone, batch=images, side=side)
    views = views_of(method.views, images, side)
    views = views.with_full(*(x.contiguous(memory_format=torch.channels_last) for x in views.full))
    settings = make_plan(flags={"data": {"name": "shapes"}}).optimiser
    optimiser = make_optimiser(method.param_groups(), settings, 1e-3)
    with FlopCounterMode(display=False) as counted:
        method.step(views, CLOCK)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind is not None):
            made = method.step(views, CLOCK)
        sum(made.losses.values()).backward()
        method.after_backward(CLOCK)
        optimiser.step()
        optimiser.zero_grad()
        method.after_step(CLOCK)

    return lambda: rate(3 * counted.get_total_flops(), work)


def main() -> None:
    rows = []
    for backbone, side, images in CASES:
        for precision, kind in PRECISIONS.items():
            arms = {
                "product": products(kind),
                "convolutions": convolutions(backbone, side, 2 * images, kind),
                "step": steps(backbone, side, images, kind),
            }
            found: dict[str, list[float]] = {arm: [] for arm in arms}
            for repeat in range(REPEATS + 1):
                for arm, turn in arms.items():
                    value = turn()
                    if repeat:
                        found[arm].append(value)
            shares = {
                f"step over {arm}": summary([a / b for a, b in zip(found["step"], found[arm], strict=True)])
                for arm in ("product", "convolutions")
            }
            where = {"backbone": backbone, "side": side, "batch": images, "precision": precision}
            rows.append(where | shares | {"gigaflops": {arm: summary(values) for arm, values in found.items()}})
            print(where, {name: value["median"] for name, value in shares.items()}, flush=True)
    write("roofline", "how near is a training step to what the machine can do?", {"cases": rows})


if __name__ == "__main__":
    main()
