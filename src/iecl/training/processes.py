"""The processes that a run starts on this machine, one for each device, from their start to the end of the last one."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import torch
from torch import multiprocessing

from iecl.allocation import is_kept, keep_freed_memory
from iecl.console import forget_lost_terminal
from iecl.errors import Interrupted, LostPeer, TrainingError, UserError
from iecl.launch import STOPS, Launch, node_rank, usable_cores, when_parent_ends
from iecl.training.signals import REPEATED, heeded

log = logging.getLogger("iecl.training")
GRACE = 10.0
"""Seconds that the other processes have to end when one of them has failed; they may hang in a talk with it."""
Answer = dict[str, Any] | UserError


class _Rank:
    """One process as its parent sees it."""

    def __init__(self, number: int, process: SpawnProcess, answers: Connection) -> None:
        self.number, self.process, self.answers = number, process, answers
        self.answer: Answer | None = None

    def listen(self) -> None:
        """Take what the process has to say; if it ended without a word, say it for it."""
        has_ended = self.process.exitcode is not None  # asked first: what it said last is in the pipe then
        try:
            if self.answers.poll():
                self.answer = self.answers.recv()
        except (EOFError, OSError):
            self.process.join()
            has_ended = True
        # Its decoding workers may keep the pipe open for seconds, so that the pipe does not tell.
        if has_ended and self.answer is None:
            self.answer = self._ending()

    def _ending(self) -> UserError:
        code = self.process.exitcode or 0
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
            why = "; most often the memory ran out" if -code == signal.SIGKILL else ""
            what = f"process {self.number} was ended by {name}{why}"
        else:
            what = f"process {self.number} ended with code {code}"
        return TrainingError(what, do="continue with --resume")


def run_in_processes(
    work: Callable[..., Answer], arguments: tuple[Any, ...], *, devices: int, nodes: int, lock: int | None
) -> Answer:
    """Call `work` in `devices` new processes; returns the answer of the first, or the error that ended the run.

    Args:
        work: what each process does; a function of a module, so that a new process can import it.
        arguments: what it is called with: plain values.
        devices: processes on this machine.
        nodes: machines; each calls this, with NODE_RANK, MASTER_ADDR and MASTER_PORT in its environment.
        lock: handle of the run's lock, which every process holds as well; None: the first machine has it.
    """
    with _stops_blocked():  # a new process keeps signals waiting until it can answer them
        ranks = _started(work, arguments, devices, nodes, lock)
        stopper = _Stopper([rank.process for rank in ranks])
        stopper.install()
    try:
        return _heard(ranks, stopper)
    finally:
        stopper.remove()
        for rank in ranks:
            rank.process.kill()
            rank.process.join()


def _started(
    work: Callable[..., Answer], arguments: tuple[Any, ...], devices: int, nodes: int, lock: int | None
) -> list[_Rank]:
    context = multiprocessing.get_context("spawn")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", 0)) or _free_port()
    ranks = []
    for local in range(devices):
        rank = node_rank() * devices + local
        launch = Launch("iecl", rank, devices * nodes, local, devices)
        answers, sender = context.Pipe(duplex=False)
        # A connection is the one thing with a file handle that multiprocessing hands on to a new process.
        held = None if lock is None else Connection(os.dup(lock), writable=False)
        words = (work, arguments, launch.variables(address, port), devices, is_kept(), sender, held)
        process = context.Process(target=_work, args=words, name=f"iecl rank {rank}")
        process.start()
        sender.close()
        if held is not None:
            held.close()
        ranks.append(_Rank(rank, process, answers))
    return ranks


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _work(
    work: Callable[..., Answer],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    devices: int,
    keeps: bool,
    sender: Connection,
    held: Connection | None,
) -> None:
    """The whole life of one process; it holds the lock until it is gone, and keeps freed memory if its parent does."""
    if keeps:
        keep_freed_memory()
    os.environ.update(environment)
    for number in heeded():  # from when it has nothing left to stop until it is gone
        signal.signal(number, lambda *_: None)
    # It saves and ends: nobody would hear of it any more.
    when_parent_ends(partial(os.kill, os.getpid(), signal.SIGTERM))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // devices))
    answer = work(*arguments)
    with suppress(OSError):  # the parent may be gone
        sender.send(answer)


def _heard(ranks: list[_Rank], stopper: "_Stopper") -> Answer:
    """Wait until all have ended; one that fails ends the others."""
    failed_at = 0.0
    while waiting := [rank for rank in ranks if rank.answer is None]:
        wait([rank.answers for rank in waiting], timeout=0.2)
        for rank in waiting:
            rank.listen()
        failed = [rank for rank in ranks if isinstance(rank.answer, UserError)]
        if failed and not failed_at and not isinstance(failed[0].answer, Interrupted):
            failed_at = time.monotonic()
        if failed_at and time.monotonic() - failed_at > GRACE:
            for rank in waiting:
                rank.process.kill()
    for rank in ranks:
        rank.process.join(GRACE)
    problems = [rank.answer for rank in ranks if isinstance(rank.answer, UserError)]
    # What went wrong first is told, not what followed from it.
    problems.sort(key=lambda problem: (isinstance(problem, LostPeer), isinstance(problem, Interrupted)))
    if problems and stopper.is_final:
        return Interrupted("ended at once; the last checkpoint is kept", signal=stopper.signal)
    return problems[0] if problems else ranks[0].answer or {}


class _Stopper:
    """Hands what asks for a stop on to the processes; when it is asked again, ends them."""

    def __init__(self, processes: list[SpawnProcess]) -> None:
        self.processes, self.signal, self.is_final = processes, 0, False
        self._since, self._before = 0.0, dict[int, Any]()

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in heeded()}

    def remove(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        forget_lost_terminal()
        if self.signal and time.monotonic() - self._since < REPEATED:
            return
        self.is_final = bool(self.signal)
        self.signal, self._since = number, time.monotonic()
        for process in self.processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGKILL if self.is_final else number)


@contextmanager
def _stops_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
