"""What crosses from the data to the views: `Pixels` as a source reads them, `Batch` as training sees them."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from iecl.transfer import send


@dataclass(frozen=True)
class Pixels:
    """What a source gives for a list of indices; bad files are reported, not raised."""

    images: UInt8[Tensor, "n 3 height width"]
    sizes: Int64[Tensor, "n 2"]
    """Height and width of each original: pixels are squeezed to a square, and a crop's aspect is drawn from these."""
    bad: tuple[tuple[int, str], ...] = ()
    """(row, reason) of the rows that could not be read; their pixels are zero."""


@dataclass(frozen=True)
class Batch:
    """Images of one step on one process."""

    images: UInt8[Tensor, "n 3 height width"]
    sizes: Int64[Tensor, "n 2"]
    labels: Int64[Tensor, " n"]
    """Class numbers, or -1 where there is none."""
    index: Int64[Tensor, " n"]
    """Which sample of the source each row is."""
    positions: Int64[Tensor, " n"]
    """Where in the epoch each row stands, over all processes: what every random draw is keyed by."""

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return replace(self, **{name: send(value, device) for name, value in vars(self).items()})
