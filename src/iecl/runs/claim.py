"""One writer for each run directory, and nothing lost by a start that fails.

The lock is the operating system's: it ends with the last process that holds it, also if that is killed, and the
processes that a run starts hold it too. A run that is overwritten waits in a hidden folder until the new one has its
first checkpoint. What is removed is only what this start made, and only while nothing was trained.
"""

import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from iecl.errors import TrainingError, UserError
from iecl.files import is_open_at, lock, remove_leftovers
from iecl.runs.directory import RunDirectory, strict_json

log = logging.getLogger("iecl.runs")
PATIENCE = 15.0
"""Seconds to wait for the last processes of a run whose owner was killed: they notice it within some."""


class Claim:
    """A run directory that nobody else writes to."""

    def __init__(self, run: RunDirectory, handle: int | None = None) -> None:
        self.run, self.handle = run, handle
        """`handle`: the locked file; a process that inherits it holds the lock too. None: another machine has it."""
        self.steps_before = 0
        """Steps that were not trained here but copied from another run."""


@contextmanager
def claim(path: Path | str, *, resume: bool = False, overwrite: bool = False) -> Iterator[Claim]:
    """Lock a run directory while it is written.

    Args:
        path: the directory; it is made if there is none.
        resume: the run in it goes on. Otherwise a new one begins: there must be none, unless it may be overwritten.
        overwrite: put a run that is there aside; it comes back if the new one ends before its first checkpoint.

    Raises:
        UserError: somebody else is writing there, or it holds a run.
    """
    run = RunDirectory(path)
    run.make_folders()
    handle = lock_file(run.lock)
    try:
        _recover(run)
        for folder in (run.path, run.checkpoints, run.evaluations):
            remove_leftovers(folder)
        if not resume:
            if overwrite and run.files():
                _put_aside(run)
            run.refuse_another()
        claimed = Claim(run, handle)
        try:
            yield claimed
        except BaseException as problem:
            if not resume and is_open_at(handle, run.lock):  # or it is another run's by now
                _clean_up(run, isinstance(problem, TrainingError) or was_trained(run, claimed.steps_before))
            raise
        run.drop_overwritten()
    finally:
        os.close(handle)


def was_trained(run: RunDirectory, steps_before: int = 0) -> bool:
    """Whether a step was taken in this directory; metrics that cannot be read are evidence, too."""
    try:
        return any(row["step"] > steps_before for row in run.read_metrics())
    except (UserError, OSError):
        return True


def recover(run: RunDirectory) -> None:
    """Put back a run whose successor was killed before its first checkpoint, unless that one is still being written."""
    with suppress(UserError):  # it is alive, or this is a place that may only be read
        handle = lock_file(run.lock, patience=0)
        try:
            _recover(run)
        finally:
            os.close(handle)


def is_being_written(run: RunDirectory) -> bool:
    """Whether a process holds the lock of a run now; asking changes nothing, and is no claim."""
    try:
        import fcntl

        handle = os.open(run.lock, os.O_RDONLY | os.O_NONBLOCK)
    except (ImportError, OSError):  # on Windows, and where there is no lock, nobody can be seen to write
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # not every file system has locks
        return False
    finally:
        os.close(handle)
    return False


def _clean_up(run: RunDirectory, trained: bool) -> None:
    """After a start that failed: an overwritten run comes back, an empty directory goes."""
    if run.overwritten.exists():
        _put_back(run, trained)
    elif not trained:
        run.discard()


# An overwritten run moves file by file, and may be killed on the way. While the folder is called `moving`, all files
# outside of it belong to the old run as well; while it is called `overwritten`, all of them belong to the new one.


def _put_aside(run: RunDirectory) -> None:
    _move(run, run.moving)
    run.moving.replace(run.overwritten)
    log.info("%s is put aside until the new run has its first checkpoint", run.path)


def _put_back(run: RunDirectory, trained: bool) -> None:
    if trained:
        kept = next(place for number in count(1) if not (place := run.path / f"failed-{number}").exists())
        _move(run, kept)
        log.warning("the new run ended before its first checkpoint: what it wrote is in %s", kept)
    else:
        for file in run.files():
            file.unlink(missing_ok=True)
    run.overwritten.replace(run.moving)
    _recover(run)
    log.warning("the run that was to be overwritten is back in %s", run.path)


def _move(run: RunDirectory, folder: Path) -> None:
    for file in run.files():
        target = folder / file.relative_to(run.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)


def _recover(run: RunDirectory) -> None:
    """Finish what a process that was killed had begun."""
    if run.overwritten.exists():
        _put_back(run, was_trained(run))
    if run.moving.exists():
        for file in [path for path in run.moving.rglob("*") if path.is_file()]:
            file.replace(run.path / file.relative_to(run.moving))
        shutil.rmtree(run.moving)


def lock_file(path: Path, patience: float = PATIENCE) -> int:
    """A handle of a file that nobody else has locked, with our name in it; closing it everywhere ends the lock.

    Raises:
        UserError: its owner is alive, or others that hold the lock for a dead one have been for so many seconds.
    """
    end = time.monotonic() + patience
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as problem:
            raise UserError(f"cannot write to {path.parent}: {problem.strerror}", where="--out") from problem
        try:
            if _lock(handle, path) and is_open_at(handle, path):  # not one that was removed meanwhile
                _sign(handle)
                return handle
            owner = _owner(path)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if _is_here(owner) or time.monotonic() > end:
            raise UserError(
                f"{path.parent} is being written by {_words(owner)}", where=str(path), do="wait for it, or end it"
            )
        time.sleep(0.1)


def _lock(handle: int, path: Path) -> bool:
    """Whether the file is ours now."""
    try:
        return lock(handle)
    except OSError as problem:
        log.warning("%s cannot be locked (%s): start no second run there", path.parent, problem.strerror)
        return True


def _sign(handle: int) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    who = {"process": os.getpid(), "host": platform.node(), "since": now, "command": " ".join(sys.argv)[:500]}
    os.ftruncate(handle, 0)
    os.pwrite(handle, (strict_json(who) + "\n").encode(), 0)


def _owner(path: Path) -> dict[str, Any]:
    try:
        owner = json.loads(path.read_bytes()[:10_000])
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_here(owner: dict[str, Any]) -> bool:
    """Whether the owner itself is alive, as far as we can know; if it is not, processes that it started are."""
    number = owner.get("process")
    return owner.get("host") != platform.node() or not isinstance(number, int) or _is_alive(number)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def _words(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    dead = "" if _is_here(owner) else "processes that were started by "
    return (
        f"{dead}process {owner.get('process')} on {owner.get('host')} since {owner.get('since')}: "
        f"{owner.get('command')}"
    )
