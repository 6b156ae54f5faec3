"""The training of a detector or segmenter: steps in a fixed order, any of which can be the first after a break."""

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from iecl import counter
from iecl.console import ProgressLine
from iecl.errors import Interrupted, TrainingError
from iecl.runs.checkpoint import Check, latest_checkpoint, save_checkpoint
from iecl.runs.directory import write_atomically
from iecl.schedule import Clock, warm_cosine
from iecl.training.checkpoint_check import check_course
from iecl.training.optimizers import recall
from iecl.training.signals import StopFlag

SCHEDULES = ("constant", "steps", "poly", "cosine")
KEEP_SECONDS = 60.0
"""Epochs of a tiny set end every second; their states are not written more often than this."""
_AHEAD = 2  # batches that are being read while one is trained on
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a training goes; the settings of the evaluations say what each number means."""

    epochs: int
    batch: int
    rate: float
    schedule: str
    warmup: int
    workers: int
    seed: int


@dataclass(frozen=True)
class Slot:
    """One place in one batch: which image is there, and what its draws are keyed by."""

    row: int
    epoch: int
    position: int


def rate_share(schedule: str, clock: Clock, warmup: int) -> float:
    """Share of the peak learning rate: a linear warm-up, then as the schedule says.

    `steps` divides by ten after 3/4 and after 11/12 of the training, as 18k and 22k of MoCo's 24k steps do.

    >>> [rate_share("steps", Clock(0, step, 12, 0, 1), 0) for step in (0, 8, 9, 11)]
    [1.0, 1.0, 0.1, 0.01]
    """
    if clock.step < warmup:
        return (clock.step + 1) / warmup
    if schedule == "cosine":
        return warm_cosine(clock, warmup)
    if schedule == "poly":
        return float((1 - clock.step / clock.steps) ** 0.9)
    if schedule == "steps":
        return 0.01 if 12 * clock.step >= 11 * clock.steps else 0.1 if 4 * clock.step >= 3 * clock.steps else 1.0
    return 1.0


def steps_of(images: int, batch: int) -> int:
    """Steps in an epoch."""
    return -(-images // batch)


def slots_of_step(step: int, images: int, batch: int, seed: int) -> list[Slot]:
    """The batch of a step. Every batch is full: the last of an epoch is filled up from the epoch's beginning."""
    steps = steps_of(images, batch)
    epoch, number = divmod(step, steps)
    order = counter.permutation(counter.key(seed, "voc/order", epoch), images).tolist()
    positions = range(number * batch, (number + 1) * batch)
    return [Slot(order[position % images], epoch, position) for position in positions]


@contextmanager
def seeded(key: int, device: torch.device) -> Iterator[None]:
    """Draws of torch's own generators, which a part from elsewhere uses, follow from the key; then all is as before."""
    index = [device.index or 0] if device.type == "cuda" else []
    with counter.seeded(key), torch.random.fork_rng(devices=index):
        if device.type != "cpu":
            torch.manual_seed(key)
        yield


@dataclass
class Memory:
    """A folder in which a training leaves its state, so that it can go on after a break."""

    work: Path | None
    """The folder for all trainings of an evaluation; None: nothing is kept."""
    identity: dict[str, Any]
    """What must be the same for a state to be of use: settings, weights, data."""
    folder: Path | None = field(init=False, default=None)
    """That of this very training: others do not disturb it."""
    _kept_at: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        if self.work is not None:
            text = json.dumps(self.identity, sort_keys=True)
            self.folder = self.work / blake2b(text.encode(), digest_size=8).hexdigest()
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "training.json", text + "\n")

    def recall(self, check: Check) -> dict[str, Any] | None:
        """The newest state that passes the check, or None."""
        found = latest_checkpoint(self.folder, check) if self.folder is not None else None
        if found is not None:
            _log.info("going on from step %d in %s", found["step"], self.folder)
        return found

    def keep(self, state: Callable[[], dict[str, Any]], *, must: bool) -> None:
        """Save a state, whole or not at all; one that need not be saved is left out soon after another."""
        if self.folder is not None and (must or time.monotonic() - self._kept_at >= KEEP_SECONDS):
            save_checkpoint(self.folder, state())
            self._kept_at = time.monotonic()


