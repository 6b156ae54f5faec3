"""Tiny image files for the tests of this folder."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from iecl.data.settings import DataSettings
from iecl.data.source import ArraySource


def save_solid(path: Path, color: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (8, 8)) -> Path:
    """An image of one color; `size` is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def save_numbered(folder: Path, count: int, bad: tuple[int, ...] = ()) -> Path:
    """Images 000.png, 001.png, ... whose red value is their number; the bad ones hold text."""
    for i in range(count):
        path = save_solid(folder / f"{i:03d}.png", (i, 0, 0))
        if i in bad:
            path.write_text("no image")
    return folder


def smooth(height: int, width: int) -> np.ndarray:
    """A colorful image without sharp edges, which survives lossy formats: uint8 (height, width, 3)."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return np.rint(255 * np.stack([x, y, (x + y) / 2], axis=2)).astype(np.uint8)


def open_tiny(settings: DataSettings, split: str) -> ArraySource:
    """A named dataset of two black images."""
    images = torch.zeros(2, 3, settings.decode_size, settings.decode_size, dtype=torch.uint8)
    return ArraySource(f"{settings.name} {split}", images)
