"""Tiny images, and the settings of runs on them."""

from pathlib import Path

import numpy as np
from PIL import Image

TINY = [
    "data.image_size=16",
    "training.loggers=[]",
    "training.log_steps=1",
    "training.meter_steps=2",
    "data.num_workers=0",
    "training.outcome=false",
]
TINY += ["training.precision=32-true"]  # where runs are equal bit for bit
"""Settings that make any run take seconds."""


def make_images(folder: Path) -> Path:
    """Forty images of 16×16 in two class folders: reddish and bluish noise."""
    noise = np.random.default_rng(0)
    for number in range(40):
        name, channel = (("red", 0), ("blue", 2))[number % 2]
        pixels = noise.integers(0, 120, (16, 16, 3), dtype=np.uint8)
        pixels[..., channel] += 130
        own = folder / "images" / name
        own.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(own / f"{number:02d}.png")
    return folder / "images"
