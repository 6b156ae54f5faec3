"""Weights of a backbone as one safetensors file: plain names, float32, and what is needed to use them.

A file of weights cannot run code, and none is taken on trust: it carries a fingerprint of its tensors and a digest of
all that is said of them, reading checks both, and loading into a module proves that every tensor arrived.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from iecl.errors import UserError
from iecl.files import open_plain, write_atomically

FORMAT = "iecl-backbone-2"
WITHOUT_DIGEST = "iecl-backbone-1"
"""The format before: a file's metadata, the mean of its images among them, could change unnoticed."""
FORMATS = (FORMAT, WITHOUT_DIGEST)
MOST_HEADER = 100_000_000
"""Bytes that the header of a safetensors file may have, by its own definition."""
_NAMED = 5  # keys that an error names; more would hide the message


def save_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and what is said of them, whole or not at all.

    Floating-point tensors become float32. Format, fingerprint and digest are added to the metadata.

    Args:
        path: a file that ends in `.safetensors`.
        state: tensors by the names that they have in the bare backbone.
        metadata: text by name, see `iecl.weights.info.BackboneInfo`.
    """
    plain = plain_tensors(state)
    written = dict(metadata) | {"format": FORMAT, "fingerprint": fingerprint(plain)}
    written["digest"] = digest_of(written)
    try:
        write_atomically(path, save(plain, written))
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}", where=str(path)) from problem


def plain_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dense copies in main memory, floating-point ones as float32: what a file may hold."""
    return {name: _plain(name, tensor) for name, tensor in state.items()}


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A dense copy in main memory that shares its bytes with no other tensor, in the layout that torch writes."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else "sparse"
        raise UserError(f"{name} is a {kind} tensor, only dense ones are written", where=name)
    kept = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
    return kept.cpu().clone(memory_format=torch.contiguous_format)


