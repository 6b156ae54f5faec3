"""What doing nothing gives: raw pixels, and a backbone that was never trained."""

import torch

from iecl.console import ProgressLine
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.loader import in_order
from iecl.data.settings import DataSettings
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.features import Features
from iecl.evaluation.knn import knn
from iecl.views.pipeline import make_plain
from iecl.views.policies import plain_share
from iecl.weights.external import RANDOM, random_model


def knn_of_pixels(data: str) -> float:
    """Accuracy by kNN of the pixels themselves, as mean-free vectors."""
    settings = resolve_data(DataSettings(name=data))
    train, test = (_pixels(settings, split) for split in ("train-part", "test"))
    mean = train.values.mean(0)
    return knn(
        Features(train.values - mean, train.labels, train.index), Features(test.values - mean, test.labels, test.index)
    ).top1


def knn_of_random(data: str, backbone: str, seed: int = 0) -> float:
    """Accuracy by kNN of a freshly initialized backbone whose batch norms have seen a few batches."""
    settings = resolve_data(DataSettings(name=data))
    model = random_model(backbone, seed, image_size=settings.image_size, mean=settings.mean, std=settings.std)
    context = EvaluationContext(model, RANDOM, data, ProgressLine(quiet=True), device=torch.device("cpu"))
    return knn(context.train, context.test).top1


def _pixels(settings: DataSettings, split: str) -> Features:
    look = (settings.image_size, settings.mean, settings.std, plain_share(settings.image_size))
    rows = [
        (make_plain(b.images, b.sizes, *look).flatten(1), b.labels, b.index)
        for b in in_order(open_source(settings, split), 256)
    ]
    values, labels, index = (torch.cat(part) for part in zip(*rows, strict=True))
    return Features(values, labels, index)
