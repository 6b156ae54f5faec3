"""A backbone from a run directory or a file, with the proof that its weights were loaded."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from iecl.backbones.factory import make_backbone, stem_of, width_of
from iecl.data.datasets import IMAGENET_MEAN, IMAGENET_STD
from iecl.errors import UserError, did_you_mean
from iecl.evaluation.external_weights import RANDOM, backbone_from_file, random_backbone, usual_size
from iecl.files import open_plain
from iecl.parts.spectral_norm import fold, normalize_convolutions, sizes_in
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint, weights_in
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, read_config
from iecl.weights.file import FORMATS, load_into, load_weights, proof

CHECKPOINTS = ("final", "last", "best")
ENCODER_PREFIXES = ("host.backbone.", "backbone.")
"""Where a method's state keeps its encoder: inside the IE-CL objective, or by itself."""
LARGEST_SIDE = 4096
"""Pixels on a side of a view that a file may ask for: a damaged one may ask for any."""


@dataclass(frozen=True)
class LoadedModel:
    """A backbone in evaluation mode, and what it expects of its images."""

    backbone: nn.Module
    name: str
    """The backbone's name, as for `--backbone`."""
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checkpoint: str
    """Which weights these are, as in `final` or `last, step 1200`."""
    proof: str
    """How many tensors were loaded, and their fingerprint."""
    metadata: Mapping[str, str]
    """All of the above as text, and the method, step and epoch: what an exported file carries."""

    @property
    def width(self) -> int:
        """The length of a feature."""
        return width_of(self.backbone)

    @property
    def method(self) -> str:
        """What trained it, where that is known."""
        return self.metadata.get("method", "not known")


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
        backbone: what a file from elsewhere holds; everything else says so itself.
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
    if allow and (not backbone or path.is_dir() or target == RANDOM):
        raise UserError(f"the weights of {target} must be whole", where="--allow", do="it is for files with --backbone")
    if path.is_dir():
        return _from_run(RunDirectory.existing(path, where=str(path)), checkpoint)
    if checkpoint != "final" and (path.exists() or target == RANDOM):
        raise UserError(f"{target} is one set of weights", where="--checkpoint", do="leave it out")
    if not path.exists() and target != RANDOM:
        raise UserError(
            f"there is no run and no file {path}",
            where="MODEL",
            do=f"give a run directory, a file of weights, or {RANDOM}",
        )
    if path.suffix == ".ckpt" and RunDirectory(path.parent.parent).holds_run:
        return _from_checkpoint(RunDirectory(path.parent.parent), load_checkpoint(path), path.stem)
    if not backbone:
        return _from_file(path)
    made = random_backbone(backbone) if target == RANDOM else backbone_from_file(path, backbone, layout, allow)
    return _from_elsewhere(target, *made, backbone, image_size, method)


def _from_elsewhere(
    target: Path | str, module: nn.Module, line: str, backbone: str, image_size: int, method: str
) -> LoadedModel:
    """A backbone that does not say what images it expects: those of ImageNet's constants."""
    is_random = target == RANDOM
    size = image_size or usual_size(backbone)
    metadata = {
        "backbone": backbone,
        "image_size": str(size),
        "mean": json.dumps(IMAGENET_MEAN),
        "std": json.dumps(IMAGENET_STD),
        "width": str(width_of(module)),
        "stem": stem_of(module),
        "method": RANDOM if is_random else method or "not known",
    }
    which = "never trained" if is_random else Path(target).name
    return LoadedModel(module.eval(), backbone, size, IMAGENET_MEAN, IMAGENET_STD, which, line, metadata)


def _from_file(path: Path) -> LoadedModel:
    if not path.exists():
        raise UserError(f"{path} of which backbone?", where="--backbone", do="name it, as in --backbone resnet18")
    with open_plain(path) as file:
        is_torch = file.read(2) == b"PK"
    state, metadata = ({}, {}) if is_torch else load_weights(path)
    if metadata.get("format") not in FORMATS:
        raise UserError(
            f"{path} does not say which backbone it holds: its format is {metadata.get('format', 'not given')}",
            where=str(path),
            do="name it with --backbone, or give a file that iecl export wrote",
        )
    return _assemble(state, metadata, "final", str(path))


