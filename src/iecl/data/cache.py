"""Where made and fetched datasets are kept, and how files get there whole."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def cache_folder() -> Path:
    """The folder named by IECL_CACHE, else `iecl` in the user's cache folder."""
    chosen = os.environ.get("IECL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iecl"


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a file that appears under its name only when it is complete.

    Several processes may do this at once: each fills a file of its own, and the last to finish stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with draft.open("xb") as file:
            write(file)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes that want to fill the same folder waiting; the system frees the lock if we die."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".iecl-lock").open("wb") as file:
        if sys.platform != "win32":  # there, two processes may both fetch, which costs time only
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
