"""Pictures of a page that stand by themselves, in one set of sheets: each is known by its number."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from iecl.data.source import Numbers
from iecl.reporting.sample import Sampled, pixels_of
from iecl.reporting.sheets import Tiles, sheets

SIDE = 96
QUALITY = 88


class Gallery:
    """Collects pictures and hands out their numbers."""

    def __init__(self) -> None:
        self._parts: list[Tiles] = []
        self._known: dict[str, int] = {}
        self._count = 0

    def add(self, sample: Sampled, rows: Numbers) -> list[int]:
        """Images of a sample, each once however often it is asked for."""
        fresh = [row for row in dict.fromkeys(rows.tolist()) if sample.paths[row] not in self._known]
        if fresh:
            first = self._keep(sample.tiles(np.array(fresh), SIDE))
            self._known |= {sample.paths[row]: first + number for number, row in enumerate(fresh)}
        return [self._known[sample.paths[row]] for row in rows.tolist()]

    def add_images(self, images: Float[Tensor, "n c h w"]) -> list[int]:
        """Images on the scale 0 to 1; small ones are enlarged pixel by pixel."""
        shorter = min(images.shape[2:])
        if shorter < SIDE:
            large = torch.nn.functional.interpolate(images, scale_factor=-(-SIDE // shorter), mode="nearest")
        else:
            large = images
        made = interpolate(large, (SIDE, SIDE), mode="bilinear", antialias=True)
        first = self._keep(pixels_of(made))
        return list(range(first, self._count))

    def _keep(self, tiles: Tiles) -> int:
        first = self._count
        self._parts.append(tiles)
        self._count += len(tiles)
        return first

    def packed(self) -> dict[str, Any]:
        """All of them as sheets."""
        tiles = np.concatenate(self._parts) if self._parts else np.zeros((0, SIDE, SIDE, 3), np.uint8)
        return sheets(tiles, QUALITY)
