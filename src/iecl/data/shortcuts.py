"""Shortcuts planted into images: a few bits that all views of an image share and that say nothing of what it shows.

A contrastive loss can match views by such bits alone and learn nothing else (Chen et al. 2021). Each image gets bits of
its own, drawn by its place in the list and not by its label: planted data measure what a method does about them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from iecl import counter
from iecl.errors import UserError, did_you_mean

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


PATTERNS: dict[str, Callable[[Tensor, int], Pattern]] = {
    "stripes": _stripes,
    "tint": _tint,
    "frame": _frame,
    "watermark": _watermark,
}
"""Of six bits and a side: what is added at full strength, in units of half the range of a pixel."""
BITS = 6


@dataclass(frozen=True)
class Shortcut:
    """Which pattern, how strong, and how many of its six bits differ between images."""

    kind: str
    strength: float
    bits: int = BITS

    def plant(self, images: UInt8[Tensor, "n 3 h h"], index: Tensor, part: str) -> UInt8[Tensor, "n 3 h h"]:
        """The images at these places of a part, each with its own bits; bits that do not differ are 0."""
        drawn = counter.uniform(counter.key(0, f"shortcut/{part}"), index, BITS) < 0.5
        drawn[:, self.bits :] = False
        pattern = PATTERNS[self.kind](drawn, images.shape[-1])
        return (images + 127.5 * self.strength * pattern).round().clamp(0, 255).byte()


def parse_shortcut(text: str) -> Shortcut:
    """What `KIND=STRENGTH` or `KIND=STRENGTH,BITS` says.

    >>> parse_shortcut("stripes=0.25"), parse_shortcut("tint=0.5,2")
    (Shortcut(kind='stripes', strength=0.25, bits=6), Shortcut(kind='tint', strength=0.5, bits=2))
    """
    kind, _, values = text.partition("=")
    strength, _, bits = values.partition(",")
    if kind not in PATTERNS:
        raise UserError(f"there is no shortcut {kind!r}", where="--plant", do=did_you_mean(kind, PATTERNS))
    try:
        found = Shortcut(kind, float(strength), int(bits or BITS))
    except ValueError:
        found = Shortcut(kind, -1.0)
    if not 0 <= found.strength <= 1 or not 0 <= found.bits <= BITS:
        raise UserError(
            f"{text!r} is no strength between 0 and 1, or no number of bits up to {BITS}",
            where="--plant",
            do=f"write {kind}=0.25 or {kind}=0.25,3",
        )
    return found
