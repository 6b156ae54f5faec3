"""How fast do pictures arrive? Folders and packed files beside torchvision's ImageFolder, and listing of many files.

python -m benchmarks.pipeline PHOTOGRAPHS          # a folder of JPEGs as cameras and the web give them

Everything that is read is made from the photographs, in a temporary folder. All arms of a comparison take turns in one
run with the same number of workers. An arm's speed is pictures over wall time; where other work shares the machine, the
seconds of processor time that all its processes took for a picture say more: both ratios are kept.

torchvision decodes, cuts a random crop of 224 px, mirrors it and gives uint8; the faster of two ways, on tensors and on
PIL pictures, is what ours is held against, round by round. `two crops` is what contrastive training needs of it. Ours
gives the whole picture on its canvas, from which any number of views are cut later; `and cut` adds one view, cut and
mirrored, on two threads.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import iecl
from benchmarks.result import summary, write
from iecl.data.batch import Batch
from iecl.data.loader import Loader
from iecl.data.opening import open_source
from iecl.data.resolve import resolve_data
from iecl.data.settings import DataSettings
from iecl.views.making import make_views
from iecl.views.policies import POLICIES, ViewPlan

WORKERS, ROUNDS = 2, 7
FILES = (10**3, 10**4, 10**5, 10**6)
PEERS = ("torchvision on tensors", "torchvision on PIL")
Epoch = Callable[[int], Iterable[Any]]


# --- pictures


def make_medium(photographs: list[Path], folder: Path, count: int) -> str:
    """JPEGs of 500 × 375: files of that size as they are, copied until there are enough."""
    fitting = [path for path in photographs if sorted(Image.open(path).size) == [375, 500]]
    assert fitting, "none of the photographs is 500 × 375"
    for number in range(count):
        place(folder, number, ".jpg").write_bytes(fitting[number % len(fitting)].read_bytes())
    return f"{count} JPEGs of 500 × 375, {len(fitting)} different ones"


def make_large(photographs: list[Path], folder: Path, count: int) -> str:
    """JPEGs of 4000 × 3000: photographs enlarged, with a little noise, as a sensor has it."""
    noise = np.random.default_rng(0)
    for number in range(count):
        picture = Image.open(photographs[number % len(photographs)]).convert("RGB").resize((4000, 3000))
        grain = noise.normal(0, 3, (3000, 4000, 1))
        pixels = (np.asarray(picture) + grain).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place(folder, number, ".jpg"), quality=88)
    return f"{count} JPEGs of 12 megapixels"


def make_small(photographs: list[Path], folder: Path, count: int) -> str:
    """PNGs of 32 px: squares of the photographs."""
    noise = np.random.default_rng(0)
    opened = [Image.open(path).convert("RGB").resize((256, 256)) for path in photographs]
    for number in range(count):
        left, top = noise.integers(0, 128, 2).tolist()
        square = opened[number % len(opened)].crop((left, top, left + 128, top + 128))
        square.resize((32, 32)).save(place(folder, number, ".png"))
    return f"{count} PNGs of 32 px"


def place(folder: Path, number: int, ending: str) -> Path:
    """Where a picture goes: ten classes, a training part only."""
    own = folder / f"class{number % 10}"
    own.mkdir(parents=True, exist_ok=True)
    return own / f"{number:06d}{ending}"


# --- arms


def torchvision_loader(folder: Path, side: int, batch: int, *, on: str = "tensors", crops: int = 1) -> Epoch:
    crop: list[Any] = [v2.RandomResizedCrop(side, antialias=True), v2.RandomHorizontalFlip()]
    view = v2.Compose([v2.PILToTensor(), *crop] if on == "tensors" else [*crop, v2.PILToTensor()])
    several = view if crops == 1 else lambda picture: tuple(view(picture) for _ in range(crops))
    files = ImageFolder(str(folder), several)
    loader = DataLoader(files, batch, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True)
    return lambda epoch: loader


def our_loader(data: Path, batch: int, *, megabytes: int = 0, side: int = 0) -> Epoch:
    """Batches as training gets them; with a `side`, one view of each picture too."""
    settings = resolve_data(DataSettings(name=str(data), resident_megabytes=megabytes, workers=WORKERS))
    loader = Loader(open_source(settings, "pretrain"), batch=batch, seed=0, workers=WORKERS)
    if not side:
        return loader.epoch
    return lambda epoch: (cut(read, settings, epoch) for read in loader.epoch(epoch))


def cut(read: Batch, settings: DataSettings, epoch: int) -> torch.Tensor:
    look: dict[str, Any] = {"size": settings.image_size, "mean": settings.mean, "std": settings.std}
    torch.set_num_threads(WORKERS)
    views = make_views(read, POLICIES["crop"], ViewPlan(full=1), seed=0, epoch=epoch, **look)
    torch.set_num_threads(1)
    return views.full[0]


def processor_seconds() -> float:
    """Of this process and its workers, so far."""
    own = time.process_time()
    for child in multiprocessing.active_children():
        own += int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9
    return own


def measured(arms: dict[str, Epoch], images: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds of an epoch of each arm in turn; the first epoch, which starts workers, is left out."""
    wall: dict[str, list[float]] = {name: [] for name in arms}
    work: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, epoch in arms.items():
            began, worked = time.perf_counter(), processor_seconds()
            for _ in epoch(number):
                pass
            if number:
                wall[name].append(time.perf_counter() - began)
                work[name].append(processor_seconds() - worked)
        print(number, {name: round(images / times[-1]) for name, times in wall.items() if times}, flush=True)
    return {
        "images_per_second": {name: summary([images / value for value in wall[name]]) for name in arms},
        "processor_milliseconds": {name: summary([1000 * value / images for value in work[name]]) for name in arms},
        "speed": {name: summary(ratios) for name, ratios in over_peers(wall).items()},
        "work": {name: summary(ratios) for name, ratios in over_peers(work).items()},
    }


