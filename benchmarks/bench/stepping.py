"""Bare training steps: a method as its recipe has it, on views that are ready."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.bench.turns import take_turns, timed
from iecl.methods.contract import Method, Step
from iecl.schedule import Clock
from iecl.training.config import make_config, with_data
from iecl.training.cost import CLASSES, views_of
from iecl.training.factory import build_method
from iecl.training.optimizers import make_optimizer
from iecl.views.pipeline import Views

SAMPLES = 1024
CLOCK = Clock(seed=0, step=5, steps=100, epoch=0, epochs=1)


def make(method: str, sets: Sequence[str], *, backbone: str, batch: int, side: int) -> Method:
    """A method as its default recipe has it, ready for its first step."""
    flags = {"data": {"name": "shapes"}, "backbone": {"name": backbone}, "training": {"batch_size": batch}}
    config = make_config(method=method, flags=flags, sets=sets)
    data = replace(config.data, image_size=side, decode_size=side, mean=(0.5,) * 3, std=(0.25,) * 3)
    made = build_method(with_data(config, data), samples=SAMPLES, classes=CLASSES).to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, side, side)
    with torch.no_grad():
        made.before_epoch(lambda encode: torch.randn(SAMPLES, encode(images).shape[1]), CLOCK)
    return made


def channels_last(views: Views) -> Views:
    """The same views in the layout that training gives them."""
    return views.with_global_crops(*(x.contiguous(memory_format=torch.channels_last) for x in views.global_crops))


def whole_loss(made: Step) -> Tensor:
    """What a step descends."""
    return torch.stack(list(made.losses.values())).sum()


def stepper(method: Method, *, batch: int, side: int, is_bf16: bool = False) -> Callable[[], Step]:
    """A function that takes one training step: forward, backward, optimizer, and what follows."""
    settings = make_config(flags={"data": {"name": "shapes"}}).optimizer
    optimizer = make_optimizer(method.param_groups(), settings, 1e-3)
    views = channels_last(views_of(method.views, batch, side))

    def step() -> Step:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            made = method.step(views, CLOCK)
        torch.autograd.backward(whole_loss(made))
        method.after_backward(CLOCK)
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(CLOCK)
        return made

    return step


def interleaved(arms: Mapping[str, Method], *, batch: int, side: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each arm's steps: one step of each in turn, the first two rounds left out."""
    steps = {name: timed(stepper(method, batch=batch, side=side)) for name, method in arms.items()}
    return take_turns(steps, repeats, warm=2)
