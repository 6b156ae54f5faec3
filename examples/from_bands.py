"""Train on images of five channels, as microscopes, satellites and sensors make them: NPY arrays or TIFF with pages.

    python examples/from_bands.py

The same on the command line, also for a run that was stopped:

    iecl pretrain --data bands/ --set data.channels=5 --out runs/bands
    iecl pretrain --out runs/bands --resume
"""

from pathlib import Path
from typing import Any

import numpy as np

import iecl

CHANNELS = 5
SMALL: dict[str, Any] = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 32, "seed": 0}


def make_bands(folder: Path) -> Path:
    """Arrays of (height, width, channels), in a folder for each class: where the bright channel is."""
    for number in range(96):
        draw = np.random.default_rng(number)
        image = draw.integers(0, 120, (24, 24, CHANNELS), dtype=np.uint8)
        image[..., number % CHANNELS] += 130
        place = folder / f"band-{number % CHANNELS}"
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number:03d}.npy", image)
    return folder


def train(folder: Path, out: str = "runs/bands", **how: Any) -> iecl.Run:
    """A short run; views of such images are crops, mirror images and blur."""
    return iecl.pretrain(folder, out, settings={"data": {"channels": CHANNELS}}, **(SMALL | how))


if __name__ == "__main__":
    run = train(make_bands(Path("runs/bands-images")), overwrite=True)
    print(f"kNN {100 * run.evaluate('knn')['top1']:.0f} %")