def over_peers(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """How many times faster each arm is than the faster way of torchvision, round by round."""
    best = [min(values) for values in zip(*(times[name] for name in PEERS), strict=True)]
    others = {name: own for name, own in times.items() if name not in PEERS}
    return {name: [a / b for a, b in zip(best, own, strict=True)] for name, own in others.items()}


def photographs_arms(folder: Path, scratch: Path, batch: int) -> dict[str, Epoch]:
    packed = scratch / f"{folder.name}.iecl"
    iecl.pack(folder, packed)
    return {
        PEERS[0]: torchvision_loader(folder, 224, batch),
        PEERS[1]: torchvision_loader(folder, 224, batch, on="PIL"),
        "torchvision, two crops": torchvision_loader(folder, 224, batch, crops=2),
        "folder": our_loader(folder, batch),
        "packed": our_loader(packed, batch),
        "packed and cut": our_loader(packed, batch, side=224),
    }


def small_arms(folder: Path, scratch: Path, batch: int) -> dict[str, Epoch]:
    packed = scratch / f"{folder.name}.iecl"
    iecl.pack(folder, packed)
    return {
        PEERS[0]: torchvision_loader(folder, 32, batch),
        PEERS[1]: torchvision_loader(folder, 32, batch, on="PIL"),
        "folder, decoded once": our_loader(folder, batch, megabytes=4096),
        "packed": our_loader(packed, batch),
        "packed and cut": our_loader(packed, batch, side=32),
    }


# --- listing

CHILD = """
import json, sys, time
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
import torch
from torchvision.datasets import ImageFolder
from iecl.data.loader import Loader
from iecl.data.opening import open_source
from iecl.data.resolve import resolve_data
from iecl.data.settings import DataSettings
arm, folder = sys.argv[1:]
before, began, worked = peak(), time.perf_counter(), time.process_time()
if arm == "ours":
    settings = resolve_data(DataSettings(name=folder, resident_megabytes=0, workers=0))
    files = open_source(settings, "pretrain")
    next(Loader(files, batch=256, seed=0).epoch(0))
else:
    files = ImageFolder(folder)
    torch.randperm(len(files))
    [files[number] for number in range(256)]
seconds = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked}
print(json.dumps(seconds | {"bytes": peak() - before}))
"""


def make_files(folder: Path, count: int, per_folder: int = 1000) -> None:
    """Tiny pictures, each of them one of a few files under another name."""
    noise = np.random.default_rng(0)
    for start in range(0, count, per_folder):
        own = folder / "files" / f"n{start // per_folder:08d}"
        own.mkdir(parents=True)
        if start % 50_000 == 0:  # a file cannot have many more names than this
            first = folder / f"{start}.png"
            Image.fromarray(noise.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(first)
        for number in range(start, min(start + per_folder, count)):
            os.link(first, own / f"{own.name}_{number:07d}.png")


def listed(scratch: Path, counts: Iterable[int], rounds: int = 3) -> dict[str, Any]:
    """What it takes from nothing but a path to the first batch of 256, in a process of its own."""
    found: dict[str, Any] = {}
    for count in counts:
        folder = scratch / f"listing{count}"
        make_files(folder, count)
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "torchvision": []}
        for _ in range(rounds):
            for arm, values in runs.items():
                words = [sys.executable, "-c", CHILD, arm, str(folder / "files")]
                values.append(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
        found[str(count)] = {
            arm: {
                "seconds": summary([run["seconds"] for run in values]),
                "processor_seconds": summary([run["processor_seconds"] for run in values]),
                "peak_bytes_a_file": summary([run["bytes"] / count for run in values]),
            }
            for arm, values in runs.items()
        }
        print(count, {arm: row["processor_seconds"]["median"] for arm, row in found[str(count)].items()}, flush=True)
    return found


def main(photographs: Path, files: int = FILES[-1]) -> None:
    torch.set_num_threads(1)
    opened = sorted(path for path in photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    sets: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for key, make, count, batch, arms in (
            ("500 × 375", make_medium, 448, 64, photographs_arms),
            ("12 megapixels", make_large, 24, 8, photographs_arms),
            ("32 px", make_small, 4096, 256, small_arms),
        ):
            folder = scratch / str(batch)
            words = make(opened, folder, count)
            found = measured(arms(folder, scratch, batch), count // batch * batch)
            sets[key] = {"setting": f"{words}, batch {batch}, {WORKERS} workers"} | found
        listings = listed(scratch, [count for count in FILES if count <= files])
    content = {
        "unit": "pictures a second over those of the faster way of torchvision in the same round",
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "results": {f"{key}: {arm}": row for key, found in sets.items() for arm, row in found["speed"].items()},
        "by_processor_time": {
            f"{key}: {arm}": row for key, found in sets.items() for arm, row in found["work"].items()
        },
        "sets": {
            key: {name: found[name] for name in found if name not in ("speed", "work")} for key, found in sets.items()
        },
        "listing": listings,
    }
    write("pipeline", "how fast do pictures arrive, beside torchvision's ImageFolder?", content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
