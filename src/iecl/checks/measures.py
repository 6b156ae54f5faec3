"""What is measured of one image: numbers that the checks judge, and a small gray version for comparisons."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from PIL import Image

from iecl.data.decoder import Examined

SIDE = 48
"""About the least side at which an image is looked at; JPEG decoders give no less than one and a half times this."""
THUMB = 32
"""Side of the small gray version."""
_REACH = 9
"""Pixels over which a blurred copy is averaged."""
_STANDARD = 3679.0
"""Sum of the luminance table that JPEG's own document prints, which is called quality 50."""
RECORD = np.dtype(
    [
        ("height", "<u4"),
        ("width", "<u4"),
        ("bytes", "<u8"),
        ("digest", "<u8"),  # of the gray pixels looked at: equal for equal images
        ("format", "S4"),
        ("mode", "S8"),
        ("is_deep", "?"),
        ("is_animated", "?"),
        ("quality", "<f4"),  # of a JPEG, 1 to 100; 0: no JPEG
        ("red", "<f4"),  # means, 0 to 1
        ("green", "<f4"),
        ("blue", "<f4"),
        ("color", "<f4"),  # mean distance of the largest from the smallest channel, 0 to 1
        ("low", "<f4"),  # luminance that 5 % of the pixels lie below, 0 to 1
        ("high", "<f4"),  # luminance that 99 % of the pixels lie below
        ("contrast", "<f4"),  # standard deviation of luminance
        ("span", "<f4"),  # from the darkest to the brightest pixel of the small version, 0 to 1
        ("blur", "<f4"),  # 0 sharp to 1: share of the steps between pixels that one more blur would leave
        ("border", "<f4"),  # mean luminance of the outer ring minus that of the rest
    ]
)
Gray = npt.NDArray[np.uint8]


def measure(found: Examined) -> tuple[tuple[object, ...], Gray]:
    """One row of `RECORD`, and the gray thumbnail of 32 pixels, whatever the aspect was."""
    planes = found.planes[:3] if len(found.planes) >= 3 else found.planes[[0, 0, 0]]
    red, green, blue = (np.ascontiguousarray(plane, np.uint16) for plane in planes)
    luma = ((77 * red + 150 * green + 29 * blue + 128) >> 8).astype(np.uint8)
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    thumb = np.asarray(Image.fromarray(luma).resize((THUMB, THUMB), Image.Resampling.BOX))
    levels = np.bincount(luma.ravel(), minlength=256).cumsum() / luma.size
    means = [float(plane.mean()) / 255 for plane in (red, green, blue)]
    digest = blake2b(luma.tobytes() + repr((found.size, means)).encode(), digest_size=8).digest()
    row = (
        *found.size,
        found.bytes,
        int.from_bytes(digest, "little"),
        found.format.encode()[:4],
        found.mode.encode()[:8],
        found.is_deep,
        found.is_animated,
        quality_of(found.tables),
        *means,
        float(spread.mean()) / 255,
        float(levels.searchsorted(0.05)) / 255,
        float(levels.searchsorted(0.99)) / 255,
        float(luma.std()) / 255,
        (int(thumb.max()) - int(thumb.min())) / 255,
        max(_blur(luma), _blur(luma.T)),
        _border(thumb),
    )
    return row, thumb


def quality_of(tables: dict[int, list[int]]) -> float:
    """What a JPEG encoder was asked for, on the usual scale of 1 to 100, by its table for luminance; 0: no table.

    >>> quality_of({0: [1] * 64}), quality_of({})
    (99.1, 0.0)
    """
    if 0 not in tables:
        return 0.0
    scale = 100 * sum(tables[0]) / _STANDARD
    return round(5000 / scale if scale > 100 else (200 - scale) / 2, 1)


def _blur(luma: Gray) -> float:
    """How much of the steps from pixel to pixel a further blur along the rows would keep.

    A sharp image loses most of them, a blurred one hardly any (Crete et al. 2007).
    """
    if luma.shape[1] < 2 * _REACH:
        return 0.0
    wide = luma.astype(np.int16)
    steps = np.abs(wide[:, 1:] - wide[:, :-1])
    # Neighbors in a running mean differ by the pixel that comes in less the one that leaves.
    left = np.abs(wide[:, _REACH:] - wide[:, :-_REACH])
    steps = steps[:, _REACH // 2 : _REACH // 2 + left.shape[1]]
    total = float(steps.sum(dtype=np.int64))
    lost = float(np.maximum(steps * np.float32(_REACH) - left, 0).sum(dtype=np.float64)) / _REACH
    return 1 - lost / total if total else 0.0


def _border(thumb: Gray) -> float:
    inside = thumb[2:-2, 2:-2]
    total, inner = float(thumb.sum()), float(inside.sum())
    return ((total - inner) / (thumb.size - inside.size) - inner / inside.size) / 255