@dataclass
class Fit:
    """A network, what trains it, and how far it has come."""

    network: nn.Module
    optimizer: Optimizer
    course: Course
    images: int
    memory: Memory
    line: ProgressLine
    device: torch.device
    step: int = 0
    curve: list[float] = field(default_factory=list)
    """The mean loss of each finished epoch."""
    partial: list[float] = field(default_factory=list)
    """Losses of the steps of the epoch that is under way."""

    @property
    def steps(self) -> int:
        """Steps in all."""
        return self.course.epochs * steps_of(self.images, self.course.batch)

    def run(self, load: Callable[[Slot], T], loss_of: Callable[[Sequence[T]], Tensor]) -> list[float]:
        """Train to the end, from the last kept state if there is one; returns the mean loss of each epoch.

        Args:
            load: reads the image of a slot; called in several threads.
            loss_of: the loss of a batch; may draw from torch's generators, which are seeded for the step.

        Raises:
            TrainingError: the loss is not finite.
            Interrupted: a signal came; the state is kept.
        """
        self._restore()
        per_epoch = steps_of(self.images, self.course.batch)
        seed, batch = self.course.seed, self.course.batch
        jobs = (slots_of_step(step, self.images, batch, seed) for step in range(self.step, self.steps))
        with StopFlag() if self.memory.folder is not None else nullcontext() as flag:
            for loaded in _read_ahead(load, jobs, self.course.workers):
                self._take(loss_of, loaded)
                is_end = self.step % per_epoch == 0
                if is_end:
                    self.curve.append(sum(self.partial) / len(self.partial))
                    self.partial = []
                is_stopped = flag is not None and bool(flag.signal)
                if is_end or is_stopped:
                    self.memory.keep(self._state, must=is_stopped or self.step == self.steps)
                if flag is not None and is_stopped and self.step < self.steps:
                    raise Interrupted(
                        f"stopped after step {self.step} of {self.steps}",
                        where=str(self.memory.folder),
                        do="the same command goes on from there",
                        signal=flag.signal,
                    )
        return self.curve

    def _take(self, loss_of: Callable[[Sequence[T]], Tensor], loaded: Sequence[T]) -> None:
        """One step."""
        per_epoch = steps_of(self.images, self.course.batch)
        epoch = self.step // per_epoch
        clock = Clock(self.course.seed, self.step, self.steps, epoch, self.course.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = self.course.rate * rate_share(self.course.schedule, clock, self.course.warmup)
        with seeded(counter.key(self.course.seed, "voc/step", self.step), self.device):
            loss = loss_of(loaded)
        value = loss.item()
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss is {value} at step {self.step}", where=f"epoch {epoch + 1}", do="use a smaller learning rate"
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.partial.append(value)
        self.step += 1
        place = f"epoch {epoch + 1}/{self.course.epochs}  step {self.step % per_epoch or per_epoch}/{per_epoch}"
        self.line.show(f"{place}  loss {value:.4f}")

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curve": self.curve,
            "partial": self.partial,
        }

    def _restore(self) -> None:
        lists = ("curve", "partial")
        check = partial(check_course, network=self.network, optimizer=self.optimizer, last=self.steps, lists=lists)
        state = self.memory.recall(check)
        if state is not None:
            self.network.load_state_dict(state["network"], strict=True)
            recall(self.optimizer, state["optimizer"])
            self.step, self.curve, self.partial = state["step"], state["curve"], state["partial"]


def _read_ahead(load: Callable[[Slot], T], jobs: Iterator[list[Slot]], workers: int) -> Iterator[list[T]]:
    """The loaded batches in order; threads read the next ones meanwhile."""
    if not workers:
        for slots in jobs:
            yield [load(slot) for slot in slots]
        return
    pool = ThreadPoolExecutor(workers)
    waiting: deque[list[Future[T]]] = deque()
    try:
        for slots in jobs:
            waiting.append([pool.submit(load, slot) for slot in slots])
            if len(waiting) > _AHEAD:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:
        pool.shutdown(cancel_futures=True)


def groups_of(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """What is trained, in two groups: kernels, which are decayed, and biases and norms, which are not."""
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    thick, thin = ([w for w in trained if (w.ndim > 1) is wanted] for wanted in (True, False))
    return [{"params": thick, "weight_decay": weight_decay}, {"params": thin, "weight_decay": 0.0}]
