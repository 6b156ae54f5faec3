"""How fast do images arrive? Folders and packed files beside torchvision's ImageFolder.

Everything that is read is made in a temporary folder, from photographs or from made images. Each arm is a process of
its own, with the same number of workers, that stands still while others have their turn, and gives random crops as
normalized floats. An arm's speed is images over wall time; where other work shares the machine, the seconds of
processor time that all its processes took for an image say more: both are kept. What ours is compared with is the
faster of torchvision's two ways, on tensors and on PIL images, round by round.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.images import Photographs, made_photographs, make_large, make_medium, make_small, photographs_of
from benchmarks.bench.pipeline_arm import ON_PIL, ON_TENSORS, OURS, Request
from benchmarks.bench.processes import companions
from benchmarks.bench.turns import over, summaries, take_turns
from iecl.data.pack_writer import pack

WORKERS, ROUNDS = 2, 7
PEERS = (ON_TENSORS, ON_PIL)
GOALS = {
    "500 × 375: folder": "at least 1.6",
    "12 megapixels: folder": "at least 4",
    "500 × 375: packed": "at least 8",
    "12 megapixels: packed": "at least 8",
}


@dataclass(frozen=True)
class _Case:
    """One kind of image."""

    make: Callable[[Photographs, Path, int], str]
    count: int
    """An even number of batches, so that both workers have as many."""
    batch: int
    side: int
    """Of a crop."""


CASES = {
    "500 × 375": _Case(make_medium, 512, 64, 224),
    "12 megapixels": _Case(make_large, 32, 4, 224),
    "32 px": _Case(make_small, 4096, 256, 32),
}
QUICK_CASES = {"500 × 375": _Case(make_medium, 16, 8, 224), "32 px": _Case(make_small, 64, 32, 32)}


def measure(effort: Effort) -> Content:
    """Images a second over those of torchvision's faster way, for each kind of image."""
    content: Content = {
        "unit": "images a second over those of the faster way of torchvision in the same round",
        "results": {},
    }
    if not hasattr(os, "killpg"):
        effort.leave_out("everything", "this system cannot let processes stand still")
        return content
    if effort.is_quick:
        effort.leave_out("images of 12 megapixels", "quick")
    taken = photographs_of(effort.data) if effort.data else made_photographs()
    content |= {"sets": {}, "more": {"By processor time of all processes": {}}}
    with tempfile.TemporaryDirectory() as name:
        for key, case in (QUICK_CASES if effort.is_quick else CASES).items():
            folder = Path(name) / str(case.batch)
            words = case.make(taken, folder, case.count)
            found = _measured(_requests(folder, case), effort)
            content["results"] |= effort.rows(_over_peers(key, found.seconds), GOALS)
            content["more"]["By processor time of all processes"] |= summaries(_over_peers(key, found.processor))
            content["sets"][key] = {
                "setting": f"{words}, batch {case.batch}, {WORKERS} workers",
                "images_per_second": summaries({arm: [1 / x for x in own] for arm, own in found.seconds.items()}),
                "processor_milliseconds": summaries(
                    {arm: [1000 * x for x in own] for arm, own in found.processor.items()}
                ),
            }
            content["setting"] = "; ".join(row["setting"] for row in content["sets"].values())
            effort.keep(content)
    return content


def _requests(folder: Path, case: _Case) -> dict[str, Request]:
    packed = folder.with_suffix(".iecl")
    pack(str(folder), packed, quiet=True)
    how = (case.batch, case.side, WORKERS)
    is_small = case.side < 100
    return {
        **{peer: Request(peer, str(folder), *how) for peer in PEERS},
        "folder, decoded once" if is_small else "folder": Request(OURS, str(folder), *how, is_cached=is_small),
        "packed": Request(OURS, str(packed), *how),
    }


@dataclass(frozen=True)
class _Found:
    """Of one image, by arm and round."""

    seconds: dict[str, list[float]]
    processor: dict[str, list[float]]


def _measured(requests: Mapping[str, Request], effort: Effort) -> _Found:
    """An epoch of each arm in turn; the first one, which starts workers, is left out."""
    rounds, processor = effort.rounds_of(ROUNDS), dict[str, list[float]]()

    def epoch(name: str) -> float:
        found = started[name].ask("")
        processor.setdefault(name, []).append(found["processor_seconds"] / found["images"])
        return float(found["seconds"] / found["images"])

    with companions("pipeline_arm", {name: asdict(request) for name, request in requests.items()}) as started:
        seconds = take_turns({name: partial(epoch, name) for name in started}, rounds)
    return _Found(seconds, {name: own[-rounds:] for name, own in processor.items()})


def _over_peers(key: str, times: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """How many times faster each arm is than the faster way of torchvision, round by round."""
    best = [min(values) for values in zip(*(times[name] for name in PEERS), strict=True)]
    return {f"{key}: {name}": over(best, own) for name, own in times.items() if name not in PEERS}
