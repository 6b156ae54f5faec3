"""Online evaluation on a fixed sample of training images: scores without labels, and kNN where there are some.

It never touches a test set, so that looking at it, or choosing a checkpoint by it, spoils no later number.
"""

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from iecl import counter
from iecl.data.source import Source
from iecl.data.stream_order import some_of
from iecl.meters.embedding import neighbor_accuracy
from iecl.meters.label_free import SCORES
from iecl.parts.other_norm import alone
from iecl.training.config import RunConfig
from iecl.transfer import send
from iecl.views.pipeline import make_plain
from iecl.views.policies import plain_share

MOST_IMAGES, LEAST_IMAGES = 2048, 8
NEIGHBORS = 20
STATISTICS_BATCHES = 2


class FixedSample:
    """Some training images, those with labels if there are any, and what the encoder of the moment makes of them."""

    def __init__(self, source: Source, config: RunConfig, device: torch.device) -> None:
        labels, key = source.labels, counter.key(config.training.seed, "online neighbours")
        count = int((labels >= 0).sum())
        self.has_classes = count > NEIGHBORS and len(source.classes) > 1
        if self.has_classes and count < len(source):
            labeled = np.flatnonzero(labels >= 0)
            index = labeled[counter.permutation(key, count).numpy()[:MOST_IMAGES]]
        else:
            index = some_of(source, key, MOST_IMAGES)
        self.index = torch.from_numpy(index)
        self.source, self.data, self.device = source, config.data, device
        self.share = plain_share(config.data.image_size)
        self.is_possible = len(self.index) >= LEAST_IMAGES

    def is_one_image(self) -> bool:
        """Whether all images of the sample have the same pixels; mostly two of them tell that they do not."""
        first = self.source.read(self.index[:1].numpy()).images
        return all((self.source.read(part.numpy()).images == first).all() for part in torch.split(self.index, 8))

    @torch.no_grad()
    def look(self, encoder: nn.Module) -> dict[str, float]:
        """Scores of the features; with classes also the share whose neighbors vote for theirs, each left out of it."""
        was_training = encoder.training
        encoder.eval()
        parts = [(encoder(x).float().cpu(), labels) for x, labels in self._images()]
        encoder.train(was_training)
        features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        found = {f"score/{name}": score(features).item() for name, score in SCORES.items()}
        if self.has_classes:
            found["knn"] = neighbor_accuracy(features, labels, k=min(NEIGHBORS, len(features) - 1)).item()
        return found

    @torch.no_grad()
    def look_at_untrained(self, encoder: nn.Module) -> dict[str, float]:
        """What the encoder reaches before its first step, once its batch norms have seen some images.

        A run that ends below it has unlearnt. The encoder itself is left as it is.
        """
        copy = deepcopy(encoder).train()
        with alone(copy):
            for x, _ in islice(self._images(), STATISTICS_BATCHES):
                copy(x)
        return self.look(copy)

    def _images(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Plain views of the sample and their labels, batch by batch."""
        for index in torch.split(self.index, 256):
            pixels = self.source.read(index.numpy())
            good = torch.ones(len(index), dtype=torch.bool)
            good[[row for row, _ in pixels.bad]] = False
            images, sizes = send(pixels.images[good], self.device), pixels.sizes[good]
            x = make_plain(images, sizes, self.data.image_size, self.data.mean, self.data.std, self.share)
            yield x, self.labels(index)[good]

    def labels(self, index: Tensor) -> Tensor:
        """The classes of some images of the source."""
        return torch.from_numpy(self.source.labels[index.numpy()])
