"""Online kNN: how well training images find others of their class, each image left out of its own vote.

It never touches a test set, so that looking at it, or choosing a checkpoint by it, spoils no later number.
"""

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice

import torch
from torch import Tensor, nn

from iecl import counter
from iecl.data.source import Source
from iecl.meters.embedding import neighbour_accuracy
from iecl.training.plan import Plan
from iecl.views.making import make_plain
from iecl.views.policies import plain_share

MOST_IMAGES = 2048
NEIGHBOURS = 20
STATISTICS_BATCHES = 2


class OnlineNeighbours:
    """A fixed sample of labelled training images and their kNN accuracy under the encoder of the moment."""

    def __init__(self, source: Source, plan: Plan, device: torch.device) -> None:
        labelled = torch.from_numpy(source.labels >= 0).nonzero().squeeze(1)
        order = counter.permutation(counter.key(plan.training.seed, "online neighbours"), len(labelled))
        self.index = labelled[order[:MOST_IMAGES]]
        self.source, self.data, self.device = source, plan.data, device
        self.share = plain_share(plan.data.image_size)
        self.is_possible = len(self.index) > NEIGHBOURS and len(source.classes) > 1

    @torch.no_grad()
    def accuracy(self, encoder: nn.Module) -> float:
        """Share of the sample whose neighbours vote for their class."""
        was_training = encoder.training
        encoder.eval()
        parts = [(encoder(x).float().cpu(), labels) for x, labels in self._pictures()]
        encoder.train(was_training)
        features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        return neighbour_accuracy(features, labels, k=min(NEIGHBOURS, len(features) - 1)).item()

    @torch.no_grad()
    def untrained(self, encoder: nn.Module) -> float:
        """What the encoder reaches before its first step, once its batch norms have seen some pictures.

        A run that ends below it has unlearnt. The encoder itself is left as it is.
        """
        copy = deepcopy(encoder).train()
        for x, _ in islice(self._pictures(), STATISTICS_BATCHES):
            copy(x)
        return self.accuracy(copy)

    def _pictures(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Plain views of the sample and their labels, batch by batch."""
        for index in torch.split(self.index, 256):
            pixels = self.source.read(index.numpy())
            good = torch.ones(len(index), dtype=torch.bool)
            good[[row for row, _ in pixels.bad]] = False
            images, sizes = pixels.images[good].to(self.device), pixels.sizes[good].to(self.device)
            x = make_plain(images, sizes, self.data.image_size, self.data.mean, self.data.std, self.share)
            yield x, torch.from_numpy(self.source.labels)[index][good]
