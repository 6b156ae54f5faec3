"""Does a file of weights do what it did when it was written? And is it more than a random network?"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.weights.model import LoadedModel
from iecl.weights.proof import Agreement, FeatureProof, proof_features

RANDOM_SEEDS = (101, 102)
"""Two networks that nobody trained: how far they lie apart is the measure of the distance from them."""
NEAR_RANDOM = 3.0
"""A network without norms that is nearer than this is called random: a short training hardly bends a spectrum."""
LEAST_MOVED = 0.01
"""One with norms is called random when fewer of their numbers have moved: the first step of training moves them all."""
NOT_COVERED = "NOT COVERED: written by an older version, a change of mean or image_size is not noticed; export it again"


@dataclass(frozen=True)
class Distance:
    """How a network differs from one that was never trained."""

    moved: float | None
    """Share of the norms' scales and shifts that are not where they start, at 1 or 0; None: it has no norms."""
    spectrum: float | None
    """How far the singular values of its weights are from a random network's, by what two random ones lie apart; None:
    they cannot be compared."""

    @property
    def is_random(self) -> bool | None:
        """Whether the network looks like one that was never trained; None: it cannot be told."""
        if self.moved is not None:
            return self.moved < LEAST_MOVED
        return None if self.spectrum is None else self.spectrum < NEAR_RANDOM


def verify_model(
    model: LoadedModel, where: str, against: LoadedModel | None = None, against_where: str = ""
) -> dict[str, Any]:
    """Compute the features again that a model, which is from `where`, carries, and compare.

    With `against` it must give the features of that model. A file from elsewhere carries none: it is proven to load.

    Raises:
        UserError: it carries no features, or gives other ones than it should.
    """
    found = _agreement(model, where, against)
    if found is not None and not found.holds:
        whose = "than it carries" if against is None else f"than {against_where}"
        raise UserError(
            f"{where} gives other features {whose}: they differ by {found.difference:.2g} of their size",
            where=where,
            do="it does not hold what was exported: export it again",
        )
    distance, digest = distance_from_random(model), model.info.digest
    return {
        "path": where,
        "weights": model.proof,
        "backbone": model.name,
        "features": _words(found),
        "metadata": f"as written, digest {digest}" if digest else NOT_COVERED if model.info.format else "none",
        "is_equal": None if found is None else found.is_equal,
        "difference": None if found is None else found.difference,
        "norms_moved": distance.moved,
        "spectrum_distance": distance.spectrum,
        "is_random": distance.is_random,
    }


def _agreement(model: LoadedModel, where: str, against: LoadedModel | None) -> Agreement | None:
    """How the model's features compare with those it should have; None: it is not said which."""
    if against is not None:
        expected = FeatureProof.of(proof_features(against.backbone, against.image_size, against.info.channels))
        return expected.compare(proof_features(model.backbone, against.image_size, model.info.channels))
    if model.info.feature_proof is not None:
        return model.info.feature_proof.compare(proof_features(model.backbone, model.image_size, model.info.channels))
    if model.info.format:
        raise UserError(f"{where} carries no features to compare with", where=where, do="export it again")
    return None


def _words(found: Agreement | None) -> str:
    if found is None:
        return "none in the file; compare it with --against RUN"
    return "equal bit for bit" if found.is_equal else f"equal within {found.difference:.1g} of their size"


def distance_from_random(model: LoadedModel) -> Distance:
    """How far a model is from random ones of its kind."""
    try:
        first, second = (_random_spectra(model.name, seed, model.info.channels) for seed in RANDOM_SEEDS)
        apart = _apart(second, first)  # a network of the user's may always begin with the same weights
        spectrum = _apart(_spectra(model.backbone), first) / apart if apart else None
    except RuntimeError:  # weights that are not finite, or LAPACK has failed: nothing that speaks against the file
        spectrum = None
    return Distance(_moved(model.backbone), spectrum)


def _moved(backbone: nn.Module) -> float | None:
    norms = [part for part in backbone.modules() if "Norm" in type(part).__name__]
    own = [dict(part.named_parameters(recurse=False)) for part in norms]
    scales, shifts = ([found[name] for found in own if name in found] for name in ("weight", "bias"))
    if not scales + shifts:
        return None
    is_moved = [scale.ne(0) & scale.ne(1) for scale in scales] + [shift.ne(0) for shift in shifts]
    return float(torch.cat([part.flatten() for part in is_moved]).float().mean())


@cache
def _random_spectra(name: str, seed: int, channels: int) -> list[Tensor]:
    return _spectra(make_backbone(name, seed, channels))


def _spectra(backbone: nn.Module) -> list[Tensor]:
    """The singular values of every weight matrix, kernels as matrices of one row for each output, of length 1."""
    matrices = (w.detach().flatten(1) for w in backbone.parameters() if w.ndim > 1 and min(w.flatten(1).shape) > 1)
    values = [_singular_values(matrix.double()) for matrix in matrices]
    return [value / value.norm().clamp_min(1e-12) for value in values]


def _singular_values(matrix: Tensor) -> Tensor:
    """By the smaller of the two products: a thirteenth of the time of an SVD, and digits enough for a distance."""
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    if not product.isfinite().all():  # what LAPACK makes of these differs from build to build
        raise RuntimeError("weights that are not finite have no singular values")
    values: Tensor = torch.linalg.eigvalsh(product).clamp_min(0).sqrt()
    return values


def _apart(some: list[Tensor], other: list[Tensor]) -> float:
    """The median over layers of the distance between two spectra."""
    return float(torch.stack([(a - b).norm() for a, b in zip(some, other, strict=True)]).median())
