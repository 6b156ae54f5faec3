"""Loops that numba turned into machine code: where to get them, and how threads share them."""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib import import_module

log = logging.getLogger("iecl.compiled")
Loops = Callable[..., None]
"""Works on the rows from its first argument up to its second."""
SHARES = 4
"""Parts of the rows for each thread, so that one with more to do does not keep the others waiting."""


@cache
def loops(module: str, work: str) -> Loops | None:
    """What `module` compiles, or None where it cannot be had; compiled once for an installation, which takes seconds.

    Args:
        module: imports numba, and has `compiled(keep=...)`; with `keep` the code stays on disk for the next process.
        work: what they do, for messages.
    """
    try:
        offered = import_module(module)
    except ImportError as error:
        log.warning("%s more slowly, without numba, which cannot be imported: %s", work, error)
        return None
    from numba import config

    if config.DISABLE_JIT:  # told to leave Python as it is, which would take minutes for each batch
        return None
    try:
        made: Loops = offered.compiled(keep=True)
    except Exception as error:  # no folder that may be written, no room, a spoilt file: whatever a disk can do
        log.warning("compiled loops cannot be kept, so every process compiles them for some seconds: %s", error)
        made = offered.compiled(keep=False)
    return made


def share_out(work: Loops, count: int, threads: int) -> None:
    """Call `work` on ranges that make up all rows; this thread works too."""
    step = max(1, -(-count // (threads * SHARES)) if threads > 1 else count)
    ranges = iter([(begin, min(begin + step, count)) for begin in range(0, count, step)])
    others = [_helpers(threads - 1).submit(_take, work, ranges) for _ in range(threads - 1)]
    _take(work, ranges)
    for other in others:
        other.result()


def _take(work: Loops, ranges: Iterator[tuple[int, int]]) -> None:
    for begin, end in ranges:  # threads take from the same iterator, each the next range
        work(begin, end)


@lru_cache(maxsize=1)
def _helpers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="iecl-loops")


if hasattr(os, "register_at_fork"):  # a forked process has the memory of its parent and none of its threads
    os.register_at_fork(after_in_child=_helpers.cache_clear)
