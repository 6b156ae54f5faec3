"""Backbones that no run of ours made: files of other programs, and backbones that were never trained."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from iecl.backbones.factory import make_backbone
from iecl.data.datasets import IMAGENET_MEAN, IMAGENET_STD
from iecl.errors import UserError
from iecl.runs.checkpoint import check_archive
from iecl.weights.file import few, fingerprint, load_into, load_weights, proof, start_of_pickle
from iecl.weights.info import UNKNOWN, BackboneInfo
from iecl.weights.layouts import read_layout
from iecl.weights.model import LoadedModel

RANDOM = "random"
"""The name of a backbone that was never trained."""
PIXELS = "pixels"
"""The name of no backbone at all."""
SMALL_SIZE, LARGE_SIZE = 32, 224
"""Side of a view for a backbone with the small-image stem, and for any other."""


def external_model(path: Path, backbone: str, layout: str = "", allow: Sequence[str] = (), **known: Any) -> LoadedModel:
    """A backbone with the weights of a file, and the proof that all of them arrived, or which did not.

    Arguments are as for `iecl.evaluation.model.load_model`; `known` is for `external_info`.

    Raises:
        UserError: the file cannot be read safely, or its layout is not known or not clear.
    """
    info = external_info(backbone, **known)
    module = make_backbone(backbone, channels=info.channels)
    found = read_layout(read_content(path), module.state_dict(), str(path), layout, allow)
    load_into(module, found.tensors, str(path))
    words = [proof(module, found.tensors, len(found.missing), len(found.unexpected)), f"layout {found.layout}"]
    if found.exceptions:
        words.append(f"allowed: {few(found.exceptions)}")
    if found.other_parts:
        words.append(f"{len(found.other_parts)} tensors of heads and other parts left out")
    if found.zeroed:
        words.append(f"{len(found.zeroed)} counters of batches that it lacks set to 0")
    return LoadedModel(module.eval(), info, path.name, ", ".join(words))


def random_model(backbone: str, seed: int = 0, **known: Any) -> LoadedModel:
    """A freshly initialized backbone, with a line that says so instead of a proof; `known` as for `external_info`."""
    info = external_info(backbone, method=RANDOM, **known)
    module = make_backbone(backbone, seed, info.channels).eval()
    line = f"random weights of seed {seed}, nothing was loaded, fingerprint {fingerprint(module.state_dict())}"
    return LoadedModel(module, info, "never trained", line)


def external_info(
    backbone: str,
    *,
    method: str = "",
    image_size: int = 0,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> BackboneInfo:
    """What is known of a backbone that does not say it; an image size of 0 is the one that it is meant for."""
    size = image_size or (SMALL_SIZE if backbone.endswith(("-small", "-w16", "-w32", "_4")) else LARGE_SIZE)
    return BackboneInfo(backbone=backbone, image_size=size, mean=mean, std=std, method=method or UNKNOWN)


def read_content(path: Path) -> Mapping[str, Any]:
    """What a .safetensors file or a file of torch.save holds, without running any code."""
    start = start_of_pickle(path)
    if not start:
        return load_weights(path)[0]
    if start == b"PK":
        check_archive(path)
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as problem:
        raise UserError(
            f"{path} cannot be opened safely: {str(problem).splitlines()[0]}",
            where=str(path),
            do="where you trust it, load it with torch and write its state_dict with safetensors.torch.save_file",
        ) from problem
    if not isinstance(found, Mapping):
        raise UserError(f"{path} holds no table of tensors but a {type(found).__name__}", where=str(path))
    return found
