"""Many small things in little room: thumbnails in sheets, numbers as bytes, names without what they share."""

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

PER_ROW, MOST_ROWS = 32, 32
"""Tiles of one sheet, which browsers draw as one image: 1,024 tiles."""
QUALITY = 82
BLOCK = 16
"""JPEG keeps color in blocks of so many pixels: a tile of whole blocks takes none from its neighbors."""
Tiles = npt.NDArray[np.uint8]


def sheets(tiles: Tiles, quality: int = QUALITY) -> dict[str, Any]:
    """Square tiles (n, side, side, 3) as JPEGs in base64; tile i is in sheet i // 1024, row by row."""
    side, per_sheet = tiles.shape[1], PER_ROW * MOST_ROWS
    made = []
    for start in range(0, len(tiles), per_sheet):
        some = tiles[start : start + per_sheet]
        columns, rows = min(PER_ROW, len(some)), -(-len(some) // PER_ROW)
        sheet = np.zeros((rows * side, columns * side, 3), np.uint8)
        for i, tile in enumerate(some):
            top, left = i // PER_ROW * side, i % PER_ROW * side
            sheet[top : top + side, left : left + side] = tile
        raw = io.BytesIO()
        Image.fromarray(sheet).save(raw, "JPEG", quality=quality, optimize=True)
        made.append(b64encode(raw.getvalue()).decode())
    return {"side": side, "per_row": PER_ROW, "per_sheet": per_sheet, "count": len(tiles), "sheets": made}


def tile_side(count: int, image_size: int) -> int:
    """How large thumbnails may be so that all of them fit into some megabytes; never larger than the image.

    >>> tile_side(100, 224), tile_side(3000, 224), tile_side(3000, 32), tile_side(10, 20)
    (96, 48, 32, 16)
    """
    most = 96 if count <= 600 else 64 if count <= 1500 else 48
    return max(BLOCK, min(most, image_size) // BLOCK * BLOCK)


def packed(values: npt.NDArray[Any]) -> str:
    """Numbers as little-endian bytes in base64."""
    return b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()


def front_coded(names: Sequence[str]) -> list[str]:
    """Each name without what it shares with the one before it; its first letter says how long that is.

    >>> front_coded(["cat/1.png", "cat/2.png"])
    ['0cat/1.png', '42.png']
    """
    found, before = [], ""
    for name in names:
        shared = 0
        for mine, other in zip(name, before, strict=False):
            if mine != other or shared == 2000:
                break
            shared += 1
        found.append(chr(ord("0") + shared) + name[shared:])
        before = name
    return found
