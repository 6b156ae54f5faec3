"""Batches of an epoch, the same ones for any number of workers and processes, from any step on.

The order is a permutation keyed by (seed, epoch), of shards one that reads them in large pieces (`stream_order.py`);
step, process and row give a position in it. A file that cannot be read is replaced by one that the position alone
decides on. Nothing depends on which worker is quicker.
"""

import atexit
import multiprocessing
import os
import signal
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from iecl import counter
from iecl.allocation import is_kept, keep_freed_memory
from iecl.data.batch import Batch, Pixels
from iecl.data.skipped_files import Skipping, nothing_readable
from iecl.data.slots import Slots
from iecl.data.source import Fetching, Numbers, OnBad, Source, expect, read_into
from iecl.data.stream_order import StreamOrder, order_of
from iecl.errors import TrainingError, UserError
from iecl.launch import STOPS, when_parent_ends

_AHEAD = 2
"""Batches that each worker works on in advance, or that a source in this process is told of."""
_FETCHED_ROWS, _FETCHED_BYTES = 1024, 2**28
"""Images that are fetched from shards in advance, and what they may take; the next batch at least."""
_DRAWS = 32  # a neighbor would do, but bad files come in runs: whole folders that were not copied


@dataclass(frozen=True)
class _Request:
    """The rows of one batch."""

    index: Numbers  # arrays, not tensors: these would take a shared file each on their way to a worker
    positions: Numbers
    replacement_key: int | None
    """Decides what stands in for bad rows; None: they are left out."""
    slot: int | None = None
    """Where a worker leaves the pixels."""
    contents: Sequence[bytes | str] | UserError | None = None
    """What was fetched for a worker, which only decodes it, or why it could not be; None: the source is read."""


@dataclass(frozen=True)
class _Answer:
    batch: Batch
    bad: tuple[tuple[int, str], ...]
    """(sample, reason) of all files that were tried in vain."""


@dataclass(frozen=True)
class _Sent:
    """An answer on its way from a worker: the pixels wait in a slot, and arrays go through a pipe."""

    slot: int
    numbers: tuple[Numbers, ...]
    """The other parts of the batch."""
    bad: tuple[tuple[int, str], ...]

    def received(self, slots: Slots) -> _Answer:
        others = [torch.from_numpy(part) for part in self.numbers]
        return _Answer(Batch(slots.take(self.slot, len(others[0])), *others), self.bad)


_Made = _Answer | _Sent | UserError


