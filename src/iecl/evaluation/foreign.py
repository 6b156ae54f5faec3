"""Backbones that no run of ours made: files of torchvision or timm weights, and one that was never trained."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iecl.backbones.making import make_backbone
from iecl.errors import UserError
from iecl.runs.weights import fingerprint, load_into, load_weights, proof

RANDOM = "random"
"""The name of a backbone that was never trained."""
SMALL_SIZE, LARGE_SIZE = 32, 224
"""Side of a view for a backbone with the small-image stem, and for any other."""
HEADS = ("fc.", "heads.head.", "classifier.2.", "classifier.1.", "head.")
"""Names under which torchvision and timm keep the classifier that a backbone does without."""


def usual_size(backbone: str) -> int:
    """The side of a view that a backbone is meant for."""
    return SMALL_SIZE if backbone.endswith(("-small", "-w16", "-w32")) else LARGE_SIZE


def random_backbone(backbone: str, seed: int = 0) -> tuple[nn.Module, str]:
    """A freshly initialised backbone, and a line in the place of a proof."""
    module = make_backbone(backbone, seed)
    return module, f"random weights of seed {seed}, nothing was loaded, fingerprint {fingerprint(module.state_dict())}"


def backbone_from_file(path: Path, backbone: str) -> tuple[nn.Module, str]:
    """A backbone with the weights of a file, and the proof that all of them arrived.

    The tensors must have the plain names of the backbone; a classifier's head is left out and named.

    Raises:
        UserError: the file cannot be read safely, or is not a plain table of tensors that fits.
    """
    state = read_tensors(path)
    module = make_backbone(backbone)
    own = module.state_dict()
    head = sorted(name for name in state if name not in own and name.startswith(HEADS))
    state = {name: tensor for name, tensor in state.items() if name not in head}
    load_into(module, state, str(path))
    left_out = f", without the head {', '.join(head)}" if head else ""
    return module, proof(module, state) + left_out


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A table of tensors from a .safetensors file, or from a file of torch.save, without running any code."""
    with path.open("rb") as file:
        is_torch = file.read(2) in (b"PK", b"\x80\x02")
    return _read_torch(path) if is_torch else load_weights(path)[0]


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as problem:
        raise UserError(
            f"{path} cannot be opened safely: {str(problem).splitlines()[0]}",
            where=str(path),
            do="where you trust it, load it with torch and write its state_dict with safetensors.torch.save_file",
        ) from problem
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        keys = ", ".join(map(str, list(found)[:5])) if isinstance(found, dict) else type(found).__name__
        raise UserError(
            f"{path} is no plain table of tensors: it holds {keys}",
            where=str(path),
            do="give the state_dict of the bare backbone",
        )
    return found
