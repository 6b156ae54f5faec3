"""Shortcuts that can be planted into images, by name. What they look like: `planted_source.py`. Free of torch."""

from dataclasses import dataclass

from iecl.errors import UserError, did_you_mean

KINDS = ("stripes", "tint", "background", "frame", "watermark")
BITS = 6


@dataclass(frozen=True)
class Shortcut:
    """Which pattern, how strong, and how many of its six bits differ between images."""

    kind: str
    strength: float
    bits: int = BITS


def parse_shortcut(text: str) -> Shortcut:
    """What `KIND=STRENGTH` or `KIND=STRENGTH,BITS` says.

    >>> parse_shortcut("stripes=0.25"), parse_shortcut("tint=0.5,2")
    (Shortcut(kind='stripes', strength=0.25, bits=6), Shortcut(kind='tint', strength=0.5, bits=2))
    """
    kind, _, values = text.partition("=")
    strength, _, bits = values.partition(",")
    if kind not in KINDS:
        raise UserError(f"there is no shortcut {kind!r}", where="data.plant", do=did_you_mean(kind, KINDS))
    try:
        found = Shortcut(kind, float(strength), int(bits or BITS))
    except ValueError:
        found = Shortcut(kind, -1.0)
    if not 0 <= found.strength <= 1 or not 0 <= found.bits <= BITS:
        raise UserError(
            f"{text!r} is no strength between 0 and 1, or no number of bits up to {BITS}",
            where="data.plant",
            do=f"write {kind}=0.25 or {kind}=0.25,3",
        )
    return found
