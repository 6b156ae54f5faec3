"""Checkpoints of plain types (tensors, text, numbers, lists, tables): they load with `weights_only=True`, always."""

import io
import logging
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iecl.errors import UserError
from iecl.files import write_atomically
from iecl.names import current_state
from iecl.runs.shards import PREFIX, SHARDS, drop_shards, with_shards

log = logging.getLogger("iecl.runs")
BROKEN = "broken.ckpt"
"""The state before a step whose loss was not finite, and that step's samples: to look at, not to resume from."""
NAMES = ("fresh", "last", "previous")
"""What a run may be resumed from, newest first."""
FORMAT, SHARDED = 1, 2
"""Of the checkpoints that this version writes and reads: whole, and with tensors in a folder beside (`shards.py`)."""


def save_checkpoint(folder: Path, state: dict[str, Any], *, is_best: bool = False) -> None:
    """Write `last.ckpt`; what was last becomes `previous.ckpt`, and `best.ckpt` is renewed if this is the best so far.

    Each file is whole or absent. The older checkpoint goes only when the new one is on the disk and was read back.
    """
    last, fresh = folder / "last.ckpt", folder / "fresh.ckpt"
    raw = write_checkpoint(fresh, state)
    _load(fresh)
    if last.exists():
        last.replace(folder / "previous.ckpt")
    fresh.replace(last)
    if is_best:
        write_atomically(folder / "best.ckpt", raw)
    if any(folder.glob(f"{PREFIX}*")):
        with suppress(UserError):  # one that cannot be read may need any of them
            drop_shards(folder, [_load(path) for path in folder.glob("*.ckpt")])


def write_checkpoint(path: Path, state: dict[str, Any]) -> bytes:
    """Write one file of plain types, whole or not at all, if the disk has room for it; returns its bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    raw = buffer.getvalue()
    free = shutil.disk_usage(path.parent).free
    if free < len(raw) + 2**20:
        kept = "the last checkpoint is untouched" if (path.parent / "last.ckpt").exists() else "nothing was saved yet"
        raise UserError(
            f"the disk has {free / 2**20:.0f} MB left, a checkpoint needs {len(raw) / 2**20:.0f} MB",
            where=str(path.parent),
            do=f"make room and continue with --resume: {kept}",
        )
    write_atomically(path, raw)
    return raw


def check_disk(folder: Path, size: int) -> None:
    """Raise a `UserError` if a disk has no room for the checkpoints of a run, each of `size` bytes, that will be there.

    Last, previous and best stay, and one more is there while it is written. Those of a run that goes on are there.
    """
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    need, free = max(size, 4 * size - there), shutil.disk_usage(folder).free
    if free < need + 2**20:
        raise UserError(
            f"the disk has {free / 2**20:,.0f} MB left, the checkpoints of this run need {need / 2**20:,.0f} MB",
            where=str(folder),
            do="make room and continue with --resume, or choose a smaller --backbone",
        )


def check_archive(path: Path) -> None:
    """Compare what torch.save wrote with the checksums it wrote beside: torch itself loads flipped bits in silence.

    Raises:
        UserError: a part is not as it was written, or takes more room than the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            # torch.save compresses nothing: whatever does is not from there, and may unfold to any size.
            is_packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
            is_larger = sum(part.file_size for part in parts) > path.stat().st_size
            wrong = None if is_packed or is_larger else archive.testzip()
    except Exception as problem:  # zipfile raises many kinds on a damaged file
        words = f"{path} is damaged: {str(problem) or type(problem).__name__}"
        raise UserError(words, where=str(path), do="write or copy it again") from problem
    if is_packed or is_larger:
        raise UserError(f"{path} was not written by torch.save: its parts are compressed or overlap", where=str(path))
    if wrong is not None:
        raise UserError(
            f"{path} is damaged: the checksum of {wrong} is wrong", where=str(path), do="write or copy it again"
        )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code it may hold; all its tensors are whole, whoever wrote it.

    Raises:
        UserError: it is missing, damaged, of a later version, or no table with a step.
    """
    state = _load(path)
    return current_state(with_shards(path, state) | {"format": FORMAT} if SHARDS in state else state)


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UserError(f"there is no checkpoint {path}", do="the run has not come to its first one")
    check_archive(path)
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises many kinds on a damaged file
        raise UserError(f"{path} is damaged: {type(problem).__name__}", where=str(path)) from problem
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise UserError(f"{path} holds no checkpoint but {shown(state)}", where=str(path))
    written, known = state.get("format", FORMAT), SHARDED if SHARDS in state else FORMAT
    if type(written) is not int or written != known:
        is_later = type(written) is int and written > known
        words = "was written by a later version" if is_later else "is no checkpoint that this version knows"
        raise UserError(f"{path} {words}: its format is {shown(written)}, not {known}", where=str(path))
    if type(state.get("step")) is not int or state["step"] < 0:
        raise UserError(f"{path} makes no sense: its step is {shown(state.get('step'))}", where=str(path))
    return state


def weights_in(state: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, for those who want its weights and nothing else.

    Raises:
        UserError: it holds no table of dense tensors.
    """
    weights = state.get("method")
    if not isinstance(weights, dict) or not all(type(name) is str for name in weights):
        raise UserError(f"the checkpoint holds no weights but {shown(weights)}", where=where)
    bad = next((name for name, value in weights.items() if not is_plain(value)), None)
    if bad is not None:
        raise UserError(f"the checkpoint holds {bad} as {shown(weights[bad])}, which is no plain tensor", where=where)
    return weights


