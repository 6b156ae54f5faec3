"""One arm of the question `pipeline`, in a process of its own: an epoch whenever a line asks for it.

    python -m benchmarks.bench.pipeline_arm      # request as JSON, then a line for each turn

Whatever the arm, what comes out is what a network takes: a random crop of each image, mirrored or not, as normalized
floats. torchvision's workers do all of it; ours decode, and the crops of a whole batch are cut in the main process.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.bench.processes import answer
from iecl.allocation import keep_freed_memory
from iecl.data.batch import Batch
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.loader import Loader
from iecl.data.settings import DataSettings
from iecl.views.pipeline import make_views
from iecl.views.policies import POLICIES, ViewSpec

ON_TENSORS, ON_PIL, OURS = "torchvision on tensors", "torchvision on PIL", "iecl"
CACHE_MEGABYTES = 4096
Epoch = Callable[[int], Iterable[Any]]
"""The batches of the epoch with this number."""


@dataclass(frozen=True)
class Request:
    """What an arm is."""

    arm: str
    data: str
    """A folder, or a packed file."""
    batch: int
    side: int
    workers: int
    is_cached: bool = False
    """Whether a folder may be decoded once for all."""


def make_arm(request: Request) -> Epoch:
    """Whatever gives the batches of an epoch."""
    return _ours(request) if request.arm == OURS else _torchvision(request)


def _torchvision(request: Request) -> Epoch:
    crop: list[Any] = [v2.RandomResizedCrop(request.side, antialias=True), v2.RandomHorizontalFlip()]
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,) * 3, (0.25,) * 3)]
    cut = [v2.PILToTensor(), *crop] if request.arm == ON_TENSORS else [*crop, v2.PILToTensor()]
    files = ImageFolder(request.data, v2.Compose([*cut, *floats]))
    how: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": request.workers}
    loader: DataLoader[Any] = DataLoader(files, request.batch, persistent_workers=True, **how)
    return lambda epoch: loader


def _ours(request: Request) -> Epoch:
    keep_freed_memory()  # as training does
    megabytes = CACHE_MEGABYTES if request.is_cached else 0
    settings = DataSettings(
        name=request.data, image_size=request.side, cache_megabytes=megabytes, num_workers=request.workers
    )
    settings = resolve_data(settings)
    loader = Loader(open_source(settings, "pretrain"), batch=request.batch, seed=0, workers=request.workers)
    look: dict[str, Any] = {"size": settings.image_size, "mean": settings.mean, "std": settings.std}

    def cut(batch: Batch, epoch: int) -> torch.Tensor:
        return make_views(batch, POLICIES["crop"], ViewSpec(global_crops=1), seed=0, epoch=epoch, **look).global_crops[
            0
        ]

    return lambda epoch: (cut(batch, epoch) for batch in loader.epoch(epoch))


def _processor_seconds() -> float:
    """Of this process and its workers, so far; of this one alone where the system does not say."""
    files = [Path(f"/proc/{child.pid}/schedstat") for child in multiprocessing.active_children()]
    nanoseconds = [int(file.read_text(encoding="utf-8").split()[0]) for file in files if file.is_file()]
    return time.process_time() + sum(nanoseconds) / 1e9


def main() -> None:
    """Build the arm that is asked for, and go through epochs until nobody asks."""
    epochs = make_arm(Request(**json.loads(sys.stdin.readline())))
    answer({})
    for number, _ in enumerate(sys.stdin):
        began, worked = time.perf_counter(), _processor_seconds()
        images = sum(len(batch if isinstance(batch, torch.Tensor) else batch[0]) for batch in epochs(number))
        seconds = time.perf_counter() - began
        answer({"images": images, "seconds": seconds, "processor_seconds": _processor_seconds() - worked})


if __name__ == "__main__":
    main()
