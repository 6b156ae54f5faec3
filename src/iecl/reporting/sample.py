"""Some images of a run and their features, in the order of their names; more than asked for are sampled."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from iecl import counter
from iecl.console import counted
from iecl.data.defaults import has_test
from iecl.data.source import ChosenSource, Numbers, Source
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.reporting.sheets import Tiles
from iecl.views.pipeline import make_plain
from iecl.weights.model import LoadedModel

READ_AT_ONCE = 64


@dataclass(frozen=True)
class Sampled:
    """One row for each readable image of the sample."""

    model: LoadedModel
    sources: tuple[Source, ...]
    """One for each split."""
    splits: tuple[str, ...]
    features: Float[Tensor, "n width"]
    labels: Numbers
    """Class numbers, or -1."""
    split: Numbers
    """Which of `splits` each image is of."""
    index: Numbers
    """Its number in the source of its split."""
    paths: list[str]
    total: int
    """Images that there are."""
    classes: tuple[str, ...]
    skipped: int
    side: int
    """Of the squares that images are read as: people see more of them than a network that takes less."""

    def __len__(self) -> int:
        return len(self.paths)

    def tiles(self, rows: Numbers, side: int) -> Tiles:
        """Small squares of the middle of images, in colors or in the gray of all channels."""
        made = np.zeros((len(rows), side, side, 3), np.uint8)
        for number in range(len(self.splits)):
            places = np.flatnonzero(self.split[rows] == number)
            for start in range(0, len(places), READ_AT_ONCE):
                some = places[start : start + READ_AT_ONCE]
                pixels = self.sources[number].read(self.index[rows[some]])
                made[some] = self._small(pixels.images, pixels.sizes, side)
        return made

    def _small(self, images: Tensor, sizes: Tensor, side: int) -> Tiles:
        channels = images.shape[1]
        large = max(side, self.model.image_size)
        plain = make_plain(images, sizes, large, [0.0] * channels, [1.0] * channels, 1.0)
        return pixels_of(interpolate(plain.float(), (side, side), mode="bilinear", antialias=True))


def pixels_of(images: Float[Tensor, "n c h w"]) -> Tiles:
    """Images on the scale 0 to 1 as bytes; what is not red, green and blue is shown as the gray of all channels."""
    shown = images if images.shape[1] == 3 else images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return (shown.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def take_sample(context: EvaluationContext, images: int) -> Sampled:
    """Look at so many images, of each split as many as its share, or at all."""
    splits = {"train": "pretrain", "test": "test"} if has_test(context.data) else {"all": "pretrain"}
    sources = [context.open(split) for split in splits.values()]
    total = sum(len(source) for source in sources)
    share = min(1.0, images / max(1, total))
    parts = []
    for name, source in zip(splits, sources, strict=True):
        count = max(1, round(share * len(source)))
        order = counter.permutation(counter.key(0, "report/images"), len(source))[:count].sort().values.numpy()
        found = context.features(ChosenSource(source, order), name)
        parts.append((found, order[found.index.numpy()], [source.path(int(order[i])) for i in found.index.tolist()]))
    paths = [path for _, _, own in parts for path in own]
    by_name = np.array(sorted(range(len(paths)), key=paths.__getitem__), np.int64)
    if len(by_name) < 2:
        raise UserError(f"{counted(len(by_name), 'image')} can be read, a page of pictures takes two", where="--data")
    features = torch.cat([found.values for found, _, _ in parts])
    if not features.isfinite().all():
        raise UserError("features are not finite: the training diverged", where="weights")
    labels = np.concatenate([found.labels.numpy() for found, _, _ in parts])
    split = np.concatenate([np.full(len(index), number) for number, (_, index, _) in enumerate(parts)])
    return Sampled(
        model=context.model,
        sources=tuple(sources),
        splits=tuple(splits),
        features=features[torch.from_numpy(by_name)],
        labels=labels[by_name],
        split=split[by_name],
        index=np.concatenate([index for _, index, _ in parts])[by_name],
        paths=[paths[i] for i in by_name],
        total=total,
        classes=sources[0].classes,
        skipped=len(context.skipped),
        side=max(context.data.image_size, context.data.decode_size),
    )
