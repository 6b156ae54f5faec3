"""A backbone as an ONNX graph, checked by ONNX Runtime against torch. Needs the onnx extra."""

import logging
import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from iecl.errors import UserError, lacking
from iecl.weights.file import digest_of, fingerprint
from iecl.weights.model import LoadedModel
from iecl.weights.proof import IMAGES, proof_features, proof_images

NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""Largest difference between ONNX Runtime and torch, as a share of the features' typical size: they sum differently."""


def write_onnx(model: LoadedModel, trial: Path, where: str) -> str:
    """Write a graph from `images`, normalized as in training, to `features`, and compare what it gives.

    Raises:
        UserError: the extra is not installed, or the graph gives other features than torch does.
    """
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        raise lacking("an ONNX file", " and ".join(absent), extra="onnx", where="--format")
    images, expected = (
        proof_images(model.image_size, model.info.channels),
        proof_features(model.backbone, model.image_size, model.info.channels),
    )
    metadata = model.described().to_metadata() | {"fingerprint": fingerprint(model.backbone.state_dict())}
    metadata["digest"] = digest_of(metadata)
    _convert(model.backbone, images, trial, metadata)
    difference = _difference(trial, images, expected, metadata)
    if not difference <= TOLERANCE:
        raise UserError(
            f"the graph gives other features than the run's backbone: they differ by {difference:.2g} of their size",
            where=where,
            do="nothing was written; export it as safetensors",
        )
    held = len(model.backbone.state_dict())
    return (
        f"{held} tensors as a graph, fingerprint {metadata['fingerprint']}, features of {IMAGES} images equal within "
        f"{difference:.1g} of their size ({TOLERANCE:g} allowed)"
    )


def _convert(backbone: torch.nn.Module, images: torch.Tensor, path: Path, metadata: dict[str, str]) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # what it says of its own progress is no help to a user
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's exporter about torch's own functions
            program: Any = torch.onnx.export(
                backbone,
                (images,),
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    program.model.metadata_props.update(metadata)
    program.save(str(path), external_data=False)


def _difference(path: Path, images: torch.Tensor, expected: torch.Tensor, metadata: dict[str, str]) -> float:
    """The largest one of ONNX Runtime's features from torch's; one image is asked for alone, the batch is free.

    It is infinite where the file has lost its metadata.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    if session.get_modelmeta().custom_metadata_map != metadata:
        return math.inf
    parts = [session.run(None, {"images": part.numpy()})[0] for part in (images[:1], images[1:])]
    found = torch.cat([torch.from_numpy(part) for part in parts])
    scale = expected.square().mean().sqrt().clamp_min(1e-12)
    return float((found - expected).abs().max() / scale)
