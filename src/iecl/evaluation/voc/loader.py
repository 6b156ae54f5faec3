"""The batches that a detector or segmenter is trained on: every one is full, and follows from its step."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from iecl import counter

_AHEAD = 2  # batches that are being read while one is trained on
T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One place in one batch: which image is there, and what its draws are keyed by."""

    row: int
    epoch: int
    position: int


@dataclass(frozen=True, kw_only=True)
class VocLoader(Generic[T]):
    """Shuffled batches, addressed by step."""

    load: Callable[[Sample], T]
    """Reads an image; called in several threads."""
    images: int
    batch_size: int
    seed: int
    num_workers: int = 0
    """Threads that read ahead."""

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-self.images // self.batch_size)

    def samples(self, step: int) -> list[Sample]:
        """The batch of a step; the last one of an epoch is filled up from the epoch's beginning."""
        epoch, number = divmod(step, self.steps)
        order = counter.permutation(counter.key(self.seed, "voc/order", epoch), self.images).tolist()
        positions = range(number * self.batch_size, (number + 1) * self.batch_size)
        return [Sample(order[position % self.images], epoch, position) for position in positions]

    def batches(self, first: int, last: int) -> Generator[list[T], None, None]:
        """What is loaded for the steps from `first` to before `last`, in order; threads read some of them ahead."""
        wanted = map(self.samples, range(first, last))
        if not self.num_workers:
            yield from ([self.load(sample) for sample in samples] for samples in wanted)
            return
        pool = ThreadPoolExecutor(self.num_workers)
        waiting: deque[list[Future[T]]] = deque()
        try:
            for samples in wanted:
                waiting.append([pool.submit(self.load, sample) for sample in samples])
                if len(waiting) > _AHEAD:
                    yield [future.result() for future in waiting.popleft()]
            while waiting:
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)
