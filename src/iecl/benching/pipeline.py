"""How fast do pictures arrive? Folders and packed files beside torchvision's ImageFolder.

Everything that is read is made in a temporary folder, from photographs or from made pictures. All arms of a comparison
take turns in one run with the same number of workers. An arm's speed is pictures over wall time; where other work
shares the machine, the seconds of processor time that all its processes took for a picture say more: both are kept.

torchvision decodes, cuts a random crop of 224 px, mirrors it and gives uint8; the faster of two ways, on tensors and on
PIL pictures, is what ours is held against, round by round. `two crops` is what contrastive training needs of it. Ours
gives the whole picture on its canvas, from which any number of views are cut later; `and cut` adds one view, cut and
mirrored, on two threads.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from iecl.benching.effort import Content, Effort
from iecl.benching.pictures import Photographs, made_photographs, make_large, make_medium, make_small, photographs_of
from iecl.benching.turns import over, summaries, summary, with_threads
from iecl.data.batch import Batch
from iecl.data.loader import Loader
from iecl.data.opening import open_source
from iecl.data.packing import pack
from iecl.data.resolve import resolve_data
from iecl.data.settings import DataSettings
from iecl.views.making import make_views
from iecl.views.policies import POLICIES, ViewPlan

WORKERS, ROUNDS = 2, 7
PEERS = ("torchvision on tensors", "torchvision on PIL")
GOALS = {
    "500 × 375: folder": "at least 1.6",
    "12 megapixels: folder": "at least 4",
    "500 × 375: packed": "at least 8",
    "12 megapixels: packed": "at least 8",
}
Epoch = Callable[[int], Iterable[Any]]
"""The batches of the epoch with this number."""


@dataclass(frozen=True)
class _Case:
    """One kind of picture."""

    make: Callable[[Photographs, Path, int], str]
    count: int
    batch: int
    side: int
    """Of what torchvision cuts out."""


CASES = {
    "500 × 375": _Case(make_medium, 448, 64, 224),
    "12 megapixels": _Case(make_large, 24, 8, 224),
    "32 px": _Case(make_small, 4096, 256, 32),
}
QUICK_CASES = {"500 × 375": _Case(make_medium, 16, 8, 224), "32 px": _Case(make_small, 64, 32, 32)}


def measure(effort: Effort) -> Content:
    """Pictures a second over those of torchvision's faster way, for each kind of picture."""
    content: Content = {
        "unit": "pictures a second over those of the faster way of torchvision in the same round",
        "threads": 1,
        "results": {},
        "by_processor_time": {},
        "sets": {},
    }
    if effort.is_quick:
        effort.leave_out("pictures of 12 megapixels", "quick")
    taken = photographs_of(effort.data) if effort.data else made_photographs()
    with tempfile.TemporaryDirectory() as name, with_threads(1):
        for key, case in (QUICK_CASES if effort.is_quick else CASES).items():
            folder = Path(name) / str(case.batch)
            words = case.make(taken, folder, case.count)
            found = _measured(_arms(folder, Path(name), case), case.count // case.batch * case.batch, effort)
            speeds = {f"{key}: {arm}": values for arm, values in _over_peers(found.wall).items()}
            content["results"] |= effort.rows(speeds, GOALS)
            if found.work:
                content["by_processor_time"] |= summaries(
                    {f"{key}: {arm}": values for arm, values in _over_peers(found.work).items()}
                )
            setting = f"{words}, batch {case.batch}, {WORKERS} workers"
            content["sets"][key] = {"setting": setting} | found.in_words()
            effort.keep(content)
    content["setting"] = "; ".join(row["setting"] for row in content["sets"].values())
    if content["by_processor_time"]:
        content["more"] = {"By processor time of all processes": content.pop("by_processor_time")}
    return content


def _arms(folder: Path, scratch: Path, case: _Case) -> dict[str, Epoch]:
    packed = scratch / f"{folder.name}.iecl"
    pack(str(folder), packed, quiet=True)
    arms = {
        PEERS[0]: _torchvision_loader(folder, case),
        PEERS[1]: _torchvision_loader(folder, case, on="PIL"),
    }
    if case.side < 100:
        arms["folder, decoded once"] = _our_loader(folder, case, megabytes=4096)
    else:
        arms["torchvision, two crops"] = _torchvision_loader(folder, case, crops=2)
        arms["folder"] = _our_loader(folder, case)
    return arms | {"packed": _our_loader(packed, case), "packed and cut": _our_loader(packed, case, is_cut=True)}


class _Crops:
    """Some random crops of a picture; a class, so that workers can be sent it."""

    def __init__(self, side: int, on: str, crops: int) -> None:
        crop: list[Any] = [v2.RandomResizedCrop(side, antialias=True), v2.RandomHorizontalFlip()]
        self.view = v2.Compose([v2.PILToTensor(), *crop] if on == "tensors" else [*crop, v2.PILToTensor()])
        self.crops = crops

    def __call__(self, picture: Image.Image) -> tuple[Tensor, ...]:
        """The crops."""
        return tuple(self.view(picture) for _ in range(self.crops))


def _torchvision_loader(folder: Path, case: _Case, *, on: str = "tensors", crops: int = 1) -> Epoch:
    files = ImageFolder(str(folder), _Crops(case.side, on, crops))
    how: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": WORKERS, "persistent_workers": True}
    loader: DataLoader[Any] = DataLoader(files, case.batch, **how)
    return lambda epoch: loader


def _our_loader(data: Path, case: _Case, *, megabytes: int = 0, is_cut: bool = False) -> Epoch:
    """Batches as training gets them; or cut, one view of each picture too."""
    settings = resolve_data(DataSettings(name=str(data), resident_megabytes=megabytes, workers=WORKERS))
    loader = Loader(open_source(settings, "pretrain"), batch=case.batch, seed=0, workers=WORKERS)
    if not is_cut:
        return loader.epoch
    return lambda epoch: (_cut(read, settings, epoch) for read in loader.epoch(epoch))


def _cut(read: Batch, settings: DataSettings, epoch: int) -> Tensor:
    look: dict[str, Any] = {"size": settings.image_size, "mean": settings.mean, "std": settings.std}
    with with_threads(WORKERS):
        return make_views(read, POLICIES["crop"], ViewPlan(full=1), seed=0, epoch=epoch, **look).full[0]


@dataclass(frozen=True)
class _Found:
    """Seconds of an epoch of each arm by round."""

    images: int
    wall: dict[str, list[float]]
    work: dict[str, list[float]]
    """Of all its processes; empty where the system does not say."""

    def in_words(self) -> Content:
        """By picture."""
        speed = {name: summary([self.images / value for value in own]) for name, own in self.wall.items()}
        work = {name: summary([1000 * value / self.images for value in own]) for name, own in self.work.items()}
        return {"images_per_second": speed} | ({"processor_milliseconds": work} if work else {})


def _measured(arms: Mapping[str, Epoch], images: int, effort: Effort) -> _Found:
    """An epoch of each arm in turn; the first epoch, which starts workers, is left out."""
    wall: dict[str, list[float]] = {name: [] for name in arms}
    work: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(effort.rounds_of(ROUNDS) + 1):
        for name, epoch in arms.items():
            began, worked = time.perf_counter(), _processor_seconds()
            for _ in epoch(number):
                pass
            if number:
                wall[name].append(time.perf_counter() - began)
                work[name].append(_processor_seconds() - worked)
    return _Found(images, wall, work if _schedule("self").is_file() else {})


def _schedule(process: int | str | None) -> Path:
    """Where Linux says how long a process ran."""
    return Path(f"/proc/{process}/schedstat")


def _processor_seconds() -> float:
    """Of this process and its workers, so far; of this one alone where the system does not say."""
    files = [_schedule(child.pid) for child in multiprocessing.active_children()]
    nanoseconds = [int(file.read_text(encoding="utf-8").split()[0]) for file in files if file.is_file()]
    return time.process_time() + sum(nanoseconds) / 1e9


def _over_peers(times: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """How many times faster each arm is than the faster way of torchvision, round by round."""
    best = [min(values) for values in zip(*(times[name] for name in PEERS), strict=True)]
    return {name: over(best, own) for name, own in times.items() if name not in PEERS}
