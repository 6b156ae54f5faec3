"""A backbone as one file for other programs, written only when it is proven to give the same features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from iecl.errors import UserError
from iecl.files import atomic_path
from iecl.runs.checkpoint import write_checkpoint
from iecl.weights.external import external_model
from iecl.weights.file import fingerprint, plain_tensors
from iecl.weights.formats import EXPORT_FORMATS, check_name, choose_format, content_of
from iecl.weights.model import LoadedModel, load_file, save_model
from iecl.weights.onnx_graph import write_onnx
from iecl.weights.proof import IMAGES, proof_features
from iecl.weights.snippet import loading_snippet


def check_place(out: Path, format: str, overwrite: bool) -> None:
    """Refuse a file that may not be written, before anything is loaded."""
    check_name(out, format)
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already", where="--out", do="add --overwrite, or name another file")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", where="--out", do="make it, or name another")


def write_export(model: LoadedModel, out: Path, format: str = "") -> dict[str, Any]:
    """Write a backbone for another program, and prove that the file gives it back.

    The file is read back, into a freshly made backbone or by ONNX Runtime, and its features of a few generated images
    must equal the model's: bit for bit, or for ONNX within a tolerance. Only then does it take its name.

    Args:
        model: what is written.
        out: the file; its ending goes with the format, and one that is there is replaced.
        format: a row of `iecl.weights.formats.EXPORT_FORMATS`; empty: what the file's ending and the backbone suggest.

    Raises:
        UserError: the backbone cannot be written in this format, or the file does not give its features.
    """
    format = choose_format(out, format, model.name)
    with atomic_path(out) as trial:
        line = write_onnx(model, trial, str(out)) if format == "onnx" else _write_tensors(model, trial, out, format)
    state = model.backbone.state_dict()
    return {
        "path": str(out),
        "format": format,
        "tensors": len(state),
        "fingerprint": fingerprint(state),
        "weights": model.proof,
        "proof": line,
        "snippet": loading_snippet(model.name, out.name, format, mean=model.mean, std=model.std),
    }


def _write_tensors(model: LoadedModel, trial: Path, out: Path, format: str) -> str:
    """Tensors and all that is known of them, or tensors alone under the names of another program."""
    if format == "safetensors":
        save_model(trial, replace(model, info=replace(model.info, source=model.proof)), out.name)
        found = load_file(trial)
    else:
        write_checkpoint(trial, content_of(format, plain_tensors(model.backbone.state_dict())))
        found = external_model(trial, model.name, EXPORT_FORMATS[format].layout, mean=model.mean, std=model.std)
    if not torch.equal(
        *(proof_features(each.backbone, model.image_size, model.info.channels) for each in (found, model))
    ):
        raise UserError(
            "the exported weights give other features than the run's backbone",
            where=str(out),
            do="nothing was written; this is a fault of iecl, please report it",
        )
    return f"{found.proof}, equal features of {IMAGES} images"
