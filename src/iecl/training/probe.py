"""The probe behind `iecl plan`: real training steps at a few batch sizes, in a process of its own.

    python -m iecl.training.probe < request.json

A process of its own, since whoever asks may hold much memory already, and may go on with something else. Seconds are
measured; bytes are counted (see `iecl.training.trial`), so that they are the same however busy the machine is. The last
line printed is the answer.
"""

import json
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from iecl import counter
from iecl.allocation import keep_freed_memory
from iecl.console import ProgressLine
from iecl.data.batch import Batch
from iecl.data.defaults import median_short_side, usual_side
from iecl.data.factory import fits_in_memory, list_source
from iecl.data.folder import FolderSource
from iecl.data.memory_cache import load_into_memory
from iecl.data.shard_source import ShardSource
from iecl.data.source import ChosenSource, Numbers, Source
from iecl.data.stream_order import StreamOrder, order_of
from iecl.errors import UserError
from iecl.runs.directory import RunDirectory, strict_json
from iecl.training.config import RunConfig, config_from_values
from iecl.training.loop import Loop, finish
from iecl.training.machine import free_memory, make_fabric, on_this_machine
from iecl.training.trial import try_steps

MOST_IMAGES = 2048
"""Images that are opened for the probe, unless a batch needs more."""
DECODED = 16
"""Images that tell how long decoding takes."""
FEWEST_STEPS, MOST_STEPS = 2, 40
"""Timed steps at each size, after a first one that is not counted with them."""
TRIAL = 8
"""Least images in the first batch that is tried: it tells which others there is time for."""
NEIGHBORS = 128
"""Images that tell how long the online kNN takes."""
LONG = 10_000
"""Epochs of a run whose end the probe never comes near."""


@dataclass(frozen=True)
class Opened:
    """Some of the images, and what opening all of them takes."""

    source: Source
    images: int
    """In all."""
    seconds: float
    decode_seconds: float
    """For one image, where images are decoded while training; else 0."""
    side: float
    """Shorter side of an image, usually."""


@dataclass(frozen=True)
class Row:
    """What a batch size took."""

    batch: int
    before: float
    """Seconds before an epoch's first step."""
    first: float
    """Seconds of the very first step."""
    steps: list[float]
    """Seconds of the steps after it."""

    def expected(self, batch: int) -> float:
        """Seconds that the fewest steps with another batch would take."""
        return self.before + (1 + FEWEST_STEPS) * min(self.steps) * batch / self.batch


