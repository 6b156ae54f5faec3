"""What a run takes, from two or three steps with a few random images: bytes that are counted, seconds that are timed.

Bytes are those of tensors that are alive at the same time. They are the same however busy the machine is, and grow with
the batch on a line, so that steps of 8 and of 16 images tell what one of 256 needs. What a process holds besides,
its libraries and what they compile, is measured and added.
"""

import io
import logging
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from iecl import parallel
from iecl.console import ProgressLine
from iecl.data.datasets import FACTS
from iecl.data.factory import list_source
from iecl.data.folder import FolderSource
from iecl.data.shard_source import ShardSource
from iecl.data.source import ArraySource
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig
from iecl.training.factory import sketch_method
from iecl.training.loop import Loop
from iecl.training.machine import held_memory, make_fabric

LOADED = 180
"""MB that the first steps load and compile: loops of views, kernels of convolutions."""
SAVED = 2
"""Copies of a checkpoint that saving holds at a time."""
LOOK_IMAGES, LOOK_BATCH = 2048, 256
"""Images that the online evaluation looks at, and how many of them at a time."""
KEPT = 3
"""Checkpoints that stay: last, previous and best; one more is there while it is written."""
FEW = {64: 16, 160: 8}
"""Images in the smaller of the two batches by side, unless the method needs more; of larger ones 4.

With fewer, gradients of weights weigh more than images, and what an image needs cannot be told.
"""
DISTINCT = 4
"""Random images that there are."""
SAMPLES = 64
"""Images that there seem to be, for methods that look at all of them."""
DECODED = 4
"""Images of the run's own that tell how long decoding takes."""
LOOKED_AT = 8
"""Images that tell what the online evaluation holds for each."""


