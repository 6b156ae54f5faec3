"""Train a network of your own: any `nn.Module` that maps images to rows of features.

    python examples/own_backbone.py

A function or class that can be imported has a name, with which a run is resumed and its weights are loaded anywhere:

    iecl pretrain --data shapes --backbone own_backbone:Patches --out runs/patches

A module (`backbone=module`) brings its weights, which the run starts from, and has to be given again to resume it.
"""

from typing import Any

from torch import Tensor, nn

import iecl

SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 64, "seed": 0, "augmentation": "crop"}


class Patches(nn.Module):
    """Patches of 4 pixels, mixed twice; 64 features."""

    num_features = 64  # without it, iecl sends an image through and looks

    def __init__(self) -> None:
        super().__init__()
        mix = [
            layer
            for _ in range(2)
            for layer in (nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        ]
        self.layers = nn.Sequential(nn.Conv2d(3, 64, 4, stride=4), nn.ReLU(), *mix)

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image."""
        return self.layers(images).mean(dim=(2, 3))


def train(out: str = "runs/patches", data: Any = "shapes", **how: Any) -> iecl.Run:
    """A short run of a new network; `backbone="own_backbone:Patches"` is the same."""
    return iecl.pretrain(data, out, backbone=Patches, **(SMALL | how))


if __name__ == "__main__":
    run = train(overwrite=True, sets=["training.online_eval_epochs=0"])
    trained = run.backbone
    again = iecl.pretrain("shapes", "runs/patches-on", backbone=trained, overwrite=True, **SMALL)  # from its weights
    print(f"kNN {100 * again.evaluate('knn')['top1']:.0f} %")