def is_plain(value: Any) -> bool:
    """A dense tensor in main memory; a file may hold sparse, nested, quantized ones, and ones without values."""
    if not isinstance(value, Tensor) or value.is_nested or value.is_quantized:
        return False
    return value.layout is torch.strided and value.device.type == "cpu"


def shown(value: object) -> str:
    """A value from a file, short enough for a message whatever it is.

    >>> shown(3), shown("x" * 99)[:6], shown([[]]), shown(10**5000), shown(torch.zeros(2, 3))
    ('3', "'xxxxx", 'a list', 'an integer of 16610 bits', 'float32 [2, 3]')
    """
    if isinstance(value, Tensor):
        return f"{value.dtype} {[*value.shape]}".removeprefix("torch.") if not value.is_nested else "a nested tensor"
    if type(value) is int and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value[:40] if isinstance(value, str) else value)
    return f"a {type(value).__name__}"


Check = Callable[[dict[str, Any]], None]
"""Raises a `UserError` that says why a state cannot be used."""


def newest_checkpoint(
    folder: Path, check: Check | None = None, names: Sequence[str] = NAMES, until: int | None = None
) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that can be read and that `check` lets pass, or None when there is none at all.

    A crash between two renames leaves `fresh.ckpt` or `previous.ckpt` as the newest: each is whole. With `until`, the
    newest that is not after that step.

    Raises:
        UserError: there are checkpoints, and not one of them can be used.
    """
    best: tuple[Path, dict[str, Any]] | None = None
    problems: list[str] = []
    for path in (path for name in names if (path := folder / f"{name}.ckpt").exists()):
        try:
            state = load_checkpoint(path)
            if until is not None and state["step"] > until:
                continue
            if check is not None:
                check(state)
        except UserError as problem:
            problems.append(problem.what if str(path) in problem.what else f"{path} {problem.what}")
            continue
        if best is None or state["step"] > best[1]["step"]:
            best = path, state
    if problems and best is None:
        raise UserError(f"no checkpoint can be used: {'; '.join(problems)}", where=str(folder))
    for words in problems:
        log.warning("%s: going on from an older checkpoint", words)
    return best


def latest_checkpoint(folder: Path, check: Check | None = None) -> dict[str, Any] | None:
    """The state of the newest checkpoint that can be used, or None when there is none at all."""
    found = newest_checkpoint(folder, check)
    return None if found is None else found[1]
