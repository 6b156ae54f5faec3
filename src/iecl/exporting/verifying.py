"""Does a file of weights do what it did when it was written? And is it more than a random network?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iecl.backbones.making import make_backbone
from iecl.errors import UserError
from iecl.evaluation.model import LoadedModel, load_model
from iecl.runs.proving import agreement, proof_features
from iecl.runs.weights import load_weights

RANDOM_SEEDS = (101, 102)
"""Two networks that nobody trained: how far they lie apart is the measure of the distance from them."""
NEAR_RANDOM = 3.0
"""A network without norms that is nearer than this is called random: a short training hardly bends a spectrum."""
LEAST_MOVED = 0.01
"""One with norms is called random when fewer of their numbers have moved: the first step of training moves them all."""


@dataclass(frozen=True)
class Distance:
    """What tells a network from one that was never trained."""

    moved: float | None
    """Share of the norms' scales and shifts that are not where they start, at 1 or 0; None: it has no norms."""
    spectrum: float
    """How far the singular values of its weights are from a random network's, by what two random ones lie apart."""

    @property
    def is_random(self) -> bool:
        """Whether nothing tells the network from one that was never trained."""
        return self.spectrum < NEAR_RANDOM if self.moved is None else self.moved < LEAST_MOVED


def verify(path: Path | str) -> dict[str, Any]:
    """Load a file that `iecl export` or a run wrote, compute the features it carries again, and compare.

    Raises:
        UserError: the file is damaged, carries no features, or gives other ones than it carries.
    """
    model = load_model(path)
    file = Path(path) / "weights.safetensors" if Path(path).is_dir() else Path(path)
    _, metadata = load_weights(file)
    if "proof_features" not in metadata:
        raise UserError(f"{path} carries no features to compare with", where=str(path), do="export it again")
    found = agreement(metadata, proof_features(model.backbone, model.image_size))
    if not found.holds:
        raise UserError(
            f"{path} gives other features than it carries: they differ by {found.difference:.2g} of their size",
            where=str(path),
            do="it does not hold what was exported: export it again",
        )
    distance = distance_from_random(model)
    return {
        "path": str(path),
        "weights": model.proof,
        "backbone": model.name,
        "features": "equal bit for bit" if found.is_equal else f"equal within {found.difference:.1g} of their size",
        "is_equal": found.is_equal,
        "difference": found.difference,
        "norms_moved": distance.moved,
        "spectrum_distance": distance.spectrum,
        "is_random": distance.is_random,
    }


def distance_from_random(model: LoadedModel) -> Distance:
    """How far a model is from random ones of its kind."""
    first, second = (_spectra(make_backbone(model.name, seed)) for seed in RANDOM_SEEDS)
    return Distance(_moved(model.backbone), _apart(_spectra(model.backbone), first) / _apart(second, first))


def _moved(backbone: nn.Module) -> float | None:
    norms = [part for part in backbone.modules() if "Norm" in type(part).__name__]
    own = [dict(part.named_parameters(recurse=False)) for part in norms]
    scales, shifts = ([found[name] for found in own if name in found] for name in ("weight", "bias"))
    if not scales + shifts:
        return None
    is_moved = [scale.ne(0) & scale.ne(1) for scale in scales] + [shift.ne(0) for shift in shifts]
    return float(torch.cat([part.flatten() for part in is_moved]).float().mean())


def _spectra(backbone: nn.Module) -> list[Tensor]:
    """The singular values of every weight matrix, kernels as matrices of one row for each output, of length 1."""
    matrices = (w.detach().flatten(1) for w in backbone.parameters() if w.ndim > 1 and min(w.flatten(1).shape) > 1)
    values = [torch.linalg.svdvals(matrix.double()) for matrix in matrices]
    return [value / value.norm().clamp_min(1e-12) for value in values]


def _apart(some: list[Tensor], other: list[Tensor]) -> float:
    """The median over layers of the distance between two spectra."""
    return float(torch.stack([(a - b).norm() for a, b in zip(some, other, strict=True)]).median())
