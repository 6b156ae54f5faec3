"""Features by several processes: each makes those of whole batches, and the rows come back in the order of the images.

A batch holds the same images as in one process, so that its features are the same bit for bit where the arithmetic is:
with the same number of threads, on the same kind of device.
"""

import os
import pickle
import signal
import tempfile
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import multiprocessing, nn

from iecl.data.skipped_files import nothing_readable
from iecl.data.source import ChosenSource, Numbers, OnBad, Progress, Source
from iecl.errors import UserError
from iecl.evaluation.features import Features, extract
from iecl.launch import usable_cores, when_parent_ends


def rows_of(total: int, batch: int, rank: int, world: int) -> Numbers:
    """The rows that one of several processes takes: every `world`-th batch.

    >>> [rows_of(7, 2, rank, 2).tolist() for rank in range(2)]
    [[0, 1, 4, 5], [2, 3, 6]]
    """
    number: Numbers = np.arange(total)
    taken: Numbers = number[number // batch % world == rank]
    return taken


def extract_together(
    backbone: nn.Module,
    source: Source,
    *,
    devices: Sequence[torch.device],
    batch: int,
    progress: Progress | None = None,
    on_bad: OnBad | None = None,
    **how: Any,
) -> Features:
    """`extract` by one new process for each of `devices`, with the same result.

    Raises:
        UserError: a process ended early, or cannot be sent what it needs.
    """
    context, world = multiprocessing.get_context("spawn"), len(devices)
    processes: list[Any] = []
    heard: dict[Connection, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{rank}.npz" for rank in range(world)]
        sent = deepcopy(backbone).cpu()
        try:
            for rank, device in enumerate(devices):
                listener, sender = context.Pipe(duplex=False)
                part = ChosenSource(source, rows_of(len(source), batch, rank, world))
                request = {**how, "device": device, "batch": batch}
                words = (sent, part, request, files[rank], world, sender)
                processes.append(context.Process(target=_work, args=words, name=f"iecl features {rank}"))
                _start(processes[-1])
                sender.close()
                heard[listener] = 0
            bad = _listen(heard, len(source), progress)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
        for path, reason in bad:
            if on_bad is not None:
                on_bad(path, reason)
        return _merged(files, source, [reason for _, reason in bad])


def _start(process: Any) -> None:
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise UserError(
            f"the backbone or the images cannot be sent to another process: {problem}",
            where="--devices",
            do="define their classes at the top of a module, or use one process",
        ) from problem


def _listen(heard: dict[Connection, int], total: int, progress: Progress | None) -> list[tuple[str, str]]:
    """Hear how far each process is, until the last is done; returns the files that could not be read."""
    bad: list[tuple[str, str]] = []
    waiting = dict(heard)
    while waiting:
        for listener in wait(list(waiting)):
            assert isinstance(listener, Connection)
            try:
                said = listener.recv()
            except EOFError:
                raise UserError(
                    "a process that makes features ended before it was done",
                    where="--devices",
                    do="most often the memory ran out: use fewer; in a script, call it under if __name__ == '__main__'",
                ) from None
            if isinstance(said, UserError):
                raise said
            if isinstance(said, list):
                bad += said
                del waiting[listener]
                continue
            heard[listener] = said
            if progress is not None:
                progress(sum(heard.values()), total)
    return bad


def _work(
    backbone: nn.Module, part: ChosenSource, how: dict[str, Any], file: Path, world: int, sender: Connection
) -> None:
    """The whole life of one process: it writes its features to a file, and says how far it is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this one
    when_parent_ends(partial(os._exit, 1))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // world))
    bad: list[tuple[str, str]] = []
    try:
        found = extract(
            backbone.to(how["device"]),
            part,
            **how,
            progress=lambda done, _: sender.send(done),
            on_bad=lambda path, reason: bad.append((path, reason)),
        )
        with file.open("wb") as opened:
            np.savez(opened, values=found.values, labels=found.labels, index=part.index[found.index.numpy()])
    except UserError as problem:
        if len(bad) < len(part):  # images that nobody can read are another matter: other processes may have others
            sender.send(problem)
            return
    sender.send(bad)


def _merged(files: Sequence[Path], source: Source, reasons: list[str]) -> Features:
    """All rows in the order of the source."""
    parts = []
    for file in files:
        if file.exists():
            with np.load(file, allow_pickle=False) as opened:
                parts.append({name: torch.from_numpy(opened[name]) for name in ("values", "labels", "index")})
    if not parts:
        raise nothing_readable(source.name, Counter(reasons))
    whole = {name: torch.cat([part.pop(name) for part in parts]) for name in ("values", "labels", "index")}
    order = whole["index"].argsort()
    return Features(*(whole[name][order] for name in ("values", "labels", "index")))
