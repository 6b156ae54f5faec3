"""Images themselves in the place of features: what a trained backbone has to beat."""

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

SIDE = 32
"""Larger images are averaged down to this, so that a feature has at most 3,072 numbers."""


class RawPixels(nn.Module):
    """Pixels of an image as one row, less the mean of all images that it saw in training mode."""

    def __init__(self, image_size: int, channels: int = 3) -> None:
        super().__init__()
        self.side = min(image_size, SIDE)
        self.num_features = channels * self.side**2
        self.total: Tensor
        self.count: Tensor
        self.register_buffer("total", torch.zeros(self.num_features))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """One row for each image."""
        rows = adaptive_avg_pool2d(images.float(), self.side).flatten(1)
        if self.training:
            self.total += rows.sum(0)
            self.count += len(rows)
        return rows - self.total / self.count.clamp_min(1)
