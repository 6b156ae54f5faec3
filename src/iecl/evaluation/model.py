"""A backbone from a run directory or a file, with the proof that its weights were loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iecl.errors import UserError, did_you_mean
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint, weights_in
from iecl.runs.directory import RunDirectory, refuse_missing
from iecl.training.config import read_config
from iecl.training.trained_backbone import trained_backbone
from iecl.weights.external import RANDOM, external_model, random_model
from iecl.weights.file import says_backbone
from iecl.weights.model import LoadedModel, load_file

CHECKPOINTS = ("final", "last", "best")
EXTERNAL = ("backbone", "image_size", "layout", "allow", "method")
"""What must be said of weights that do not say it themselves."""


def load_model(
    target: Path | str,
    checkpoint: str = "final",
    *,
    backbone: str = "",
    image_size: int = 0,
    layout: str = "",
    allow: Sequence[str] = (),
    method: str = "",
) -> LoadedModel:
    """A backbone by the name of what holds it.

    Args:
        target: a run directory; a checkpoint in one; a `.safetensors` file that `iecl export` wrote; with `backbone`,
            a file in any layout of `iecl.weights.layouts`, or `random` for a backbone that was never trained.
        checkpoint: of a run: `final`, the weights at its end (of a run that is not finished: its newest checkpoint);
            `last`, the newest checkpoint; `best`, the best one by the run's own measure, which knows no test set.
        backbone: what a file from elsewhere holds; everything else says so itself, and must not be contradicted.
        image_size: side of a view for a backbone from elsewhere; 0: what it is meant for.
        layout: how such a file names its tensors; empty: the only layout that fits.
        allow: patterns of tensors that may be missing, misshapen or unexpected in such a file; nothing else is.
        method: what trained such a file, for tables.

    Raises:
        UserError: there are no such weights, or they do not fit their backbone.
    """
    if checkpoint not in CHECKPOINTS:
        do = did_you_mean(checkpoint, CHECKPOINTS)
        raise UserError(f"no checkpoint is called {checkpoint!r}", where="--checkpoint", do=do)
    path = Path(target)
    said: dict[str, str | int] = {"backbone": backbone, "image_size": image_size, "method": method}
    is_ours = path.is_dir() or (path.suffix == ".ckpt" and RunDirectory(path.parent.parent).holds_run)
    is_ours = is_ours or (path.is_file() and says_backbone(path))
    if allow and (not backbone or is_ours or target == RANDOM):
        raise UserError(f"the weights of {target} must be whole", where="--allow", do="it is for files with --backbone")
    if layout and (is_ours or target == RANDOM):
        raise UserError(f"the layout of {target} is known", where="--layout", do="it is for files from elsewhere")
    if path.is_dir():
        return _from_run(RunDirectory.existing(path, where=str(path)), checkpoint).refuse_other(target, **said)
    if checkpoint != "final" and (path.exists() or target == RANDOM):
        raise UserError(f"{target} is one set of weights", where="--checkpoint", do="leave it out")
    if target != RANDOM:
        refuse_missing(target)
    if path.suffix == ".ckpt" and RunDirectory(path.parent.parent).holds_run:
        run = RunDirectory(path.parent.parent)
        return _from_checkpoint(run, load_checkpoint(path), path.stem).refuse_other(target, **said)
    if target == RANDOM:
        if not backbone:
            raise UserError("random of which backbone?", where="--backbone", do="name it, as in --backbone resnet18")
        return random_model(backbone, image_size=image_size)
    if is_ours or not backbone:
        return load_file(path, trusted=backbone).refuse_other(target, **said)
    return external_model(path, backbone, layout, allow, image_size=image_size, method=method)


def _from_run(run: RunDirectory, checkpoint: str) -> LoadedModel:
    if checkpoint == "final" and run.weights.exists():
        return load_file(run.weights)
    if checkpoint == "best":
        return _from_checkpoint(run, load_checkpoint(run.checkpoints / "best.ckpt"), "best")
    found = latest_checkpoint(run.checkpoints)
    if found is None:
        raise UserError(
            f"{run.path} has no weights yet", where=str(run.path), do="wait for its first checkpoint, or resume it"
        )
    return _from_checkpoint(run, found, "last")


def _from_checkpoint(run: RunDirectory, found: dict[str, Any], checkpoint: str) -> LoadedModel:
    config, where, step = read_config(run), str(run.checkpoints), found["step"]
    name = f"{checkpoint}, step {step}"
    return trained_backbone(config, weights_in(found, where), step, checkpoint=name, where=where)