@dataclass(frozen=True)
class Trial:
    """What a few steps took, in one process."""

    seconds: float
    """For an image, on a machine that does nothing else: a busy one must not lead to other choices."""
    busy: float
    """How many times as long it took."""
    look_seconds: float
    """For an image of the online evaluation."""
    weights: int
    """Bytes of weights and buffers; the next three come on top of them."""
    step: int
    """Bytes of a step of no image: gradients, moments, what does not depend on the batch."""
    image: int
    """Bytes of each image in a step."""
    row: int
    """Bytes of each view in the backbone, where they pass it in chunks; else they are a part of `image`."""
    together: int
    """Views of an image that the backbone is given in one call."""
    look: int
    """Bytes of each image that the online evaluation holds at a time."""
    checkpoint: int
    """Bytes of a checkpoint."""
    backbone: int
    """Bytes of the backbone alone."""
    least_batch: int
    small_batch: Mapping[str, Any] | None
    base: int
    """MB that the process held before: Python, its libraries, and whatever else is in it."""
    decode: float
    """Seconds to decode an image."""
    save: float
    """Seconds to write a checkpoint."""

    def epoch_seconds(self, config: RunConfig, images: int) -> float:
        """Seconds of an epoch: steps, online evaluation, a checkpoint, and images that are not kept."""
        training = config.training
        looks = min(images, LOOK_IMAGES) * self.look_seconds / max(1, training.online_eval_epochs)
        decoding = 0.0 if kept_megabytes(config, images) else images * self.decode / max(1, config.data.num_workers)
        devices = max(1, training.devices) * training.nodes if training.accelerator != "cpu" else 1
        return images * self.seconds / devices + looks + self.save + decoding

    def start_seconds(self, config: RunConfig, images: int) -> float:
        """Seconds until the first step: decoding what is kept, and a look at the untrained network."""
        decoding = images * self.decode / max(1, config.data.num_workers) if kept_megabytes(config, images) else 0.0
        return decoding + 2 * min(images, LOOK_IMAGES) * self.look_seconds

    def megabytes(self, config: RunConfig, images: int) -> float:
        """The most memory that one process will hold."""
        world = max(1, config.training.devices) * config.training.nodes
        return self.fixed_megabytes(config, images) + config.training.batch_size // world * self.image / 2**20

    def fixed_megabytes(self, config: RunConfig, images: int) -> float:
        """The same without the images of a batch.

        Freed memory is kept, and blocks of the online evaluation or of a checkpoint do not fit into the gaps that a
        step leaves: the larger of these two comes on top of the step.
        """
        look = self.look * min(images, LOOK_BATCH) if config.training.online_eval_epochs else 0
        training, world = config.training, max(1, config.training.devices) * config.training.nodes
        rows = min(training.grad_cache, self.together * training.batch_size // world)
        counted = (self.weights + self.step + rows * self.row + max(look, SAVED * self.checkpoint)) / 2**20
        if config.training.accelerator in ("cuda", "mps"):
            return counted
        return self.base + LOADED + counted + kept_megabytes(config, images)

    def disk_megabytes(self) -> float:
        """Checkpoints that stay, the one that is written, and the backbone; logs are small beside them."""
        return ((KEPT + 1) * self.checkpoint + self.backbone) / 2**20


def kept_megabytes(config: RunConfig, images: int) -> float:
    """MB of decoded images in memory; 0: they are decoded in each epoch."""
    size = config.data.channels * config.data.decode_size**2 * images / 2**20
    if config.data.name in FACTS:
        return 0.0 if FACTS[config.data.name].are_files else size
    return size if size <= config.data.cache_megabytes else 0.0


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has not typed it
    """Counts what tensors hold that are made within the block, and remembers the most; `known` were there before."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.most = 0, 0
        self._known = [tensor.untyped_storage() for tensor in known]
        self._alive: dict[int, Any] = {storage._cdata: None for storage in self._known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note what it made."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            self.now -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


class _RandomImages(ArraySource):
    """A few random images that stand for many."""

    def __init__(self, channels: int, side: int, count: int) -> None:
        drawn, shape = torch.Generator().manual_seed(0), (DISTINCT, channels, side, side)
        super().__init__("trial", torch.randint(256, shape, generator=drawn, dtype=torch.uint8))
        self.labels = np.arange(count) % 2
        self.classes = ("a", "b")

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: Any) -> Any:
        return super().read(index % DISTINCT)


def try_steps(config: RunConfig) -> Trial:
    """Take steps as a run of this resolved configuration would: one of a few images, two of twice as many.

    One process is tried, whatever their number, with one thread: several wait for each other on a busy machine, and
    nobody could tell that from work. They are taken to share it evenly. Nothing is left of it all but time.
    """
    threads = torch.get_num_threads()
    with parallel.threads(1), _unheard("iecl.parts"):  # of so few images, methods with clusters would complain
        return _try_steps(config, threads)


@contextmanager
def _unheard(name: str) -> Iterator[None]:
    """What these modules log within the block is dropped."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _try_steps(config: RunConfig, threads: int) -> Trial:
    world, base = max(1, config.training.devices) * config.training.nodes, held_memory()
    method = sketch_method(config, world)
    least, small = method.min_batch, method.small_batch
    del method
    few = max(least, next((few for top, few in FEW.items() if config.data.image_size <= top), 4))
    with tempfile.TemporaryDirectory() as scratch:
        steps = Steps(_in_chunks(config, few // 2), few, Path(scratch) / "few")
        low = steps.take()
        known: dict[str, Any] = steps.sizes() | steps.look(threads) | {"save": steps.save()}
        del steps  # before the next one is built: a run never holds two
        steps = Steps(_in_chunks(config, few // 2), 2 * few, Path(scratch) / "more")
        more = steps.take()
        image, row = (more - low) // few, 0
        seconds, busy = steps.seconds(threads)
        if config.training.grad_cache:
            del steps
            steps = Steps(_in_chunks(config, few), 2 * few, Path(scratch) / "chunks")
            row = (steps.take() - more) // (few - few // 2)
        if config.training.accelerator in ("cuda", "mps"):  # a few images leave most of a GPU idle
            del steps
            steps = Steps(config, config.training.batch_size // world, Path(scratch) / "all")
            steps.take()
            seconds, busy = steps.seconds(threads)
    return Trial(
        **known,
        seconds=seconds,
        busy=busy,
        step=max(0, low - few * image - few // 2 * row),
        image=image,
        row=row,
        base=base,
        decode=_decode_seconds(config),
        least_batch=least * world,
        small_batch=None if small is None else asdict(small),
    )


def _in_chunks(config: RunConfig, chunk: int) -> RunConfig:
    """The configuration with other chunks, if it has some: those of a run are larger than a trial's whole batch.

    There are at least two in a trial, since gradients of weights are there from the second on. They may cut through
    groups of norms, which hold no memory.
    """
    if not config.training.grad_cache:
        return config
    method = {key: value for key, value in config.method.items() if key != "norm_groups"}
    return replace(config, method=method, training=replace(config.training, grad_cache=chunk))


def _decode_seconds(config: RunConfig) -> float:
    """Seconds to decode an image of a folder."""
    listed = list_source(config.data, "pretrain", lambda path, reason: None)
    if not isinstance(listed, FolderSource | ShardSource):
        return 0.0
    index = np.linspace(0, len(listed) - 1, min(DECODED, len(listed))).astype(np.int64)
    used = time.process_time()
    listed.read(index)
    return (time.process_time() - used) / len(index)


class Steps:
    """A few steps with a batch, from the views to the optimizer, as long as `samples` last."""

    def __init__(self, config: RunConfig, batch: int, folder: Path, samples: int = SAMPLES) -> None:
        alone = replace(
            config.training, devices=1, nodes=1, strategy="auto", loggers=(), batch_size=batch, grad_accumulation=1
        )
        alone = replace(alone, compile=False, epochs=2)
        data = replace(config.data, num_workers=0)
        slow = replace(config.optimizer, lr=1e-8, lr_base_batch=0)  # whether it diverges is not asked here
        own = replace(config, training=alone, data=data, optimizer=slow)
        run, self.batch = RunDirectory.fresh(folder), batch
        self.loop = Loop(
            make_fabric(alone, folder),
            own,
            run,
            ProgressLine(quiet=True),
            _RandomImages(data.channels, data.decode_size, max(samples, 2 * batch)),
        )
        self.batches = self.loop.begin_epoch()
        self.rows = [0]
        """Images in each call of the backbone."""

    def take(self) -> int:
        """One step; returns the most bytes that are alive beside the weights in any later step."""
        counted = LiveBytes(self._tensors())
        before = list[int]()
        encoder = self.loop.method.encoder()
        look = encoder.register_forward_pre_hook(lambda _, x: self.rows.append(len(x[0])))
        hook = self.loop.optimizer.optimizer.register_step_pre_hook(lambda *_: before.append(counted.most))
        with counted:
            self.loop.optimize(self.batches)
        hook.remove()
        look.remove()
        return before[0] + self._moments()  # it ended by making them

    def seconds(self, threads: int) -> tuple[float, float]:
        """Of one more step for each image, and how busy the machine is; the first step compiles and asks for memory."""
        began, used = time.perf_counter(), time.process_time()
        self.loop.optimize(self.batches)
        next(self.loop.method.parameters()).sum().item()  # waits for a GPU
        seconds, used = time.perf_counter() - began, time.process_time() - used
        if self.loop.fabric.device.type != "cpu":
            return seconds / self.batch, 1.0
        return used / threads / self.batch, max(1.0, seconds / used)

    def look(self, threads: int) -> dict[str, Any]:
        """Seconds and bytes of the online evaluation for each image."""
        sample, encoder = self.loop.sample, self.loop.method.encoder()
        sample.index = sample.index[:LOOKED_AT]
        used = time.process_time()
        counted = LiveBytes(self._tensors())
        with counted:
            sample.look(encoder)
        seconds = (time.process_time() - used) / threads
        return {"look_seconds": seconds / LOOKED_AT, "look": counted.most // LOOKED_AT}

    def save(self) -> float:
        """Seconds to make a checkpoint and to read it back; what the disk takes for it is not known."""
        used, buffer = time.process_time(), io.BytesIO()
        torch.save(self.loop._state(), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
        return time.process_time() - used

    def sizes(self) -> dict[str, int]:
        """Bytes of weights and buffers, of a checkpoint, and of the backbone; and how many views it gets at a time."""
        weights, backbone = self._tensors(), self.loop.method.encoder().state_dict().values()
        return {
            "together": max(self.rows) // self.batch,
            "weights": _bytes(weights),
            "checkpoint": _bytes(weights) + self._moments(),
            "backbone": _bytes(backbone),
        }

    def _moments(self) -> int:
        return _bytes(tree_leaves(self.loop.optimizer.state_dict()["state"]))

    def _tensors(self) -> list[Tensor]:
        return [*self.loop.method.parameters(), *self.loop.method.buffers()]


def _bytes(leaves: Iterable[Any]) -> int:
    return sum(int(leaf.untyped_storage().nbytes()) for leaf in leaves if isinstance(leaf, Tensor))
