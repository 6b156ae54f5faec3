"""Decoded images for several processes of one machine: the first decodes, and all of them see the same memory."""

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
from iecl.data.folder import Decoded, FolderSource, decode_all, kept, resident
from iecl.data.source import ArraySource, Progress
from iecl.errors import UserError

log = logging.getLogger("iecl.data")


def resident_once(
    source: FolderSource, workers: int, progress: Progress | None = None
) -> tuple[ArraySource, list[tuple[str, str]]]:
    """As `resident`, but once on each machine; every process must call it.

    Memory without a name holds the images: the system frees it with the last process, however that ends. Where there
    is none, or one process may not look into another, each decodes for itself.
    """
    if not parallel.is_on() or not hasattr(os, "memfd_create"):
        return resident(source, workers, progress)
    machines = parallel.gather_objects(_machine())
    first = machines.index(machines[parallel.rank()])
    images, handle, answer = None, -1, None
    if first == parallel.rank():
        handle = os.memfd_create("iecl images")
        os.ftruncate(handle, _bytes(source))
        images = _mapped(source, handle)
        answer = _answered(source, images, workers, progress)
    process, number, answer = parallel.gather_objects((os.getpid(), handle, answer))[first]
    if images is None and isinstance(answer, Decoded):
        images = _from_process(source, process, number)
    parallel.barrier()  # until now the others may still have to open it
    if handle >= 0:
        os.close(handle)
    if isinstance(answer, UserError):
        raise answer
    if images is None:
        return resident(source, workers)
    return kept(source, images, answer), answer.skipped


def _machine() -> str:
    """The same text for all processes of one machine, and of one start of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return platform.node() + (boot.read_text(encoding="ascii") if boot.is_file() else "")


def _answered(source: FolderSource, images: Tensor, workers: int, progress: Progress | None) -> "Decoded | UserError":
    try:
        return decode_all(source, images, workers, progress)
    except UserError as problem:  # the others wait for an answer: they get this one
        return problem


def _from_process(source: FolderSource, process: int, handle: int) -> UInt8[Tensor, "n 3 side side"] | None:
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


def _mapped(source: FolderSource, handle: int) -> UInt8[Tensor, "n 3 side side"]:
    pixels = np.frombuffer(mmap.mmap(handle, _bytes(source)), np.uint8)
    return torch.from_numpy(pixels).view(len(source), 3, source.side, source.side)


def _bytes(source: FolderSource) -> int:
    return len(source) * 3 * source.side**2
