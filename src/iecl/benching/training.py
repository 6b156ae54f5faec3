"""How fast is training as a whole, beside the bare step and beside peers? Steps of all arms in turn, in one run.

`bare step` has its views ready: what `iecl` lacks of it is the price of input, views, checks and records. The peers'
input is their own (transforms, data sets, workers); their step is lightly's in both cases, in a short loop without a
trainer around it, channels-last as ours. Everything is on the CPU, in 32 bits, with all threads of the machine;
batches that peers' workers made while others had their turn are used up before the clock runs. `memory`: pictures
decoded before; `folder`: PNG files, from the second epoch on.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from iecl.backbones import BACKBONES
from iecl.backbones.making import make_backbone
from iecl.benching.effort import Content, Effort
from iecl.benching.peers import INPUTS, OUR_SETS, FromLightly, first_two, peer_stepper
from iecl.benching.pictures import link_part, make_shapes
from iecl.benching.stepping import channels_last, whole_loss
from iecl.benching.turns import over, summaries, take_turns
from iecl.console import ProgressLine
from iecl.data.resolve import resolve_data
from iecl.registry import Entry
from iecl.runs.directory import RunDirectory
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric, on_this_machine
from iecl.training.plan import make_plan, with_data
from iecl.views.making import make_views
from iecl.views.policies import POLICIES

SIDE, ROUNDS, PICTURES = 32, 5, 4100
METHODS = ("simclr", "moco-v2", "byol", "simsiam")
TINY = "next to nothing"
Turn = Callable[[int], float]
"""Takes so many steps and returns their seconds."""


@dataclass(frozen=True)
class _Case:
    """One comparison."""

    method: str
    network: str
    source: str
    steps: int
    """That each arm takes in its turn."""
    workers: tuple[int, ...] = (0, 1, 2)
    """How many a peer may have: its best number counts."""
    batch: int = 256

    @property
    def name(self) -> str:
        return f"{self.method}, {self.network}, {self.source}"


CASES = (
    *(_Case(method, TINY, source, steps=8) for method in METHODS for source in ("memory", "folder")),
    *(_Case(method, "resnet10-w16", "memory", steps=2) for method in METHODS),
    _Case("simclr", "resnet18-small", "memory", steps=1, workers=(1,)),  # workers decide nothing where steps take long
)
QUICK_CASES = (_Case("simclr", TINY, "memory", steps=2, workers=(0, 1), batch=32),)
GOALS = {
    **{
        f"{method}, {TINY}, {source}: over the better rival": "at least 6"
        for method in METHODS[:2]
        for source in ("memory", "folder")
    },
    **{f"{method}, resnet10-w16, memory: of the bare step": "at least 0.9" for method in METHODS},
    **{f"{method}, resnet10-w16, memory: over the better rival": "at least 1.3" for method in METHODS},
    "simclr, resnet18-small, memory: of the bare step": "at least 0.97",
    "simclr, resnet18-small, memory: over lightly": "at least 1.08",
}


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


def measure(effort: Effort) -> Content:
    """Images a second beside the bare step and beside the better rival."""
    cases, count = (QUICK_CASES, 320) if effort.is_quick else (CASES, PICTURES)
    with tempfile.TemporaryDirectory() as made, _known_network():
        scratch = Path(made)
        pictures = scratch / "pictures"
        words = link_part(effort.data, pictures, count) if effort.data else make_shapes(pictures, count)
        content: Content = {
            "setting": f"{words}, views of {SIDE} px, batch {cases[0].batch}, 32 bits, arms in turn",
            "unit": "images a second over those of the other in the same round",
            "results": {},
            "speeds": [],
        }
        for case in cases:
            with _arms_of(case, pictures, scratch, effort) as arms:
                turns = {arm: partial(_speed, turn, case) for arm, turn in arms.items()}
                speeds = take_turns(turns, effort.rounds_of(ROUNDS))
            rows = effort.rows({f"{case.name}: {what}": own for what, own in _quotients(speeds).items()}, GOALS)
            content["results"] |= rows
            facts = {"method": case.method, "network": case.network, "input": case.source}
            content["speeds"].append(facts | {"images_per_second": summaries(speeds)})
            effort.keep(content)
    return content


def _speed(turn: Turn, case: _Case) -> float:
    """Images a second."""
    return case.batch * case.steps / turn(case.steps)


def _quotients(speeds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Ours beside the bare step, each peer at its best number of workers, and the better of the peers."""
    ours, made = speeds["iecl"], dict[str, list[float]]()
    if "bare step" in speeds:
        made["of the bare step"] = over(ours, speeds["bare step"])
    rivals = []
    for peer in INPUTS:
        own = [values for arm, values in speeds.items() if arm.startswith(f"{peer}, ")]
        if own:
            rivals.append(max(own, key=median))
            made[f"over {peer}"] = over(ours, rivals[-1])
    if rivals:
        made["over the better rival"] = over(ours, max(rivals, key=median))
    return made


