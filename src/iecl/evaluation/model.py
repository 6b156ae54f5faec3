"""A trained backbone from a run directory or an exported file, with the proof that its weights were loaded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from iecl.backbones.making import make_backbone, width_of
from iecl.errors import UserError, did_you_mean
from iecl.parts.spectral_norm import fold, normalise_convolutions
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.runs.weights import FORMAT, load_into, load_weights, proof
from iecl.settings import read_toml
from iecl.training.plan import Plan, plan_from_values

CHECKPOINTS = ("final", "last", "best")
ENCODER_PREFIXES = ("host.backbone.", "backbone.")
"""Where a method's state keeps its encoder: inside the IE-CL objective, or by itself."""


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


def load_model(target: Path | str, checkpoint: str = "final") -> LoadedModel:
    """The backbone of a run directory or of an exported `.safetensors` file.

    Args:
        target: the run directory or the file.
        checkpoint: `final`, the weights at the end of the run (of a run that is not finished: its newest checkpoint);
            `last`, the newest checkpoint; `best`, the best one by the run's own measure, which knows no test set.

    Raises:
        UserError: there are no such weights, or they do not fit their backbone.
    """
    if checkpoint not in CHECKPOINTS:
        do = did_you_mean(checkpoint, CHECKPOINTS)
        raise UserError(f"no checkpoint is called {checkpoint!r}", where="--checkpoint", do=do)
    path = Path(target)
    if path.is_dir():
        return _from_run(RunDirectory.existing(path, where=str(path)), checkpoint)
    if not path.exists():
        do = "give a run directory or a .safetensors file"
        raise UserError(f"there is no run and no file {path}", where="MODEL", do=do)
    if checkpoint != "final":
        raise UserError(f"{path} is a file with one set of weights", where="--checkpoint", do="leave it out")
    return _from_file(path)


def _from_file(path: Path) -> LoadedModel:
    state, metadata = load_weights(path)
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{path} does not say which backbone it holds: its format is {metadata.get('format', 'not given')}",
            where=str(path),
            do="give a file that iecl export wrote",
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
    plan = plan_from_values(read_toml(run.settings))
    state = _encoder_state(found["method"], plan.backbone.name, str(run.checkpoints))
    return _assemble(state, _metadata(plan, found["step"]), f"{checkpoint}, step {found['step']}", str(run.checkpoints))


def _metadata(plan: Plan, step: int) -> dict[str, str]:
    """What `weights.safetensors` would say, but for an epoch: a checkpoint counts steps."""
    return {
        "backbone": plan.backbone.name,
        "image_size": str(plan.data.image_size),
        "mean": json.dumps(plan.data.mean),
        "std": json.dumps(plan.data.std),
        "method": plan.method_name,
        "step": str(step),
    }


def _encoder_state(method: Mapping[str, Tensor], backbone: str, where: str) -> dict[str, Tensor]:
    """The encoder's tensors under their plain names, with spectral norm folded into the kernels."""
    prefix = next((p for p in ENCODER_PREFIXES if any(name.startswith(p) for name in method)), None)
    if prefix is None:
        raise UserError(f"the checkpoint holds no encoder: no name starts with {ENCODER_PREFIXES[-1]}", where=where)
    state = {name.removeprefix(prefix): tensor for name, tensor in method.items() if name.startswith(prefix)}
    if any(name.endswith(".parametrizations.weight.original") for name in state):
        module = make_backbone(backbone)
        normalise_convolutions(module)
        load_into(module, state, where)
        fold(module)
        return dict(module.state_dict())
    return state


def _assemble(state: dict[str, Tensor], metadata: Mapping[str, str], checkpoint: str, where: str) -> LoadedModel:
    name, image_size, mean, std = _read(metadata, where)
    backbone = make_backbone(name)
    load_into(backbone, state, where)
    line = proof(backbone, state)
    written = dict(metadata) | {"width": str(width_of(backbone))}
    return LoadedModel(backbone.eval(), name, image_size, mean, std, checkpoint, line, written)


def _read(metadata: Mapping[str, str], where: str) -> tuple[str, int, tuple[float, ...], tuple[float, ...]]:
    """Name, image size, mean and std, which travel as text."""
    try:
        mean, std = (tuple(map(float, json.loads(metadata[key]))) for key in ("mean", "std"))
        name, image_size = metadata["backbone"], int(metadata["image_size"])
    except (KeyError, ValueError, TypeError) as problem:
        raise UserError(f"the metadata of {where} are not complete: {problem}", where=where) from problem
    if len(mean) != 3 or len(std) != 3 or image_size < 1:
        raise UserError(f"the metadata of {where} make no sense: image_size {image_size}, mean {mean}", where=where)
    return name, image_size, mean, std
