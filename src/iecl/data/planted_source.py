"""Images with a shortcut planted: a few bits that all views of an image share and that say nothing of what it shows.

A contrastive loss can match views by such bits alone and learn nothing else (Chen et al. 2021). Each image gets bits of
its own, drawn by its name and not by its label: planted data measure what a method does about them.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from iecl import counter
from iecl.data.batch import Pixels
from iecl.data.shortcuts import BITS, Shortcut
from iecl.data.source import Numbers, Source, expect, name_in

Pattern = Float[Tensor, "n 3 h w"]


def _stripes(bits: Bool[Tensor, "n 6"], side: int) -> Pattern:
    """Horizontal and vertical stripes of period 4 in each color: small, everywhere, and no crop removes them."""
    wave = torch.where(torch.arange(side) % 4 < 2, 1.0, -1.0)
    both = torch.stack([wave[:, None].expand(side, side), wave[None, :].expand(side, side)])
    return torch.einsum("ncd,dhw->nchw", bits.reshape(-1, 3, 2).float(), both) / 2


def _tint(bits: Bool[Tensor, "n 6"], side: int) -> Pattern:
    """A cast of four steps in each color, as of a camera or a light: what color jitter was made against."""
    steps = bits.reshape(-1, 3, 2).float() @ torch.tensor([2.0, 1.0]) / 1.5 - 1
    return steps[:, :, None, None].expand(-1, -1, side, side)


def _frame(bits: Bool[Tensor, "n 6"], side: int) -> Pattern:
    """A border whose four sides differ, as of a scanner: crops cut some of it off."""
    width = max(1, side // 16)
    planes = torch.zeros(len(bits), 3, side, side)
    signs = bits.float() * 2 - 1
    planes[:, :, :width] = signs[:, 0, None, None, None]
    planes[:, :, -width:] = signs[:, 1, None, None, None]
    planes[:, :, :, :width] = signs[:, 2, None, None, None]
    planes[:, :, :, -width:] = signs[:, 3, None, None, None]
    color = torch.stack([torch.ones(len(bits)), signs[:, 4], signs[:, 5]], 1)
    return planes * color[:, :, None, None]


def _watermark(bits: Bool[Tensor, "n 6"], side: int) -> Pattern:
    """A code of 2×3 squares, repeated over the whole image."""
    cell = max(1, side // 16)
    code = (bits.float() * 2 - 1).reshape(-1, 1, 2, 3).repeat_interleave(cell, 2).repeat_interleave(cell, 3)
    times = (-(-side // (2 * cell)), -(-side // (3 * cell)))
    return code.tile(1, 3, *times)[:, :, :side, :side]


def _background(bits: Bool[Tensor, "n 6"], side: int) -> Pattern:
    """The cast of `tint`, none in the middle and all of it at the edge: a colored background behind a thing."""
    place = torch.linspace(-1, 1, side).abs()
    return _tint(bits, side) * torch.maximum(place[:, None], place[None, :])


PATTERNS: dict[str, Callable[[Tensor, int], Pattern]] = {
    "stripes": _stripes,
    "tint": _tint,
    "background": _background,
    "frame": _frame,
    "watermark": _watermark,
}
"""Of six bits and a side: what is added at full strength, in units of half the range of a pixel."""


def plant(shortcut: Shortcut, images: UInt8[Tensor, "n 3 h h"], names: Tensor) -> UInt8[Tensor, "n 3 h h"]:
    """The images, each with bits that the number of its name decides; bits that do not differ are 0."""
    drawn = counter.uniform(counter.key(0, "shortcut"), names, BITS) < 0.5
    drawn[:, shortcut.bits :] = False
    pattern = PATTERNS[shortcut.kind](drawn, images.shape[-1])
    return (images + 127.5 * shortcut.strength * pattern).round().clamp(0, 255).byte()


class PlantedSource:
    """The images of a source with a shortcut in each, the same one wherever and however often it is read."""

    def __init__(self, whole: Source, shortcut: Shortcut) -> None:
        self.whole, self.shortcut = whole, shortcut
        self.name, self.classes, self.labels = whole.name, whole.classes, whole.labels
        self.is_decoded, self.bounds = whole.is_decoded, getattr(whole, "bounds", None)
        keys = (counter.key(0, name_in(whole, i)) for i in range(len(whole)))
        self.names: Numbers = np.fromiter(keys, np.int64, len(whole))

    def __len__(self) -> int:
        return len(self.whole)

    def read(self, index: Numbers) -> Pixels:
        """The images with these numbers; bad ones are reported, not raised."""
        pixels = self.whole.read(index)
        return replace(pixels, images=plant(self.shortcut, pixels.images, torch.from_numpy(self.names[index])))

    def expect(self, index: Numbers) -> None:
        """These will be read soon."""
        expect(self.whole, index)

    def path(self, index: int) -> str:
        """Where an image comes from, in printable letters."""
        return self.whole.path(index)
