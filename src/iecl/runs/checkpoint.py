"""Checkpoints of plain types (tensors, text, numbers, lists, tables): they load with `weights_only=True`, always."""

import io
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

from iecl.errors import UserError
from iecl.runs.directory import write_atomically

log = logging.getLogger("iecl.runs")
BROKEN = "broken.ckpt"
"""The state before a step whose loss was not finite, and that step's samples: to look at, not to resume from."""


def save_checkpoint(folder: Path, state: dict[str, Any], *, is_best: bool = False) -> None:
    """Write `last.ckpt`; what was last becomes `previous.ckpt`, and `best.ckpt` is renewed if this is the best so far.

    Each file is whole or absent. The older checkpoint goes only when the new one is on the disk and was read back.
    """
    last, fresh = folder / "last.ckpt", folder / "fresh.ckpt"
    raw = write_checkpoint(fresh, state)
    load_checkpoint(fresh)
    if last.exists():
        last.replace(folder / "previous.ckpt")
    fresh.replace(last)
    if is_best:
        write_atomically(folder / "best.ckpt", raw)


def write_checkpoint(path: Path, state: dict[str, Any]) -> bytes:
    """Write one file of plain types, whole or not at all, if the disk has room for it; returns its bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    raw = buffer.getvalue()
    free = shutil.disk_usage(path.parent).free
    if free < len(raw) + 2**20:
        raise UserError(
            f"the disk has {free / 2**20:.0f} MB left, a checkpoint needs {len(raw) / 2**20:.0f} MB",
            where=str(path.parent),
            do="make room and continue with --resume: the last checkpoint is untouched",
        )
    write_atomically(path, raw)
    return raw


def check_archive(path: Path) -> None:
    """Compare what torch.save wrote with the checksums it wrote beside: torch itself loads flipped bits in silence.

    Raises:
        UserError: a part is not as it was written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as problem:
        raise UserError(f"{path} is damaged: {problem}", where=str(path), do="write or copy it again") from problem
    if wrong is not None:
        raise UserError(
            f"{path} is damaged: the checksum of {wrong} is wrong", where=str(path), do="write or copy it again"
        )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code it may hold."""
    if not path.exists():
        raise UserError(f"there is no checkpoint {path}", do="the run has not come to its first one")
    check_archive(path)
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises many kinds on a damaged file
        raise UserError(f"{path} is damaged: {type(problem).__name__}", where=str(path)) from problem
    return state


def latest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None when there is none at all.

    A crash between two renames leaves `fresh.ckpt` or `previous.ckpt` as the newest: each is whole.
    """
    found = [path for name in ("fresh", "last", "previous") if (path := folder / f"{name}.ckpt").exists()]
    problems: list[str] = []
    states = []
    for path in found:
        try:
            states.append(load_checkpoint(path))
        except UserError as problem:
            problems.append(problem.what)
    for words in problems if states else []:
        log.warning("%s: going on from an older checkpoint", words)
    if found and not states:
        raise UserError(f"no checkpoint can be read: {'; '.join(problems)}", where=str(folder))
    return max(states, key=lambda state: state["step"], default=None)
