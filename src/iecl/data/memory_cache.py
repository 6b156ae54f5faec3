"""A folder's images decoded once and kept in memory; of several processes on a machine, the first decodes for all."""

import logging
import mmap
import os
import platform
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from iecl import parallel
from iecl.data.loader import in_order
from iecl.data.source import ArraySource, Decoding, Numbers, Progress
from iecl.errors import UserError

log = logging.getLogger("iecl.data")
_BATCH = 64
_Images = UInt8[Tensor, "n 3 side side"]
_Decoded = tuple[Numbers, Tensor, list[tuple[str, str]]]
"""Which files of a folder are good, in order; their heights and widths; (path, reason) of the others."""


def load_into_memory(
    source: Decoding, workers: int, progress: Progress | None = None, *, is_shared: bool = False
) -> tuple[ArraySource, list[tuple[str, str]]]:
    """Decode all files once and keep the good ones in memory.

    Args:
        source: the files.
        workers: processes that decode.
        progress: is told how many files are done.
        is_shared: every process of a run calls this at the same time, and those of one machine hold one copy. Memory
            without a name holds it: the system frees it with the last process, however that ends. Where there is none,
            or one process may not look into another, each decodes for itself.

    Returns:
        The images, and (path, reason) of each file that was left out.

    Raises:
        UserError: there is no good one.
    """
    can_share = is_shared and parallel.is_on() and hasattr(os, "memfd_create")
    shared = _from_first_process(source, workers, progress) if can_share else None
    images, (index, sizes, skipped) = shared or _from_this_process(source, workers, progress)
    kept = source.select(index) if skipped else source
    images = images[: len(index)]
    made = ArraySource(source.name, images, kept.labels, source.classes, sizes=sizes, path=kept.path)
    made.bounds = getattr(kept, "bounds", None)
    return made, skipped


def _decode_all(source: Decoding, images: _Images, workers: int, progress: Progress | None) -> _Decoded:
    """Fill `images` with the good files, one after the other."""
    index: list[Numbers] = []
    sizes: list[Tensor] = []
    skipped: list[tuple[str, str]] = []
    filled = 0
    for batch in in_order(source, _BATCH, workers, on_bad=lambda path, reason: skipped.append((path, reason))):
        images[filled : filled + len(batch.index)] = batch.images  # they close ranks: no second copy is ever held
        index.append(batch.index.numpy().copy())  # copies: what comes from a worker keeps a file open
        sizes.append(batch.sizes.clone())
        filled += len(batch.index)
        if progress is not None:
            progress(filled + len(skipped), len(source))
    return np.concatenate(index), torch.cat(sizes), skipped


def _from_this_process(source: Decoding, workers: int, progress: Progress | None) -> tuple[_Images, _Decoded]:
    images = torch.empty((len(source), source.channels, source.side, source.side), dtype=torch.uint8)
    return images, _decode_all(source, images, workers, progress)


def _from_first_process(source: Decoding, workers: int, progress: Progress | None) -> tuple[_Images, _Decoded] | None:
    """The memory that the first process of this machine filled, and with what; None: it may not be looked into."""
    machines = parallel.gather_objects(_machine())
    first = machines.index(machines[parallel.rank()])
    images, handle = None, -1
    answer: _Decoded | UserError | None = None
    if first == parallel.rank():
        handle = os.memfd_create("iecl images")
        os.ftruncate(handle, _bytes(source))
        images = _mapped(source, handle)
        try:
            answer = _decode_all(source, images, workers, progress)
        except UserError as problem:  # the others wait for an answer: they get this one
            answer = problem
    process, number, answer = parallel.gather_objects((os.getpid(), handle, answer))[first]
    if images is None and isinstance(answer, tuple):
        images = _from_process(source, process, number)
    parallel.barrier()  # until now the others may still have to open it
    if handle >= 0:
        os.close(handle)
    if isinstance(answer, UserError):
        raise answer
    return None if images is None else (images, answer)


def _machine() -> str:
    """The same text for all processes of one machine, and of one start of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return platform.node() + (boot.read_text(encoding="ascii") if boot.is_file() else "")


def _from_process(source: Decoding, process: int, handle: int) -> _Images | None:
    """The memory behind an open file of another process; None: it may not be looked into."""
    try:
        own = os.open(f"/proc/{process}/fd/{handle}", os.O_RDWR)
    except OSError as problem:
        log.warning("each process keeps its own copy of the images: %s", (problem.strerror or "no access").lower())
        return None
    try:
        return _mapped(source, own)
    finally:
        os.close(own)


def _mapped(source: Decoding, handle: int) -> _Images:
    pixels = np.frombuffer(mmap.mmap(handle, _bytes(source)), np.uint8)
    return torch.from_numpy(pixels).view(len(source), source.channels, source.side, source.side)


def _bytes(source: Decoding) -> int:
    return len(source) * source.channels * source.side**2
