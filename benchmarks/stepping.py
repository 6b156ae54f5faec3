"""Training steps of several methods, timed in turn in one run, so that a busy machine slows all of them alike."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from iecl.methods.contract import Method
from iecl.schedule import Clock
from iecl.training.building import build_method
from iecl.training.costing import CLASSES, views_of
from iecl.training.optimisers import make_optimiser
from iecl.training.plan import make_plan, with_data

SAMPLES = 1024
CLOCK = Clock(seed=0, step=5, steps=100, epoch=0, epochs=1)


def make(method: str, sets: Sequence[str], *, backbone: str, batch: int, side: int) -> Method:
    """A method as its default recipe has it, ready for its first step."""
    flags = {"data": {"name": "shapes"}, "backbone": {"name": backbone}, "training": {"batch": batch}}
    plan = make_plan(method=method, flags=flags, sets=sets)
    data = replace(plan.data, image_size=side, canvas=side, mean=(0.5,) * 3, std=(0.25,) * 3)
    made = build_method(with_data(plan, data), samples=SAMPLES, classes=CLASSES).to(memory_format=torch.channels_last)
    pictures = torch.randn(64, 3, side, side)
    with torch.no_grad():
        made.before_epoch(lambda encode: torch.randn(SAMPLES, encode(pictures).shape[1]), CLOCK)
    return made


def interleaved(arms: Mapping[str, Method], *, batch: int, side: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each arm's steps: one step of each in turn, the first two rounds left out."""
    settings = make_plan(flags={"data": {"name": "shapes"}}).optimiser
    optimisers = {name: make_optimiser(method.param_groups(), settings, 1e-3) for name, method in arms.items()}
    plans = {method.views: views_of(method.views, batch, side) for method in arms.values()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 2):
        for name, method in arms.items():
            views = plans[method.views]
            full = [x.contiguous(memory_format=torch.channels_last) for x in views.full]
            began = time.perf_counter()
            sum(method.step(views.with_full(*full), CLOCK).losses.values()).backward()
            method.after_backward(CLOCK)
            optimisers[name].step()
            optimisers[name].zero_grad()
            method.after_step(CLOCK)
            if repeat >= 2:
                times[name].append(time.perf_counter() - began)
    return times


def ratios(times: Mapping[str, Sequence[float]], to: str) -> dict[str, list[float]]:
    """Each arm's time over that of the arm `to` in the same round."""
    return {name: [a / b for a, b in zip(own, times[to], strict=True)] for name, own in times.items() if name != to}
