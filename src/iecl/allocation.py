"""Most of the memory that is freed is kept for the next batch, where the C library is glibc.

It gives large blocks back to the system at once, which then has to clear every page again. Training frees and asks for
the same gigabytes in each step. Kept blocks lie side by side, and what fits into no gap makes the whole area grow: a
few of the largest that do are therefore left to the system, which leaves no gaps. What this gains and costs: see
docs/architecture.md.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # options of mallopt
_NEVER = -1
_LARGE = 2**24  # bytes
_LEFT_TO_THE_SYSTEM = 10
"""Large blocks at a time. More of them: less memory and slower steps; without any, a fifth more memory was seen."""
_kept = False


def keep_freed_memory() -> None:
    """From now on this whole process, whatever runs in it, reuses what it frees.

    The command does this by itself. In Python it is up to you, since nothing can undo it: call
    `iecl.keep_freed_memory()` before training on a CPU. Processes that a run starts do as the one that starts them.
    """
    global _kept
    _kept = True
    mallopt = _from_c("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_MMAP_MAX, _LEFT_TO_THE_SYSTEM)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def is_kept() -> bool:
    """Whether this process keeps it."""
    return _kept


def give_back_freed_memory() -> None:
    """Once, to the system, what was kept: for a process that goes on with something else."""
    trim = _from_c("malloc_trim") if _kept else None
    if trim is not None:
        trim(0)


def _from_c(name: str) -> "ctypes._NamedFuncPointer | None":
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
