"""What does it take from nothing but a path to the first batch of 256? By number of files, beside ImageFolder.

    python -m benchmarks.bench.listing ours|torchvision FOLDER     # one measurement, in a process of its own

The files are a few tiny images under many names. Seconds begin when all modules are loaded; memory is what the
process held at most beyond what it held then.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.processes import answer, ask, can_tell_memory, peak_bytes
from benchmarks.bench.turns import take_turns

FILES, QUICK_FILES = (10**3, 10**4, 10**5, 10**6), (10**3, 10**4)
ROUNDS, BATCH = 3, 256
PER_FOLDER, NAMES = 1000, 50_000
"""NAMES: a file cannot have many more names than this."""
ARMS = {"ours": "", "torchvision": ", torchvision"}
GOALS = {"1,000,000 files: seconds": "at most 10", "1,000,000 files: bytes per file": "at most 100"}


def measure(effort: Effort) -> Content:
    """Seconds and memory by number of files."""
    content: Content = {
        "setting": f"from a path to the first batch of {BATCH}, each in a process of its own",
        "unit": "s, and bytes of peak memory",
        "results": {},
    }
    if not can_tell_memory():
        effort.leave_out("everything", "this system does not tell the peak memory of a process")
        return content
    with tempfile.TemporaryDirectory() as scratch:
        for count in QUICK_FILES if effort.is_quick else FILES:
            folder = Path(scratch) / str(count)
            _make_files(folder, count)
            content["results"] |= effort.rows(_rows(folder / "files", count, effort.rounds_of(ROUNDS, 1)), GOALS)
            effort.keep(content)
    return content


def _rows(folder: Path, count: int, rounds: int) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}

    def turn(arm: str) -> float:
        found = ask("listing", arm, str(folder))
        named = {"seconds": "seconds", "processor_seconds": "processor seconds", "bytes": "bytes per file"}
        for key, words in named.items():
            value = found[key] / count if key == "bytes" else found[key]
            rows.setdefault(f"{count:,} files{ARMS[arm]}: {words}", []).append(value)
        return float(found["seconds"])

    take_turns({arm: partial(turn, arm) for arm in ARMS}, rounds, warm=0)  # each process is as cold as the next
    return rows


def _make_files(folder: Path, count: int) -> None:
    """Tiny images, each of them one of a few files under another name."""
    noise = np.random.default_rng(0)
    for start in range(0, count, PER_FOLDER):
        own = folder / "files" / f"n{start // PER_FOLDER:08d}"
        own.mkdir(parents=True)
        if start % NAMES == 0:
            first = folder / f"{start}.png"
            Image.fromarray(noise.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(first)
        for number in range(start, min(start + PER_FOLDER, count)):
            os.link(first, own / f"{own.name}_{number:07d}.png")


def _our_first_batch() -> Callable[[str], object]:
    from iecl.data.defaults import resolve_data
    from iecl.data.factory import open_source
    from iecl.data.loader import Loader
    from iecl.data.settings import DataSettings

    def work(folder: str) -> object:
        settings = resolve_data(DataSettings(name=folder, cache_megabytes=0, num_workers=0))
        return next(Loader(open_source(settings, "pretrain"), batch=BATCH, seed=0).epoch(0))

    return work


def _their_first_batch() -> Callable[[str], object]:
    import torch
    from torchvision.datasets import ImageFolder

    def work(folder: str) -> object:
        files = ImageFolder(folder)
        torch.randperm(len(files))
        return [files[number] for number in range(BATCH)]

    return work


def main(arm: str, folder: str) -> None:
    """Measure one arm once."""
    ready = {"ours": _our_first_batch, "torchvision": _their_first_batch}
    works = {name: prepare() for name, prepare in ready.items()}  # both, so that both processes begin alike
    before, began, worked = peak_bytes(), time.perf_counter(), time.process_time()
    works[arm](folder)
    seconds = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked}
    answer(seconds | {"bytes": peak_bytes() - before})


if __name__ == "__main__":
    main(*sys.argv[1:])