def _from_run(run: RunDirectory, checkpoint: str) -> LoadedModel:
    if checkpoint == "final" and run.weights.exists():
        return _from_file(run.weights)
    found: dict[str, Any] | None
    if checkpoint == "best":
        found, checkpoint = load_checkpoint(run.checkpoints / "best.ckpt"), "best"
    else:
        found, checkpoint = latest_checkpoint(run.checkpoints), "last"
    if found is None:
        raise UserError(
            f"{run.path} has no weights yet", where=str(run.path), do="wait for its first checkpoint, or resume it"
        )
    return _from_checkpoint(run, found, checkpoint)


def _from_checkpoint(run: RunDirectory, found: dict[str, Any], checkpoint: str) -> LoadedModel:
    config = read_config(run)
    state = _encoder_state(weights_in(found, str(run.checkpoints)), config.backbone.name, str(run.checkpoints))
    return _assemble(
        state, _metadata(config, found["step"]), f"{checkpoint}, step {found['step']}", str(run.checkpoints)
    )


def _metadata(config: RunConfig, step: int) -> dict[str, str]:
    """What `weights.safetensors` would say, but for an epoch: a checkpoint counts steps."""
    return {
        "backbone": config.backbone.name,
        "image_size": str(config.data.image_size),
        "mean": json.dumps(config.data.mean),
        "std": json.dumps(config.data.std),
        "method": config.method_name,
        "step": str(step),
        "recipe": config.recipe(),
    }


def _encoder_state(method: Mapping[str, Tensor], backbone: str, where: str) -> dict[str, Tensor]:
    """The encoder's tensors under their plain names, with spectral norm folded into the kernels."""
    prefix = next((p for p in ENCODER_PREFIXES if any(name.startswith(p) for name in method)), None)
    if prefix is None:
        raise UserError(f"the checkpoint holds no encoder: no name starts with {ENCODER_PREFIXES[-1]}", where=where)
    state = {name.removeprefix(prefix): tensor for name, tensor in method.items() if name.startswith(prefix)}
    if any(name.endswith(".parametrizations.weight.original") for name in state):
        module = make_backbone(backbone)
        normalize_convolutions(module, sizes_in(state), iterations=0)
        load_into(module, state, where)
        fold(module)
        return dict(module.state_dict())
    return state


def _assemble(state: dict[str, Tensor], metadata: Mapping[str, str], checkpoint: str, where: str) -> LoadedModel:
    name, image_size, mean, std = _read(metadata, where)
    backbone = make_backbone(name)
    load_into(backbone, state, where)
    line = proof(backbone, state)
    written = dict(metadata) | {"width": str(width_of(backbone)), "stem": stem_of(backbone)}
    return LoadedModel(backbone.eval(), name, image_size, mean, std, checkpoint, line, written)


def _read(metadata: Mapping[str, str], where: str) -> tuple[str, int, tuple[float, ...], tuple[float, ...]]:
    """Name, image size, mean and std, which travel as text."""
    try:
        mean, std = (tuple(map(float, json.loads(metadata[key]))) for key in ("mean", "std"))
        name, image_size = metadata["backbone"], int(metadata["image_size"])
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise UserError(f"the metadata of {where} are not complete: {problem}", where=where) from problem
    is_usual = len(mean) == len(std) == 3 and all(map(math.isfinite, mean + std)) and min(std) > 0
    if not is_usual or not 1 <= image_size <= LARGEST_SIDE:
        raise UserError(
            f"the metadata of {where} make no sense: image_size {image_size}, mean {mean}, std {std}", where=where
        )
    return name, image_size, mean, std
