"""How fast is training as a whole, beside the bare step and beside peers? Turns of all arms in one run.

`bare step` has its views ready: what `iecl` lacks of it is the price of input, views, checks and records. The peers'
input is their own (transforms, datasets, workers); their step is lightly's in both cases, in a short loop without a
trainer around it, channels-last as ours. Everything is in 32 bits and has all threads of the machine. Each arm is a
process of its own that stands still, with its workers, while others have their turn. `memory`: images decoded before;
`folder`: PNG files, from the second epoch on.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.images import link_part, make_shapes
from benchmarks.bench.peers import INPUTS
from benchmarks.bench.processes import Companion, companions
from benchmarks.bench.training_arm import BARE, OURS, SIDE, TINY, Request
from benchmarks.bench.turns import Arm, over, summaries, take_turns

ROUNDS, IMAGES = 5, 4100
SECONDS, QUICK_SECONDS = 1.5, 0.1
"""Of a turn, at least; a step is never broken off."""
METHODS = ("simclr", "moco-v2", "byol", "simsiam")
Speeds = Mapping[str, list[float]]


@dataclass(frozen=True)
class _Case:
    """One comparison."""

    method: str
    network: str
    source: str
    workers: tuple[int, ...] = (0, 1, 2)
    """How many a peer may have: its best number counts."""
    batch: int = 256

    @property
    def name(self) -> str:
        return f"{self.method}, {self.network}, {self.source}"


CASES = (
    *(_Case(method, TINY, source) for method in METHODS for source in ("memory", "folder")),
    *(_Case(method, "resnet10-w16", "memory") for method in METHODS),
    _Case("simclr", "resnet18-small", "memory", workers=(1,)),  # workers decide nothing where steps take seconds
)
QUICK_CASES = (_Case("simclr", TINY, "memory", workers=(0, 1), batch=32),)
GOALS = {
    **{
        f"{method}, {TINY}, {source}: over the better rival": "at least 6"
        for method in METHODS[:2]
        for source in ("memory", "folder")
    },
    **{f"{method}, resnet10-w16, memory: of the bare step": "at least 0.9" for method in METHODS[:2]},
    **{f"{method}, resnet10-w16, memory: over the better rival": "at least 1.3" for method in METHODS[:2]},
    "simclr, resnet18-small, memory: of the bare step": "at least 0.97",
    "simclr, resnet18-small, memory: over lightly": "at least 1.08",
}


def measure(effort: Effort) -> Content:
    """Images a second beside the bare step and beside the better rival."""
    cases, count, seconds = (QUICK_CASES, 320, QUICK_SECONDS) if effort.is_quick else (CASES, IMAGES, SECONDS)
    content: Content = {"unit": "images a second over those of the other in the same round", "results": {}}
    if not hasattr(os, "killpg"):
        effort.leave_out("everything", "this system cannot let processes stand still")
        return content
    with tempfile.TemporaryDirectory() as made:
        images = Path(made) / "images"
        words = link_part(effort.data, images, count) if effort.data else make_shapes(images, count)
        content["setting"] = f"{words}, views of {SIDE} px, batch {cases[0].batch}, 32 bits, arms in turn"
        content["speeds"] = []
        best: dict[tuple[str, str, str], int] = {}
        for case in cases:
            with _arms_of(case, images, best, seconds, effort) as arms:
                speeds = take_turns(arms, effort.rounds_of(ROUNDS))
            _note_best(case, speeds, best)
            rows = effort.rows({f"{case.name}: {what}": own for what, own in _quotients(speeds).items()}, GOALS)
            content["results"] |= rows
            facts = {"method": case.method, "network": case.network, "input": case.source}
            content["speeds"].append(facts | {"images_per_second": summaries(speeds)})
            effort.keep(content)
    return content


def _note_best(case: _Case, speeds: Speeds, best: dict[tuple[str, str, str], int]) -> None:
    """Which number of workers suits a peer: the methods have the same input, so the first one decides for all."""
    for peer in INPUTS:
        own = {arm: values for arm, values in speeds.items() if arm.startswith(f"{peer}, ")}
        if own:
            fastest = max(own, key=lambda arm: median(own[arm]))
            best.setdefault((peer, case.network, case.source), int(fastest.split()[-2]))


def _quotients(speeds: Speeds) -> dict[str, list[float]]:
    """Ours beside the bare step, each peer at its best number of workers, and the better of the peers."""
    ours, made = speeds[OURS], dict[str, list[float]]()
    if BARE in speeds:
        made["of the bare step"] = over(ours, speeds[BARE])
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
def _arms_of(
    case: _Case, images: Path, best: Mapping[tuple[str, str, str], int], seconds: float, effort: Effort
) -> Iterator[dict[str, Arm]]:
    """Everything that is compared, each in its process; all end with the comparison."""
    shared = (case.method, case.network, case.source, str(images), case.batch)
    asked = {OURS: Request(OURS, *shared)}
    if case.source == "memory":
        asked[BARE] = Request(BARE, *shared)
    for peer in INPUTS:
        known = best.get((peer, case.network, case.source))
        for workers in case.workers if known is None else (known,):
            asked[f"{peer}, {workers} workers"] = Request(peer, *shared, workers)
    with companions("training_arm", {name: asdict(request) for name, request in asked.items()}) as started:
        for name, companion in started.items():
            if "absent" in companion.ready:
                effort.leave_out(asked[name].arm, companion.ready["absent"])
        yield {
            name: partial(_speed, companion, case.batch, seconds)
            for name, companion in started.items()
            if "absent" not in companion.ready
        }


def _speed(companion: Companion, batch: int, seconds: float) -> float:
    """Images a second in one turn."""
    found = companion.ask(str(seconds))
    return float(batch * found["steps"] / found["seconds"])