def probe(config: RunConfig, seconds: float, line: ProgressLine) -> dict[str, Any]:
    """Take steps with the run's whole pipeline for about so many seconds; returns everything that was measured."""
    began = time.monotonic()
    config = replace(config, training=on_this_machine(config.training))
    world = max(1, config.training.devices) * config.training.nodes
    trial = try_steps(config)  # first: it looks at what the process holds before
    least = -(-trial.least_batch // world)
    alone = replace(config.training, devices=1, nodes=1, strategy="auto", loggers=(), epochs=LONG)
    fabric = make_fabric(alone, Path())
    free = free_memory(fabric.device)
    need = max(config.training.batch_size // world, least) * config.training.grad_accumulation
    line.show(f"opening some images of {config.data.name}")
    opened = open_part(config, need, seconds / 4)
    largest = min(need, len(opened.source)) // config.training.grad_accumulation
    config_alone, deadline = replace(config, training=alone), began + seconds
    rows, between = _measure(fabric, config_alone, opened.source, list(sizes(largest, least)), deadline, line)
    return between | {
        "settings": config.values(),
        "device": fabric.device.type,
        "processes": world,
        "least_batch": least * world,
        "small_batch": trial.small_batch,
        "images": opened.images,
        "open_seconds": opened.seconds,
        "fixed_megabytes": trial.fixed_megabytes(config, opened.images),
        "image_megabytes": trial.image / 2**20,
        "decode_seconds": opened.decode_seconds,
        "is_in_memory": opened.source.is_decoded,
        "opened": len(opened.source),
        "image_side": opened.side,
        "free_megabytes": free,
        "rows": [asdict(row) | {"batch": row.batch * world} for row in rows],
    }


def sizes(largest: int, least: int) -> Iterator[int]:
    """A small batch first, then a quarter, a half and the whole of the largest, as far as the method allows.

    >>> list(sizes(256, 2)), list(sizes(100, 2)), list(sizes(8, 2)), list(sizes(64, 32))
    ([8, 64, 128, 256], [12, 25, 50, 100], [8], [32, 64])
    """
    small = next((largest // n for n in (32, 16, 8) if largest // n >= max(TRIAL, least)), largest // 2)
    found = {size for size in (small, largest // 4, largest // 2) if size >= max(TRIAL, least)}
    yield from sorted(found | {largest})


def open_part(config: RunConfig, need: int, seconds: float) -> Opened:
    """As many images as a batch needs and the time allows, chosen at random and open as a run would have them."""
    began = time.monotonic()
    listed = list_source(config.data, "pretrain", _pass_over)
    listing = time.monotonic() - began
    order = order_of(listed, counter.key(config.training.seed, "probe"))
    if not isinstance(listed, FolderSource | ShardSource):
        whole = ChosenSource(listed, _some(order, need, MOST_IMAGES))
        return Opened(whole, len(listed), listing, 0.0, usual_side(config.data))
    is_folder = isinstance(listed, FolderSource)
    side = median_short_side(listed.listing, listed.max_pixels) if is_folder else usual_side(config.data)
    began = time.monotonic()
    listed.read(order[:DECODED])
    decode = (time.monotonic() - began) / min(DECODED, len(listed))
    count = min(MOST_IMAGES, int(seconds * max(1, config.data.num_workers) / decode))
    index = _some(order, need, count)
    if not fits_in_memory(listed, config.data):
        return Opened(ChosenSource(listed, index), len(listed), listing, decode, side)
    part = listed.select(index)
    began = time.monotonic()
    source, skipped = load_into_memory(part, config.data.num_workers)
    times = len(listed) / len(index)
    images = len(listed) - round(len(skipped) * times)
    return Opened(source, images, listing + (time.monotonic() - began) * times, 0.0, side)


def _some(order: "Numbers | StreamOrder", need: int, count: int) -> Numbers:
    return np.sort(order[: max(need, count)])


def _pass_over(path: str, reason: str) -> None:
    """The run itself names what it cannot read."""


def _measure(
    fabric: Fabric, config: RunConfig, source: Source, batches: list[int], deadline: float, line: ProgressLine
) -> tuple[list[Row], dict[str, Any]]:
    """Steps at each batch size that there is time for, and once what comes between epochs."""
    rows: list[Row] = []
    between: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, size in enumerate(batches):
            left = deadline - time.monotonic()
            if rows and rows[-1].expected(size) > left:
                break
            line.show(f"trying batches of {size:,}")
            _tell({"trying": size})
            run = RunDirectory.fresh(Path(scratch) / str(size))
            own = replace(config, training=replace(config.training, batch_size=size))
            loop = Loop(fabric, own, run, ProgressLine(quiet=True), source)
            before, first, steps = _take_steps(loop, left / (2 * (len(batches) - number)))
            if not rows:
                between = _between_epochs(loop, run)
            rows.append(Row(size, before, first, steps))
            del loop  # before the next one is built: a run never holds two
    return rows, between


def _take_steps(loop: Loop, seconds: float) -> tuple[float, float, list[float]]:
    """Seconds before an epoch, of the first step, and of further ones until the time is up."""
    end, before, times = time.monotonic() + seconds, 0.0, list[float]()
    batches: Generator[Batch, None, None] | None = None
    while len(times) <= FEWEST_STEPS or (len(times) <= MOST_STEPS and time.monotonic() < end):
        if loop.step % loop.steps_per_epoch == 0:
            if batches is not None:
                finish(batches)
            began = time.perf_counter()
            batches = loop.begin_epoch()
            before = time.perf_counter() - began
        assert batches is not None  # step 0 begins an epoch
        began = time.perf_counter()
        loop.optimize(batches)
        if loop.fabric.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    loop.loader.close()
    return before, times[0], times[1:]


def _between_epochs(loop: Loop, run: RunDirectory) -> dict[str, Any]:
    """What an epoch's end takes: the online kNN for each of its images, a checkpoint, and what is written."""
    found: dict[str, Any] = {"knn_seconds": 0.0}
    if loop.sample.is_possible and loop.config.training.online_eval_epochs:
        loop.sample.index = loop.sample.index[:NEIGHBORS]
        began = time.perf_counter()
        loop.sample.look(loop.method.encoder())
        found["knn_seconds"] = (time.perf_counter() - began) / len(loop.sample.index)
    began = time.perf_counter()
    loop.save()
    found["save_seconds"] = time.perf_counter() - began
    rows = list(run.read_metrics())
    weights = sum(tensor.numel() * tensor.element_size() for tensor in loop.method.encoder().state_dict().values())
    return found | {
        "checkpoint_megabytes": (run.checkpoints / "last.ckpt").stat().st_size / 2**20,
        "weights_megabytes": weights / 2**20,
        "metrics_megabytes": run.metrics.stat().st_size / max(1, len(rows)) / 2**20,
    }


def _tell(content: dict[str, Any]) -> None:
    sys.stdout.write(strict_json(content) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read a request, measure, answer; an error that a user can fix is an answer too."""
    request = json.load(sys.stdin)
    if request["keeps_memory"]:
        keep_freed_memory()
    with ProgressLine(request["quiet"]) as line:
        try:
            _tell(probe(config_from_values(request["values"]), request["seconds"], line))
        except UserError as problem:
            _tell({"error": problem.what, "where": problem.where, "do": problem.do, "kind": type(problem).__name__})


if __name__ == "__main__":
    main()
