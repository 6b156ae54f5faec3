"""Train on the images that a table lists, with labels or without; and on patterns, paths and arrays.

    python examples/from_list.py

The same on the command line, also for a run that was stopped:

    iecl pretrain --data images.csv --out runs/list
    iecl pretrain --out runs/list --resume
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import iecl

SMALL: dict[str, Any] = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 32, "seed": 0}


def make_list(folder: Path) -> Path:
    """Some images, and a table with a column `path` and a column `label`; paths are relative to the table."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(96):
        draw = np.random.default_rng(number)
        image = draw.integers(0, 120, (24, 24, 3), dtype=np.uint8)
        label = ("red", "green", "blue")[number % 3]
        image[..., number % 3] += 130
        Image.fromarray(image).save(folder / f"{number:03d}.png")
        rows.append((f"{number:03d}.png", label))
    table = folder / "images.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return table


def train(table: Path, out: str = "runs/list", **how: Any) -> iecl.Run:
    """A short run on what the table lists."""
    return iecl.pretrain(table, out, **(SMALL | how))


if __name__ == "__main__":
    table = make_list(Path("runs/list-images"))
    run = train(table, overwrite=True)
    print(f"kNN {100 * run.evaluate('knn')['top1']:.0f} %")
    run.embed(out="runs/list.csv", overwrite=True)  # a row for each image, in the order of the table

    images = table.parent
    more = {"epochs": 1, "overwrite": True}
    iecl.pretrain(f"{images}/*.png", "runs/pattern", **(SMALL | more))
    iecl.pretrain(sorted(images.glob("*.png")), "runs/paths", **(SMALL | more))
    pixels = np.stack([np.asarray(Image.open(path)) for path in sorted(images.glob("*.png"))])
    iecl.pretrain((pixels, np.arange(96) % 3), "runs/arrays", **(SMALL | more))
