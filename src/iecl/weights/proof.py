"""Features of a few images that anyone can make, kept with the weights: whoever loads them can check what they do.

The images are the multiples of the golden ratio, modulo 1, in the order of their pixels: one line in any language. They
are given to the backbone as they are, in 32-bit arithmetic and evaluation mode.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl.errors import UserError

IMAGES, SHOWN = 4, 8
"""Images, and how many of each one's features are kept as numbers; the fingerprint covers all of them."""
GOLDEN = 0.6180339887498949
TOLERANCE = 1e-3
"""Largest difference that another processor or build may make, as a share of the features' typical size."""


def proof_images(image_size: int, channels: int = 3) -> Float[Tensor, "n channels size size"]:
    """The built-in images.

    >>> [[round(x, 4) for x in row] for row in proof_images(2)[0, 0].tolist()]
    [[0.0, 0.618], [0.2361, 0.8541]]
    """
    count = IMAGES * channels * image_size**2
    values = torch.arange(count, dtype=torch.float64) * GOLDEN % 1
    return values.float().reshape(IMAGES, channels, image_size, image_size)


@torch.inference_mode()
def proof_features(backbone: nn.Module, image_size: int, channels: int = 3) -> Float[Tensor, "n width"]:
    """What a backbone in evaluation mode makes of the built-in images."""
    features: Tensor = backbone(proof_images(image_size, channels)).float()
    return features


@dataclass(frozen=True)
class Agreement:
    """How features computed now compare with those that a file carries."""

    is_equal: bool
    """Bit for bit, all of them."""
    difference: float
    """The largest one among those shown, as a share of the features' typical size."""

    @property
    def holds(self) -> bool:
        """Equal, or as near as another build may come."""
        return self.is_equal or self.difference <= TOLERANCE


@dataclass(frozen=True)
class FeatureProof:
    """Features of the built-in images as a file of weights carries them."""

    shown: tuple[tuple[float, ...], ...]
    """The first few of each image."""
    fingerprint: str
    """Of all of them."""
    scale: float
    """Their typical size."""

    @classmethod
    def of(cls, features: Float[Tensor, "n width"]) -> "FeatureProof":
        """What a file carries of these features."""
        shown = tuple(tuple(float(f"{x:.9g}") for x in row[:SHOWN].tolist()) for row in features)
        return cls(shown, _hash(features), features.square().mean().sqrt().item())

    def to_metadata(self) -> dict[str, str]:
        """The entries of a file."""
        return {
            "proof_features": json.dumps(self.shown),
            "proof_fingerprint": self.fingerprint,
            "proof_scale": f"{self.scale:.9g}",
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "FeatureProof | None":
        """Read the entries of a file; None: it carries no features."""
        if "proof_features" not in metadata:
            return None
        shown = tuple(tuple(map(float, row)) for row in json.loads(metadata["proof_features"]))
        return cls(shown, metadata["proof_fingerprint"], float(metadata["proof_scale"]))

    def compare(self, features: Float[Tensor, "n width"]) -> Agreement:
        """How other features of the same images compare with these.

        Raises:
            UserError: they have another shape.
        """
        try:
            difference = (features[:, :SHOWN] - torch.tensor(self.shown)).abs().max().item()
        except (RuntimeError, ValueError) as problem:
            raise UserError("the features in the metadata make no sense", do="export the weights again") from problem
        return Agreement(_hash(features) == self.fingerprint, difference / max(self.scale, 1e-12))


def _hash(features: Tensor) -> str:
    raw = features.detach().cpu().contiguous().view(torch.uint8).numpy().data
    return hashlib.blake2b(raw, digest_size=8).hexdigest()
