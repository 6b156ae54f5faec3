"""A backbone as one safetensors file with plain names, written only when it is proven to load."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from iecl.backbones.making import make_backbone
from iecl.errors import UserError
from iecl.evaluation.model import LoadedModel, load_model
from iecl.runs.directory import sync_folder
from iecl.runs.proving import IMAGES, described, proof_features
from iecl.runs.snippet import loading_snippet
from iecl.runs.weights import load_into, load_weights, proof, save_weights


def export(run: Path | str, out: Path, checkpoint: str = "final", *, overwrite: bool = False) -> dict[str, Any]:
    """Write the backbone of a run under torchvision's or timm's own names, and prove that the file gives it back.

    The file is read back into a freshly made backbone, whose features of a few generated images must equal the run's
    bit for bit. Only then does it take its name.

    Args:
        run: the run directory, or a file that was exported before.
        out: a file that ends in `.safetensors`.
        checkpoint: which weights of the run: `final`, `last` or `best`.
        overwrite: replace a file that is there.

    Returns:
        The file's path, the number of tensors, their fingerprint, the proof as a line, and a snippet that loads them.

    Raises:
        UserError: there are no such weights, or the file may not be written.
    """
    if out.suffix != ".safetensors":
        raise UserError(f"{out} does not end in .safetensors", where="--out", do=f"name it {out.stem}.safetensors")
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already", where="--out", do="add --overwrite, or name another file")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", where="--out", do="make it, or name another")
    model = load_model(run, checkpoint)
    trial = out.with_name(f".{out.stem}.unproven.safetensors")
    try:
        features = proof_features(model.backbone, model.image_size)
        metadata = {**model.metadata, "loading": loading_snippet(model.name, out.name), **described(features)}
        save_weights(trial, model.backbone.state_dict(), metadata)
        state, metadata = load_weights(trial)
        line = _prove(model, state, str(out))
        trial.replace(out)
    finally:
        trial.unlink(missing_ok=True)
    sync_folder(out.parent)
    return {
        "path": str(out),
        "tensors": len(state),
        "fingerprint": metadata["fingerprint"],
        "proof": line,
        "snippet": metadata["loading"],
    }


def _prove(model: LoadedModel, state: dict[str, Tensor], where: str) -> str:
    """The proof of loading, once a fresh backbone with these weights sees the built-in images as the run's does."""
    fresh = make_backbone(model.name).eval()
    load_into(fresh, state, where)
    line = proof(fresh, state)
    if not torch.equal(*(proof_features(backbone, model.image_size) for backbone in (fresh, model.backbone))):
        raise UserError(
            "the exported weights give other features than the run's backbone",
            where=where,
            do="nothing was written; this is a fault of iecl, please report it",
        )
    return f"{line}, equal features of {IMAGES} images"