@contextmanager
def _known_network() -> Iterator[None]:
    """Let a plan name our smallest network while this is measured: it is of no use to anyone else."""
    BACKBONES[TINY] = Entry("iecl.benching.training:NextToNothing", "for this measurement")
    try:
        yield
    finally:
        del BACKBONES[TINY]


@contextmanager
def _arms_of(case: _Case, pictures: Path, scratch: Path, effort: Effort) -> Iterator[dict[str, Turn]]:
    """Everything that is compared; workers of ours end with it."""
    loops = [_our_loop(case, pictures, scratch)]
    arms = {"iecl": _turn_of_ours(loops[0])}
    if case.source == "memory":
        loops.append(_our_loop(case, pictures, scratch))
        arms["bare step"] = _turn_of_bare_step(loops[1])
    for peer, dataset_of in INPUTS.items():
        try:
            dataset = dataset_of(pictures, case.source, SIDE)
            for workers in case.workers:
                arms[f"{peer}, {workers} workers"] = _turn_of_peer(dataset, case, workers)
        except ImportError as problem:
            effort.leave_out(peer, problem)
    try:
        yield arms
    finally:
        for loop in loops:
            loop.loader.close()


def _our_loop(case: _Case, pictures: Path, scratch: Path) -> Loop:
    """A run of ours that is about to take its first step."""
    training = {"batch": case.batch, "accelerator": "cpu", "precision": "32-true", "loggers": (), "look_epochs": 0}
    flags = {
        "data": {"name": str(pictures), "image_size": SIDE},
        "backbone": {"name": case.network},
        "training": training | {"epochs": 1000},  # no turn comes near its end
    }
    plan = make_plan(method=case.method, flags=flags, sets=OUR_SETS[case.method])
    plan = with_data(plan, resolve_data(plan.data))
    plan = replace(plan, training=on_this_machine(plan.training))
    run = RunDirectory.fresh(Path(tempfile.mkdtemp(dir=scratch)) / "run")
    return Loop(make_fabric(plan.training, run.path), plan, run, ProgressLine(quiet=True))


def _turn_of_ours(loop: Loop) -> Turn:
    """Whole steps: input, views, forward, backward, optimiser, checks, records."""

    def endless() -> Iterator[Any]:
        while True:
            yield from loop.begin_epoch()

    batches = endless()

    def turn(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            loop.optimise(batches)
        return time.perf_counter() - began

    return turn


def _turn_of_bare_step(loop: Loop) -> Turn:
    """The same method and optimiser on views that are ready."""
    plan, clock = loop.plan, loop.clock(0)
    where: dict[str, Any] = {"size": plan.data.image_size, "mean": plan.data.mean, "std": plan.data.std}
    batch = next(loop.begin_epoch())
    views = channels_last(make_views(batch, POLICIES[plan.views.policy], loop.method.views, seed=0, epoch=0, **where))

    def turn(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            torch.autograd.backward(whole_loss(loop.method.step(views, clock)))
            loop.method.after_backward(clock)
            loop.optimiser.step()
            loop.optimiser.zero_grad(set_to_none=True)
            loop.method.after_step(clock)
        return time.perf_counter() - began

    return turn


def _turn_of_peer(dataset: Any, case: _Case, workers: int) -> Turn:
    """Their input, and lightly's step in a plain loop."""
    network = make_backbone(case.network, 0)
    step = peer_stepper(FromLightly(case.method, network).to(memory_format=torch.channels_last))
    how: dict[str, Any] = {
        "shuffle": True,
        "num_workers": workers,
        "drop_last": True,
        "persistent_workers": workers > 0,
    }
    loader: DataLoader[Any] = DataLoader(dataset, case.batch, **how)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def turn(steps: int) -> float:
        for _ in islice(batches, 2 * workers):  # what was made while others had their turn
            pass
        began = time.perf_counter()
        for _ in range(steps):
            step(*first_two(next(batches)))
        return time.perf_counter() - began

    return turn