class _Reader(Dataset[_Made]):
    """Turns requests into batches, in this process or in a worker."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.slots: Slots | None = None

    def __getitem__(self, request: _Request) -> _Made:
        if isinstance(request.contents, UserError):
            return request.contents
        try:
            answer = self._answer(request)
        except UserError as problem:  # raised in a worker it would arrive as the text of a traceback
            return problem
        if self.slots is None or request.slot is None:
            return answer
        images, *others = (part.numpy() for part in vars(answer.batch).values())
        room = self.slots.room(request.slot, len(images))
        if images.ctypes.data != room.ctypes.data:  # some rows were left out, and the others closed ranks
            room[...] = images
        return _Sent(request.slot, tuple(others), answer.bad)

    def _pixels(self, request: _Request) -> Pixels:
        room = None
        if self.slots is not None and request.slot is not None:
            room = self.slots.room(request.slot, len(request.index))
        if isinstance(self.source, Fetching) and isinstance(request.contents, Sequence):
            if room is None:
                shape = (len(request.index), self.source.channels, self.source.side, self.source.side)
                room = np.empty(shape, np.uint8)
            return self.source.decode_into(room, request.contents)
        return self.source.read(request.index) if room is None else read_into(self.source, room, request.index)

    def _answer(self, request: _Request) -> _Answer:
        pixels = self._pixels(request)
        index, positions = torch.from_numpy(request.index), torch.from_numpy(request.positions)
        bad = {int(index[row]): reason for row, reason in pixels.bad}
        rows = [row for row, _ in pixels.bad]
        if rows and request.replacement_key is not None:
            index = index.clone()
            draws = counter.bits(request.replacement_key, positions[rows], _DRAWS).tolist()
            for row, candidates in zip(rows, draws, strict=True):
                index[row], pixels.images[row], pixels.sizes[row] = self._replacement(candidates, bad)
        labels = torch.from_numpy(self.source.labels[index.numpy()])
        batch = Batch(pixels.images, pixels.sizes, labels, index, positions)
        if rows and request.replacement_key is None:
            kept = torch.from_numpy(np.delete(np.arange(len(index)), rows))
            batch = Batch(*(part[kept] for part in vars(batch).values()))
        return _Answer(batch, tuple(bad.items()))

    def _replacement(self, draws: list[int], bad: dict[int, str]) -> tuple[int, Tensor, Tensor]:
        """The first readable sample among random ones, or from the last of them on; with its pixels and size.

        Those tried in vain are added to `bad`.
        """
        count = len(self.source)
        for draw in chain(draws, range(draws[-1], draws[-1] + count)):
            candidate = draw % count
            if candidate in bad:
                continue
            pixels = self.source.read(np.array([candidate]))
            if not pixels.bad:
                return candidate, pixels.images[0], pixels.sizes[0]
            ((_, bad[candidate]),) = pixels.bad
        raise nothing_readable(self.source.name, Counter(bad.values()))


class _Requests:
    """The sampler of a loader that outlives an epoch: what it iterates over can be exchanged."""

    current: Iterable[_Request] = ()

    def __iter__(self) -> Iterator[_Request]:
        return iter(self.current)


class _Pool:
    """Answers requests in order, with worker processes or without."""

    def __init__(self, source: Source, batch: int, workers: int) -> None:
        self._reader, self._batch = _Reader(source), batch
        self._requests = _Requests()
        self._workers = 0 if source.is_decoded else workers
        self._ahead = _AHEAD
        if isinstance(source, Fetching):
            rows = min(_FETCHED_ROWS, int(_FETCHED_BYTES / source.usual_bytes))
            self._ahead = max(1, rows // batch)
        self._loader: DataLoader[_Made] | None = None
        self._running: Any = None
        """The loader's iterator, which has the workers."""
        _POOLS.add(self)

    def answers(self, requests: Iterable[_Request]) -> Generator[_Answer, None, None]:
        """The answers to the requests; an error that a worker met is raised here."""
        finished = False
        try:
            for answer in self._with_workers(requests) if self._workers else self._without(requests):
                if isinstance(answer, UserError):
                    raise answer
                if isinstance(answer, _Sent):
                    assert self._reader.slots is not None
                    answer = answer.received(self._reader.slots)
                yield answer
            finished = True
        finally:
            if not finished:  # requests that nobody waits for any more must not hold up the next epoch, or the exit
                self.close()

    def close(self) -> None:
        """End the workers."""
        running, self._running, self._loader = self._running, None, None
        if running is not None:
            running._shutdown_workers()  # now: what an error came from may be held for long, and its iterator with it
            for worker in running._workers:
                if worker.is_alive():  # it decodes for longer than it is waited for, and does not listen to SIGTERM
                    worker.kill()
                    worker.join()

    def _with_workers(self, requests: Iterable[_Request]) -> Iterator[_Made]:
        earlier = signal.getsignal(signal.SIGCHLD)
        if self._loader is None:
            self._loader = self._make_loader()
        slots = self._reader.slots
        if isinstance(self._reader.source, Fetching):
            requests = map(partial(_with_contents, self._reader.source), self._expected(requests))
        self._requests.current = (replace(one, slot=slots.reserve()) for one in requests) if slots else requests
        try:
            with _held_back(STOPS):  # workers that start now are deaf before they can hear
                self._running = iter(self._loader)
            # The loader's own handler raises wherever the training happens to be when a worker dies. Without it the
            # loss is noticed here, at the next batch.
            if earlier is not None and signal.getsignal(signal.SIGCHLD) is not earlier:
                signal.signal(signal.SIGCHLD, earlier)
            yield from self._running
        except RuntimeError as problem:
            if "DataLoader worker" not in str(problem):
                raise
            raise self._dead_worker(str(problem).splitlines()[0]) from problem

    def _dead_worker(self, where: str) -> TrainingError:
        """What became of a worker, as far as the system says: it kills without a word where memory runs out."""
        codes = [worker.exitcode for worker in self._running._workers if worker.exitcode]
        name = signal.Signals(-codes[0]).name if codes and codes[0] < 0 else ""
        ended = f"was ended by {name}" if name else f"ended with exit code {codes[0]}" if codes else "died"
        return TrainingError(
            f"a process that decodes images {ended}",
            where=where,
            do="most often the memory ran out: lower data.num_workers or training.batch_size"
            if name in ("SIGKILL", "SIGBUS")
            else "resume the run; if it happens again, set data.num_workers=0 to see where",
        )

    def _without(self, requests: Iterable[_Request]) -> Iterator[_Made]:
        """Answer in this process."""
        return map(self._reader.__getitem__, self._expected(requests))

    def _expected(self, requests: Iterable[_Request]) -> Iterator[_Request]:
        """The requests; the source is told of each while the ones before it are worked on."""
        waiting: deque[_Request] = deque()
        for request in requests:
            expect(self._reader.source, request.index)
            waiting.append(request)
            if len(waiting) > self._ahead:
                yield waiting.popleft()
        yield from waiting

    def _make_loader(self) -> "DataLoader[_Made]":
        # Asked for in this way, and given to the loader, the choice stays open for whoever has not made it yet.
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        if method == "fork":
            shape = self._reader.source.read(np.zeros(1, np.int64)).images.shape[1:]
            # One more than there are batches on their way: the next is asked for before this one is taken out.
            self._reader.slots = Slots(self._workers * _AHEAD + 1, (self._batch, *shape))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: as asked for
            return DataLoader(
                self._reader,
                batch_size=None,
                sampler=self._requests,
                num_workers=self._workers,
                prefetch_factor=_AHEAD,
                worker_init_fn=partial(_settle, is_kept()),
                multiprocessing_context=method,
                persistent_workers=True,
                generator=torch.Generator(),  # the loader draws a seed that nobody uses; not from the global state
            )


