"""Where made and fetched datasets are kept."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """The folder named by IECL_CACHE, else `iecl` in the user's cache folder."""
    chosen = os.environ.get("IECL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iecl"


@contextmanager
def one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes that want to fill the same folder waiting; the system frees the lock if we die."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".iecl-lock").open("wb") as file:
        if sys.platform != "win32":  # there, two processes may both fetch, which costs time only
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