def load_weights(path: Path | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its metadata, which are empty for a file from elsewhere.

    Raises:
        UserError: the file is missing, is not a safetensors file, or is not as it was written.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there are no weights {path}", where=str(path), do="give a .safetensors file")
    _refuse_pickle(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        with path.open("rb") as file:  # of two entries with one name other programs may take the other one
            json.loads(file.read(int.from_bytes(file.read(8), "little")), object_pairs_hook=_once)
    except (SafetensorError, OSError, ValueError) as problem:
        raise _damaged(path, str(problem)) from problem
    _check(path, metadata, fingerprint(state))
    return state, metadata


def says_backbone(path: Path) -> bool:
    """Whether a file is one of ours, which says itself what it holds; only its header is read."""
    with open_plain(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if file.read(1) != b"{" or length > MOST_HEADER:
            return False
    try:
        with safe_open(path, framework="pt") as opened:
            said = opened.metadata() or {}
    except (SafetensorError, OSError, ValueError):  # whoever reads all of it says what is wrong
        return False
    return "backbone" in said and said.get("format", "").startswith(FORMAT.rstrip("0123456789"))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose names must differ."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise ValueError(f"its header has {twice} twice")
    return dict(pairs)


def _check(path: Path, metadata: Mapping[str, str], found: str) -> None:
    """Compare a file with what it says of itself; one from elsewhere says nothing."""
    version = metadata.get("format", "")
    if version.startswith(FORMAT.rstrip("0123456789")) and version not in FORMATS:
        raise UserError(
            f"{path} has the format {version}, this iecl reads {' and '.join(FORMATS)}",
            where=str(path),
            do="read it with a later version of iecl",
        )
    needed = {FORMAT: ("fingerprint", "digest"), WITHOUT_DIGEST: ("fingerprint",)}.get(version, ())
    lacking = [name for name in needed if name not in metadata]
    if lacking:
        raise _damaged(path, f"it has no {lacking[0]}, which {version} has")
    checks = (("fingerprint", "its fingerprint", found), ("digest", "the digest of its metadata", digest_of(metadata)))
    for name, words, computed in checks:
        if metadata.get(name, computed) != computed:
            raise _damaged(path, f"{words} should be {metadata[name]} and is {computed}")


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path} is damaged: {how}", where=str(path), do="write or copy it again")


def digest_of(metadata: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits that change with any entry: all that decides what images are made into features.

    The tensors' fingerprint is one of the entries, and the digest itself is none.

    >>> digest_of({"mean": "[0.3]", "std": "[1]"}) == digest_of({"std": "[1]", "mean": "[0.3]", "digest": "any"})
    True
    >>> digest_of({"mean": "[0.3]"}) == digest_of({"mean": "[0.9]"})
    False
    """
    entries = {name: value for name, value in metadata.items() if name != "digest"}
    return hashlib.blake2b(json.dumps(entries, sort_keys=True).encode(), digest_size=8).hexdigest()


def start_of_pickle(path: Path) -> bytes:
    """`PK` where a file begins as torch.save writes it, 0x80 where it is a bare pickle, else nothing."""
    with open_plain(path) as file:
        first = file.read(9)
    # The length of a safetensors header may happen to begin like that too, and then a brace follows it.
    is_ours = first[8:] == b"{"
    return b"" if is_ours else next((start for start in (b"PK", b"\x80") if first.startswith(start)), b"")


def _refuse_pickle(path: Path) -> None:
    """Pickles run code when they are opened: the first bytes decide, not the name."""
    if start_of_pickle(path):
        raise UserError(
            f"{path} is a pickle: only .safetensors is read here",
            where=str(path),
            do="where you trust it, load it with torch and write it with safetensors.torch.save_file",
        )


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Eight hexadecimal digits that change with any name, shape, type or value.

    >>> fingerprint({"a": torch.zeros(2)}) == fingerprint({"a": torch.zeros(2)})
    True
    >>> fingerprint({"a": torch.zeros(2)}) == fingerprint({"a": torch.zeros(2, 1)})
    False
    """
    hashed = hashlib.blake2b(digest_size=4)
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hashed.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def load_into(module: nn.Module, state: Mapping[str, Tensor], where: str, *, assign: bool = False) -> None:
    """Give a module exactly these tensors: their values, or with `assign` the tensors themselves.

    Raises:
        UserError: a tensor is missing, left over, or of another shape; the module is then as it was.
    """
    wanted = module.state_dict()
    missing, unexpected = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or unexpected:
        fitting = len(wanted) - len(missing)
        lists = ([f"missing {few(missing)}"] if missing else []) + (
            [f"unexpected {few(unexpected)}"] if unexpected else []
        )
        raise UserError(
            f"the weights do not fit: {fitting}/{len(wanted)} tensors, {'; '.join(lists)}",
            where=where,
            do="use the backbone that they were trained with, under its plain names",
        )
    misshapen = [
        f"{name} {[*state[name].shape]} for {[*wanted[name].shape]}"
        for name in sorted(wanted)
        if state[name].shape != wanted[name].shape
    ]
    if misshapen:
        raise UserError(f"the weights do not fit: of another shape {few(misshapen)}", where=where)
    wanted.update(state)  # beside the tensors it has versions of layers, which some layers ask for
    module.load_state_dict(wanted, strict=True, assign=assign)


def few(names: Sequence[str]) -> str:
    """The first of many names."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def proof(module: nn.Module, state: Mapping[str, Tensor], missing: int = 0, unexpected: int = 0) -> str:
    """One line that says that a module holds exactly these tensors, as a check of the module itself.

    Args:
        module: what the tensors were loaded into.
        state: the tensors.
        missing: how many of them are the module's own, since the file lacks them.
        unexpected: how many others the file has.

    >>> layer = nn.Linear(2, 1)
    >>> proof(layer, layer.state_dict()).partition(", fingerprint")[0]
    '2/2 tensors, 0 missing, 0 unexpected'
    """
    held = module.state_dict()
    print_of_module, print_of_state = fingerprint(held), fingerprint(state)
    if print_of_module != print_of_state:
        raise UserError(
            f"the module does not hold the weights it was given: fingerprint {print_of_module}, not {print_of_state}"
        )
    loaded = f"{len(held) - missing}/{len(held)} tensors"
    return f"{loaded}, {missing} missing, {unexpected} unexpected, fingerprint {print_of_module}"
