"""Train on a Hugging Face dataset: one that a program holds, or one that was saved to a folder.

    pip install 'iecl[datasets]'
    python examples/from_hugging_face.py

A saved one has a name, so that the command takes it too, also for a run that was stopped:

    iecl pretrain --data saved/ --out runs/saved
    iecl pretrain --out runs/saved --resume
"""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

import iecl

SMALL: dict[str, Any] = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 32, "seed": 0}
COLORS = ["red", "green", "blue"]


def make_dataset() -> datasets.Dataset:
    """Rows with a column `image` and a column `label`, as `datasets.load_dataset` gives them."""
    images = []
    for number in range(96):
        image = np.random.default_rng(number).integers(0, 120, (24, 24, 3), dtype=np.uint8)
        image[..., number % 3] += 130
        images.append(Image.fromarray(image))
    columns = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=COLORS)})
    return datasets.Dataset.from_dict({"image": images, "label": [i % 3 for i in range(96)]}, features=columns)


def train(data: datasets.Dataset | Path, out: str = "runs/rows", **how: Any) -> iecl.Run:
    """A short run on rows, or on the folder that they were saved to."""
    return iecl.pretrain(data, out, **(SMALL | how))


if __name__ == "__main__":
    rows = make_dataset()
    train(rows, overwrite=True)
    rows.save_to_disk("runs/rows-saved")
    run = train(Path("runs/rows-saved"), "runs/saved", overwrite=True)
    print(f"kNN {100 * run.evaluate('knn')['top1']:.0f} %")
