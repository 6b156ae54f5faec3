"""What doing nothing gives: raw pixels, and a backbone that was never trained."""

import torch
from torch import Tensor, nn

from iecl.backbones.making import make_backbone
from iecl.data.loader import in_order
from iecl.data.opening import open_source
from iecl.data.resolve import resolve_data
from iecl.data.settings import DataSettings
from iecl.evaluation.features import Features, extract
from iecl.evaluation.knn import knn
from iecl.views.making import make_plain
from iecl.views.policies import plain_share

STATISTICS_BATCHES = 8


def knn_of_pixels(data: str) -> float:
    """Accuracy by kNN of the pixels themselves, as mean-free vectors."""
    settings = resolve_data(DataSettings(name=data))
    train, test = (_pixels(settings, split) for split in ("train-part", "test"))
    mean = train.values.mean(0)
    return knn(
        Features(train.values - mean, train.labels, train.index), Features(test.values - mean, test.labels, test.index)
    ).top1


def knn_of_random(data: str, backbone: str, seed: int = 0) -> float:
    """Accuracy by kNN of a freshly initialised backbone whose batch norms have seen a few batches."""
    settings = resolve_data(DataSettings(name=data))
    train, test = (open_source(settings, split) for split in ("train-part", "test"))
    model = make_backbone(backbone, seed)
    share = plain_share(settings.image_size)
    _estimate_statistics(model, settings)
    bank, queries = (
        extract(
            model,
            source,
            image_size=settings.image_size,
            mean=settings.mean,
            std=settings.std,
            device=torch.device("cpu"),
            share=share,
        )
        for source in (train, test)
    )
    return knn(bank, queries).top1


@torch.no_grad()
def _estimate_statistics(model: nn.Module, settings: DataSettings) -> None:
    """Without this the running statistics of an untrained batch norm are those of no data at all."""
    model.train()
    for number, batch in enumerate(in_order(open_source(settings, "train-part"), 256)):
        if number == STATISTICS_BATCHES:
            break
        model(_plain(batch.images, batch.sizes, settings))


def _pixels(settings: DataSettings, split: str) -> Features:
    rows = [
        (_plain(b.images, b.sizes, settings).flatten(1), b.labels, b.index)
        for b in in_order(open_source(settings, split), 256)
    ]
    values, labels, index = (torch.cat(part) for part in zip(*rows, strict=True))
    return Features(values, labels, index)


def _plain(images: Tensor, sizes: Tensor, settings: DataSettings) -> Tensor:
    share = plain_share(settings.image_size)
    return make_plain(images, sizes, settings.image_size, settings.mean, settings.std, share)