def _with_contents(source: Fetching, request: _Request) -> _Request:
    """A request with all that a worker needs: one process fetches, however many decode."""
    try:
        return replace(request, contents=source.fetch(request.index))
    except UserError as problem:
        return replace(request, contents=problem)


_POOLS: "weakref.WeakSet[_Pool]" = weakref.WeakSet()


@atexit.register  # before multiprocessing's own: that one sends SIGTERM and waits
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


@contextmanager
def _held_back(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Let signals wait; processes that are started meanwhile let them wait as well."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _settle(keeps: bool, worker: int) -> None:
    """What a worker does before its first batch; `keeps`: freed memory, as its parent does."""
    for number in STOPS:  # they reach every process of a terminal or a job; the parent alone decides what to do
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    if keeps:
        keep_freed_memory()
    # Of a parent that was killed half of a request may come, and nothing ever after: a worker that waited for the rest
    # would keep the run's lock.
    when_parent_ends(partial(os._exit, 1))


class Loader:
    """Endless shuffled batches for training, addressed by epoch and step."""

    def __init__(
        self,
        source: Source,
        *,
        batch: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        on_bad: OnBad | None = None,
    ) -> None:
        """Plan the epochs.

        Args:
            source: images to draw from.
            batch: rows in each step on each process.
            seed: decides on the order, and on what replaces bad files.
            rank: number of this process.
            world: number of processes.
            workers: processes that decode; none are used for images that are in memory.
            on_bad: is told each file that cannot be read, once; without it, the log is.

        Raises:
            UserError: there are fewer images than one step needs.
        """
        self.source, self.batch, self.seed, self.rank, self.world = source, batch, seed, rank, world
        self.steps = len(source) // (batch * world)
        """Steps in an epoch; the rows that do not fill one more are left out, other ones in each epoch."""
        if not self.steps:
            raise UserError(
                f"{source.name} has {len(source)} images, fewer than the {batch * world} of one step",
                where="training.batch_size",
                do=f"lower it to {len(source)} or less" if world == 1 else "lower it, or use fewer processes",
            )
        self._pool, self._on_bad, self._reported = _Pool(source, batch, workers), on_bad or Skipping(), set[int]()

    def epoch(self, epoch: int, first: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch for this process, from step `first` on."""
        order = order_of(self.source, counter.key(self.seed, "order", epoch), self.batch * self.world)
        replacement_key = counter.key(self.seed, "replacement", epoch)
        requests = (self._request(order, step, replacement_key) for step in range(first, self.steps))
        for answer in self._pool.answers(requests):
            self._report(answer)
            yield answer.batch

    def _request(self, order: "Numbers | StreamOrder", step: int, replacement_key: int) -> _Request:
        start = (step * self.world + self.rank) * self.batch
        rows = slice(start, start + self.batch)
        return _Request(order[rows], np.arange(rows.start, rows.stop), replacement_key)

    def _report(self, answer: _Answer) -> None:
        for sample, reason in answer.bad:
            if sample not in self._reported:
                self._reported.add(sample)
                self._on_bad(self.source.path(sample), reason)

    def close(self) -> None:
        """End the worker processes; the next epoch would start new ones."""
        self._pool.close()


def in_order(source: Source, batch: int, workers: int = 0, on_bad: OnBad | None = None) -> Generator[Batch, None, None]:
    """Every readable sample once, in the order of the source; the last batch may be smaller.

    Raises:
        UserError: no sample is readable.
    """
    reasons: Counter[str] = Counter()
    tell = on_bad or Skipping()
    numbers = (np.arange(start, min(start + batch, len(source))) for start in range(0, len(source), batch))
    pool = _Pool(source, batch, workers)
    for answer in pool.answers(_Request(index, index, None) for index in numbers):
        for sample, reason in answer.bad:
            tell(source.path(sample), reason)
            reasons[reason] += 1
        if len(answer.batch.index):
            yield answer.batch
    pool.close()
    if reasons.total() == len(source):
        raise nothing_readable(source.name, reasons)
