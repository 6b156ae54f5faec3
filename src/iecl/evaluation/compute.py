"""Where and how an evaluation computes: device, arithmetic, processes. Free of torch until it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iecl.errors import UserError, did_you_mean
from iecl.launch import PER_CORE, usable_cores

if TYPE_CHECKING:
    import torch

FULL = "32-true"
PRECISIONS = {FULL: "", "bf16-mixed": "bfloat16", "16-mixed": "float16"}
"""What each name means for torch's autocast; empty: all in 32 bits."""
SHORT = {"": FULL, "32": FULL, "bf16": "bf16-mixed", "fp16": "16-mixed", "16": "16-mixed"}


def precision_called(word: str) -> str:
    """The arithmetic that a word means.

    >>> precision_called("bf16"), precision_called("")
    ('bf16-mixed', '32-true')

    Raises:
        UserError: none is called so.
    """
    found = SHORT.get(word, word)
    if found not in PRECISIONS:
        raise UserError(f"no arithmetic is called {word!r}", where="--precision", do=did_you_mean(word, PRECISIONS))
    return found


def best_device() -> torch.device:
    """A GPU if there is one."""
    import torch

    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return torch.device(next((kind for kind, is_there in kinds.items() if is_there), "cpu"))


def device_called(name: str) -> torch.device:
    """The device with a name such as `cpu` or `cuda:1`; without a name, the best one.

    Raises:
        UserError: this machine has none that is called so.
    """
    import torch

    if not name:
        return best_device()
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).partition("\n")[0]
        raise UserError(f"there is no device {name!r} here: {reason}", where="--device", do="try cpu") from problem
    return torch.device(name)


def compute_called(device: str = "", precision: str = "", devices: int = 1) -> dict[str, Any]:
    """What these words ask for, as an `EvaluationContext` takes it.

    Raises:
        UserError: this machine has no such device, or not as many.
    """
    import torch

    chosen, where = precision_called(precision), device_called(device)
    if devices < 1:
        raise UserError(f"{devices} processes measure nothing", where="--devices", do="give 1 or more")
    if devices > 1 and where.type == "cuda":
        there = torch.cuda.device_count()
        if ":" in device:
            raise UserError(f"{device} is one device", where="--devices", do="leave out its number")
        if devices > there:
            raise UserError(f"this machine has {there} GPUs", where="--devices", do=f"give {there} or less")
    if devices > (most := PER_CORE * usable_cores()) and where.type == "cpu":
        raise UserError(f"{devices} processes would wait for each other", where="--devices", do=f"give {most} or less")
    return {"device": where, "precision": chosen, "devices": devices}


def device_of(device: torch.device, rank: int) -> torch.device:
    """The device of one of several processes: each has a GPU of its own."""
    import torch

    return torch.device("cuda", rank) if device.type == "cuda" else device


@contextmanager
def arithmetic(device: torch.device, precision: str) -> Iterator[None]:
    """Compute in this precision for a while; 32 bits are all of them: TF32, which a GPU's convolutions take, is off."""
    import torch

    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    kind = PRECISIONS[precision]
    try:
        with torch.autocast(device.type, dtype=getattr(torch, kind or "bfloat16"), enabled=bool(kind)):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
