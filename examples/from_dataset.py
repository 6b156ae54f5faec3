"""Train on a dataset of your own: anything with `__len__` and `__getitem__`, as torch's and Hugging Face's have.

    python examples/from_dataset.py

An item is an image (PIL, array or tensor, before normalization), or a pair or table that begins with one. Leave random
transforms out: iecl draws the views. Labels are optional, and only measured with: an attribute `targets`, or
`data=(dataset, labels)`.
"""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

import iecl

SMALL: dict[str, Any] = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 32, "seed": 0}


class Stripes(Dataset):
    """Stripes that lie or stand, of any thickness and color, with some noise."""

    classes = ("lying", "standing")

    def __init__(self, count: int = 96, side: int = 24) -> None:
        self.count, self.side = count, side
        self.targets = [number % 2 for number in range(count)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        draw = np.random.default_rng(number)  # the same image for the same number, in every process
        wave = np.sin(np.arange(self.side) * draw.uniform(0.5, 2.0) + draw.uniform(0, 6)) > 0
        stripes = np.broadcast_to(wave, (self.side, self.side))
        stripes = stripes if self.targets[number] else stripes.T
        color = draw.integers(60, 200, 3)
        image = stripes[..., None] * color + draw.integers(0, 50, (self.side, self.side, 3))
        return image.astype(np.uint8), self.targets[number]


def train(out: str = "runs/stripes", **how: Any) -> iecl.Run:
    """A short run; with `resume=True` one that was stopped goes on, given the same dataset."""
    return iecl.pretrain(Stripes(), out, **(SMALL | how))


if __name__ == "__main__":
    run = train(overwrite=True)
    found = run.embed()  # the run knows its dataset
    print(f"features of {found['features'].shape[0]} images, kNN {100 * run.evaluate('knn')['top1']:.0f} %")
