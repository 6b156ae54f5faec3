"""One arm of the question `training`, in a process of its own: built once, then steps whenever a line asks for them.

    python -m benchmarks.bench.training_arm      # request as JSON, then a line for each turn: how many seconds at least

`iecl` takes whole steps of a run: input, views, forward, backward, optimizer, checks, records. `bare step` has its
views ready. A peer has its own input, and lightly's step in a plain loop.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.bench.peers import INPUTS, OUR_SETS, FromLightly, first_two, peer_stepper
from benchmarks.bench.processes import answer
from benchmarks.bench.stepping import channels_last, whole_loss
from iecl.allocation import keep_freed_memory
from iecl.backbones import BACKBONES
from iecl.backbones.factory import make_backbone
from iecl.console import ProgressLine
from iecl.data.defaults import resolve_data
from iecl.registry import Entry
from iecl.runs.directory import RunDirectory
from iecl.training.config import make_config, with_data
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric, on_this_machine
from iecl.views.pipeline import make_views

SIDE = 32
TINY = "next to nothing"
OURS, BARE = "iecl", "bare step"
Take = Callable[[], object]
"""Takes one step."""


@dataclass(frozen=True)
class Request:
    """What an arm is."""

    arm: str
    """`iecl`, `bare step`, or a peer."""
    method: str
    network: str
    source: str
    """`memory`: images decoded before; `folder`: files."""
    images: str
    batch: int
    workers: int = 0
    """Of a peer."""


class NextToNothing(nn.Module):
    """Means of sixteen squares: a network that costs nothing beside its input."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.last = nn.AdaptiveAvgPool2d(4), nn.Linear(48, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        """Features of a batch."""
        made: Tensor = self.last(self.pool(x).flatten(1))
        return made


def make_arm(request: Request, scratch: Path) -> Take:
    """The step of an arm, everything around it built.

    Raises:
        ImportError: the peer is not installed.
    """
    if request.arm == OURS:
        return _whole_step(_our_loop(request, scratch))
    if request.arm == BARE:
        return _bare_step(_our_loop(request, scratch))
    return _peer_step(request)


def _our_loop(request: Request, scratch: Path) -> Loop:
    """A run of ours that is about to take its first step, in a process that is like the command's."""
    keep_freed_memory()
    training = {
        "batch_size": request.batch,
        "precision": "32-true",
        "loggers": (),
        "epochs": 1000,
        "online_eval_epochs": 0,
    }
    flags = {
        "data": {"name": request.images, "image_size": SIDE},
        "backbone": {"name": request.network},
        "training": training | {"accelerator": "cpu"},
    }
    config = make_config(method=request.method, flags=flags, sets=OUR_SETS[request.method])
    config = with_data(config, resolve_data(config.data))
    config = replace(config, training=on_this_machine(config.training))
    run = RunDirectory.fresh(scratch / "run")
    return Loop(make_fabric(config.training, run.path), config, run, ProgressLine(quiet=True))


def _whole_step(loop: Loop) -> Take:
    def endless() -> Iterator[Any]:
        while True:
            yield from loop.begin_epoch()

    batches = endless()
    return lambda: loop.optimize(batches)


def _bare_step(loop: Loop) -> Take:
    config, clock = loop.config, loop.clock(0)
    where: dict[str, Any] = {"size": config.data.image_size, "mean": config.data.mean, "std": config.data.std}
    batch = next(loop.begin_epoch())
    policies = config.augmentation.policies(loop.method.views)
    views = channels_last(make_views(batch, policies, loop.method.views, seed=0, epoch=0, **where))

    def take() -> None:
        torch.autograd.backward(whole_loss(loop.method.step(views, clock)))
        loop.method.after_backward(clock)
        loop.optimizer.step()
        loop.optimizer.zero_grad(set_to_none=True)
        loop.method.after_step(clock)

    return take


def _peer_step(request: Request) -> Take:
    dataset = INPUTS[request.arm](Path(request.images), request.source, SIDE)
    network = make_backbone(request.network, 0)
    step = peer_stepper(FromLightly(request.method, network).to(memory_format=torch.channels_last))
    how: dict[str, Any] = {"num_workers": request.workers, "persistent_workers": request.workers > 0}
    loader: DataLoader[Any] = DataLoader(dataset, request.batch, shuffle=True, drop_last=True, **how)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()
    return lambda: step(*first_two(next(batches)))


def main() -> None:
    """Build the arm that is asked for, and take turns until nobody asks."""
    sys.stdout, talk = sys.stderr, sys.stdout  # what peers have to say is no answer
    BACKBONES[TINY] = Entry("benchmarks.bench.training_arm:NextToNothing", "for this measurement")
    request = Request(**json.loads(sys.stdin.readline()))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            take = make_arm(request, Path(scratch))
        except ImportError as problem:
            answer({"absent": str(problem)}, talk)
            return
        answer({}, talk)
        for line in iter(sys.stdin.readline, ""):
            began, steps, seconds = time.perf_counter(), 0, 0.0
            while seconds < float(line) or not steps:
                take()
                steps, seconds = steps + 1, time.perf_counter() - began
            answer({"steps": steps, "seconds": seconds}, talk)


if __name__ == "__main__":
    main()
