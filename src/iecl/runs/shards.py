"""The tensors of a checkpoint that no process has whole: a folder of safetensors, to which every process writes.

torch.distributed.checkpoint writes and reads it, in its form without pickle. The checkpoint itself stays one plain
file: None stands for each tensor that is in the folder, and `SHARDS` names the folder and the checksums of its files.
"""

import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iecl.errors import UserError

SHARDS = "shards"
PREFIX = "shards-"
NAME = re.compile(rf"{PREFIX}[0-9-]+")
CHUNK = 2**22
LEAST_TORCH = (2, 9)
"""The first that writes and reads such folders as is done here."""


def check_torch(where: str) -> None:
    """Raise a `UserError` if torch is too old for folders of tensors."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        do = "pip install --upgrade torch torchvision"
        raise UserError(f"shares of weights need torch {least}, this is {torch.__version__}", where=where, do=do)


def with_shards(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint that was read from `path`, with the tensors of its folder in their places.

    Raises:
        UserError: a file is missing or damaged, or the folder holds something else.
    """
    check_torch(str(path))
    place = _checked(path, state)
    rest = {name: value for name, value in state.items() if name != SHARDS}
    try:
        tensors = _read(place)
        return with_tensors(rest, lambda name, value: tensors.get(name) if value is None else value)
    except Exception as problem:  # torch and safetensors raise many kinds on a damaged file
        raise UserError(f"{place} is damaged: {type(problem).__name__}", where=str(path)) from problem


def _checked(path: Path, state: Mapping[str, Any]) -> Path:
    """The folder of a checkpoint, whose files are those that were written."""
    said = state[SHARDS]
    name, files = (said.get("folder"), said.get("files")) if isinstance(said, dict) else (None, None)
    if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(files, dict):
        raise UserError(f"{path} is damaged: it does not say where its tensors are", where=str(path))
    place = path.parent / name
    there = {file.name: file for file in place.iterdir() if file.is_file()} if place.is_dir() else {}
    if there.keys() != files.keys():
        what = f"holds {len(there)} files and not the {len(files)} that were written" if there else "is gone"
        raise UserError(f"{place}, which belongs to {path}, {what}", where=str(path), do="copy it again, as a whole")
    try:
        wrong = next((file for file in there.values() if checksum(file) != files[file.name]), None)
    except OSError as problem:
        raise UserError(f"{place} cannot be read: {problem.strerror}", where=str(path)) from problem
    if wrong is not None:
        raise UserError(f"{wrong} is damaged: its checksum is wrong", where=str(path), do="copy it again")
    return place


def _read(place: Path) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(place))
    listed: dict[str, Any] = reader.read_metadata().state_dict_metadata
    if any(sum(chunk.sizes.numel() for chunk in entry.chunks) != entry.size.numel() for entry in listed.values()):
        raise ValueError("a part of a tensor is missing")  # or, in a file that somebody made up, its size is
    found = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in listed.items()}
    try:
        with warnings.catch_warnings(action="ignore"):  # torch wonders that there is one process
            load(found, storage_reader=reader, no_dist=True)
    except CheckpointException as problem:  # which is no Exception
        raise ValueError(str(problem)) from problem
    return found


def with_tensors(state: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """A checkpoint in which a function was applied to every tensor of weights and optimizer, and to its name."""
    method, optimizer = state["method"], state["optimizer"]
    memory = {
        number: {key: change(f"optimizer/{number}/{key}", value) for key, value in kept.items()}
        for number, kept in optimizer["state"].items()
    }
    return {
        **state,
        "method": {name: change(f"method/{name}", value) for name, value in method.items()},
        "optimizer": {**optimizer, "state": memory},
    }


def checksum(file: Path) -> int:
    """CRC-32 of what a file holds."""
    value = 0
    with file.open("rb") as opened:
        while part := opened.read(CHUNK):
            value = zlib.crc32(part, value)
    return value


def drop_shards(folder: Path, states: Iterable[Mapping[str, Any]]) -> None:
    """Remove the folders of tensors that none of these checkpoints needs."""
    told = [state[SHARDS] for state in states if isinstance(state.get(SHARDS), dict)]
    needed = [said.get("folder") for said in told]
    for place in folder.glob(f"{PREFIX}*"):
        if place.name not in needed:
            shutil.rmtree(place, ignore_errors=True)
