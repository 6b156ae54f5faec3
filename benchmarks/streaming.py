"""What does streaming take? Peak memory by the number of images, and how much of a slow network is noticed.

    python -m benchmarks.streaming memory                     # a million images of 8 px; 2.5 GB of disk, some minutes
    python -m benchmarks.streaming latency SHARDS             # shards of photographs, as iecl pack --shards writes them

Memory: an epoch of batches in a process of its own, from shards that nobody has read into memory, with labels and the
fixed sample of a run. Latency: the same epoch with and without 50 ms that every read of a block is made to wait, in
turns.
"""

import io
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.bench.turns import summary
from benchmarks.result import write

COUNTS = (100_000, 1_000_000)
BATCH, DELAY, REPEATS = 256, 0.05, 3
_SHARD = 50_000


def make(folder: Path, count: int) -> None:
    """Shards of tiny PNG files with one of ten labels each."""
    noise = np.random.default_rng(0)
    images = []
    for _ in range(1000):
        buffer = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "PNG")
        images.append(buffer.getvalue())
    for first in range(0, count, _SHARD):
        with tarfile.open(folder / f"{first // _SHARD:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(first, min(first + _SHARD, count)):
                for ending, content in (("png", images[number % 1000]), ("cls", b"%d" % (number % 10))):
                    about = tarfile.TarInfo(f"{number:09d}.{ending}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


def epoch(folder: str) -> None:
    """One epoch; prints what it took."""
    import torch

    from iecl.data.factory import open_source
    from iecl.data.loader import Loader
    from iecl.training.config import make_config
    from iecl.training.online_eval import FixedSample

    flags = {"data": {"name": folder, "cache_megabytes": 0, "num_workers": 0, "image_size": 8, "decode_size": 8}}
    config = make_config(method="simclr", flags=flags | {"backbone": {"name": "resnet10-w16"}})
    source = open_source(config.data, "pretrain")
    sample = FixedSample(source, config, torch.device("cpu"))
    sample.is_one_image()
    began, used, seen = time.perf_counter(), time.process_time(), 0
    opened = _peak()
    for batch in Loader(source, batch=BATCH, seed=0).epoch(0):
        seen += len(batch.index)
    print(
        json.dumps(
            {
                "images": seen,
                "blocks": len(source.bounds) - 1,
                "peak_megabytes": _peak(),
                "peak_megabytes_before_the_epoch": opened,
                "processor_seconds": round(time.process_time() - used, 1),
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
    )


def _peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def memory() -> None:
    results = {}
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), count)
            subprocess.run([*_ME, "index", folder], check=True)  # so that the epoch finds it
            done = subprocess.run([*_ME, "epoch", folder], check=True, capture_output=True, text=True)
            results[f"{count:,}"] = json.loads(done.stdout.splitlines()[-1])
            print(count, results[f"{count:,}"], flush=True)
    few, many = (results[f"{count:,}"]["peak_megabytes"] for count in COUNTS)
    content = {
        "setting": f"PNG of 8 px with labels, batches of {BATCH}, no workers, one process",
        "unit": "peak resident megabytes of the process, and the larger over the smaller",
        "results": {
            **{f"{count} images, MB": summary([row["peak_megabytes"]]) for count, row in results.items()},
            "ratio": summary([many / few]),
        },
        "epochs": results,
    }
    write("streaming_memory", "does the memory of a streamed epoch grow with the number of images?", content)


def index(folder: str) -> None:
    """Make the index of shards."""
    from iecl.data.shard_set import open_shards

    open_shards(((folder,), False))


def latency(shards: str) -> None:
    from iecl.data import block_cache, shard_source
    from iecl.data.factory import open_source
    from iecl.data.loader import Loader
    from iecl.data.settings import DataSettings

    read, reads, waited = shard_source.read_range, 0, 0.0

    class Timed(Future[object]):
        def result(self, timeout: float | None = None) -> object:
            nonlocal waited
            began = time.perf_counter()
            found = super().result(timeout)
            waited += time.perf_counter() - began
            return found

    block_cache.Future = Timed

    def slow(*where: object) -> bytes:
        nonlocal reads
        reads += 1
        time.sleep(DELAY)
        return read(*where)

    arms = {"plain": read, "delayed": slow}
    source = open_source(DataSettings(name=shards, cache_megabytes=0, num_workers=0), "pretrain")
    rates: dict[str, list[float]] = {name: [] for name in arms}
    waits: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(2 * REPEATS):
        name = ("plain", "delayed", "delayed", "plain")[number % 4]
        shard_source.read_range = arms[name]
        began, seen, waited = time.perf_counter(), 0, 0.0
        for batch in Loader(source, batch=64, seed=number // 2).epoch(0):
            seen += len(batch.index)
        rates[name].append(round(seen / (time.perf_counter() - began), 1))
        waits[name].append(round(waited, 3))
        print(name, rates[name][-1], waits[name][-1], flush=True)
    ratios = [late / soon for late, soon in zip(rates["delayed"], rates["plain"], strict=True)]
    content = {
        "setting": f"{len(source):,} images in {len(source.bounds) - 1} blocks, batches of 64, no workers",
        "unit": f"images a second with {1000 * DELAY:g} ms before every read over images a second without",
        "results": {"delayed / plain": summary(ratios)},
        "images_per_second": rates,
        "seconds_waited_in_an_epoch": waits,
        "reads_of_an_epoch": round(reads / REPEATS, 1),
        "seconds_if_one_after_the_other": round(reads / REPEATS * DELAY, 1),
    }
    write("streaming_latency", "how much of 50 ms for each read of a shard is noticed?", content)


_ME = [sys.executable, "-m", "benchmarks.streaming"]

if __name__ == "__main__":
    {"memory": memory, "latency": latency, "epoch": epoch, "index": index}[sys.argv[1]](*sys.argv[2:])
