"""A backbone as one file for other programs, written only when it is proven to give the same features."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.evaluation.external_weights import backbone_from_file
from iecl.evaluation.model import LoadedModel, load_model
from iecl.exporting.graph import write_onnx
from iecl.files import atomic_path
from iecl.runs.checkpoint import write_checkpoint
from iecl.weights.file import fingerprint, load_into, load_weights, plain_tensors, proof, save_weights
from iecl.weights.formats import EXPORT_FORMATS, check_name, choose_format, content_of
from iecl.weights.proof import IMAGES, described, proof_features
from iecl.weights.snippet import loading_snippet


def export(
    run: Path | str,
    out: Path,
    checkpoint: str = "final",
    *,
    form: str = "",
    backbone: str = "",
    layout: str = "",
    allow: Sequence[str] = (),
    image_size: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a backbone for another program, and prove that the file gives it back.

    The file is read back, into a freshly made backbone or by ONNX Runtime, and its features of a few generated images
    must equal the run's: bit for bit, or for ONNX within a tolerance. Only then does it take its name.

    Args:
        run: the run directory, a file that was exported before, or with `backbone` a file from elsewhere.
        out: the file; its ending goes with the form.
        checkpoint: which weights of the run: `final`, `last` or `best`.
        form: a row of `iecl.weights.formats.EXPORT_FORMATS`; empty: what the file's ending and the backbone suggest.
        backbone: what a file from elsewhere holds.
        layout: how such a file names its tensors, where that is not clear.
        allow: patterns of its tensors that may be missing, misshapen or unexpected.
        image_size: side of a view for such a backbone.
        overwrite: replace a file that is there.

    Returns:
        The file's path and form, the number of tensors, their fingerprint, the proofs of what was read and of what was
        written, and how to load it.

    Raises:
        UserError: there are no such weights, or the file may not be written.
    """
    check_name(out, form)
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already", where="--out", do="add --overwrite, or name another file")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", where="--out", do="make it, or name another")
    model = load_model(run, checkpoint, backbone=backbone, layout=layout, allow=allow, image_size=image_size)
    form = choose_format(out, form, model.name)
    with atomic_path(out) as trial:
        line = _WRITERS.get(form, _write_table)(model, trial, out, form)
    state = model.backbone.state_dict()
    return {
        "path": str(out),
        "format": form,
        "tensors": len(state),
        "fingerprint": fingerprint(state),
        "weights": model.proof,
        "proof": line,
        "snippet": _snippet(model, out, form),
    }


def _snippet(model: LoadedModel, out: Path, form: str) -> str:
    return loading_snippet(model.name, out.name, form, mean=model.mean, std=model.std)


def _write_safetensors(model: LoadedModel, trial: Path, out: Path, form: str) -> str:
    """Tensors and all that is known of them."""
    features = proof_features(model.backbone, model.image_size)
    metadata = {**model.metadata, "source": model.proof, "loading": _snippet(model, out, form), **described(features)}
    save_weights(trial, model.backbone.state_dict(), metadata)
    state, _ = load_weights(trial)
    fresh = make_backbone(model.name).eval()
    load_into(fresh, state, str(out))
    return _proven(model, fresh, proof(fresh, state), str(out))


def _write_table(model: LoadedModel, trial: Path, out: Path, form: str) -> str:
    """Tensors under the names of another program, as torch writes them; nothing in the file needs code to be read."""
    write_checkpoint(trial, content_of(form, plain_tensors(model.backbone.state_dict())))
    fresh, line = backbone_from_file(trial, model.name, EXPORT_FORMATS[form].layout)
    return _proven(model, fresh.eval(), line, str(out))


def _write_graph(model: LoadedModel, trial: Path, out: Path, form: str) -> str:
    return write_onnx(model, trial, str(out))


_WRITERS: dict[str, Callable[[LoadedModel, Path, Path, str], str]] = {
    "safetensors": _write_safetensors,
    "onnx": _write_graph,
}


def _proven(model: LoadedModel, fresh: torch.nn.Module, line: str, where: str) -> str:
    """The proof of loading, once the backbone that was read back sees the built-in images as the run's does."""
    if not torch.equal(*(proof_features(backbone, model.image_size) for backbone in (fresh, model.backbone))):
        raise UserError(
            "the exported weights give other features than the run's backbone",
            where=where,
            do="nothing was written; this is a fault of iecl, please report it",
        )
    return f"{line}, equal features of {IMAGES} images"
