"""What a file of weights says of its backbone: text in the file, one type in the program."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Any

from iecl.errors import UserError
from iecl.weights.proof import FeatureProof
from iecl.weights.snippet import loading_snippet

UNKNOWN = "not known"
MOST_CHANNELS = 64
LARGEST_SIDE = 4096
"""Pixels on a side of a view that a file may ask for: a damaged one may ask for any."""


@dataclass(frozen=True, kw_only=True)
class BackboneInfo:
    """All that is needed to use a backbone, and where it comes from; each field is an entry of the file."""

    backbone: str
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    width: int | None = None
    stem: str = ""
    method: str = UNKNOWN
    step: int | None = None
    epoch: int | None = None
    recipe: str = ""
    source: str = ""
    """The proof of the weights that an export was made from."""
    iecl: str = version("iecl")
    """The version that wrote it first."""
    format: str = ""
    """This and the digest are those of the file that was read: `save_weights` writes its own."""
    digest: str = ""
    feature_proof: FeatureProof | None = None

    @property
    def channels(self) -> int:
        """Of an image."""
        return len(self.mean)

    def to_metadata(self, file: str = "") -> dict[str, str]:
        """The entries of a file, with the lines of Python that load it if it has a name."""
        entries = {name: getattr(self, name) for name in _ENTRIES if name not in ("format", "digest")}
        entries |= {"mean": json.dumps(self.mean), "std": json.dumps(self.std)}
        entries |= {"loading": loading_snippet(self.backbone, file, mean=self.mean)} if file else {}
        entries |= self.feature_proof.to_metadata() if self.feature_proof else {}
        return {name: str(value) for name, value in entries.items() if value not in ("", None)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], where: str) -> "BackboneInfo":
        """Read the entries of a file.

        Raises:
            UserError: an entry that is needed is missing, or one makes no sense.
        """
        try:
            given = [name for name in _ENTRIES if name in metadata or name in _NEEDED]
            values = {name: _PARSERS.get(name, str)(metadata[name]) for name in given}
            found = cls(**values, feature_proof=FeatureProof.from_metadata(metadata))
        except (LookupError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            raise UserError(f"the metadata of {where} are not complete: {problem}", where=where) from problem
        size, mean, std = found.image_size, found.mean, found.std
        is_usual = 1 <= len(mean) == len(std) <= MOST_CHANNELS and all(map(math.isfinite, mean + std)) and min(std) > 0
        if not is_usual or not 1 <= size <= LARGEST_SIDE:
            raise UserError(
                f"the metadata of {where} make no sense: image_size {size}, mean {mean}, std {std}", where=where
            )
        return found


def _floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, json.loads(text)))


_ENTRIES = [field.name for field in fields(BackboneInfo) if field.name != "feature_proof"]
_NEEDED = ("backbone", "image_size", "mean", "std")
_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("image_size", "width", "step", "epoch"), int),
    **dict.fromkeys(("mean", "std"), _floats),
}
