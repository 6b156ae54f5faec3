"""What do features, kNN and the linear probe cost? Each beside the plainest code that does the same, in turn.

kNN: exact neighbors and votes over the bare matrix product of all cosines; scikit-learn's brute force on the same
features, at the length that makes its cosine ours. Linear probe: 200 epochs on cached features over a loop of plain
torch with the same batches and optimizer. Features: from files on, over torchvision's ImageFolder and transforms with
the same weights, middle square and batch. Everything runs on one thread and is timed by the processor's own seconds,
so that other work on the machine does not count.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.images import made_photographs, make_medium, make_shapes
from benchmarks.bench.turns import over, ratios, summary, take_turns, timed
from iecl import parallel
from iecl.backbones.factory import make_backbone
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.settings import DataSettings
from iecl.evaluation.features import Features, extract
from iecl.evaluation.knn import STANDARD, KNNSettings, knn_by_each
from iecl.evaluation.linear import linear
from iecl.evaluation.linear_heads import LinearSettings
from iecl.views.policies import plain_share

CLASSES, ROUNDS, TILE = 10, 5, 256
BACKBONE, BATCH = "resnet10-w16", 64
VOTES: dict[str, list[KNNSettings]] = {
    "k=20, one vote": [STANDARD[0]],
    "k=200, the three standard votes": list(STANDARD),
}
GOALS = {f"kNN, {name} / product": "at most 1.1" for name in VOTES}


@dataclass(frozen=True)
class _Sizes:
    """How much is measured."""

    queries: int = 10_000
    bank: int = 50_000
    width: int = 512
    train: int = 10_000
    epochs: int = 200
    photographs: int = 160
    small: int = 1_000


QUICK = _Sizes(queries=64, bank=1_000, width=64, train=500, epochs=5, photographs=8, small=64)


def measure(effort: Effort) -> Content:
    """All three, each as a ratio to its plainest form."""
    sizes, rounds = QUICK if effort.is_quick else _Sizes(), effort.rounds_of(ROUNDS)
    content: Content = {
        "setting": f"kNN: {sizes.queries:,} against {sizes.bank:,} features of length {sizes.width}; linear probe: "
        f"{sizes.train:,} features, {sizes.epochs} epochs; features of {BACKBONE}, batch {BATCH}, no worker",
        "unit": "processor time over that of the other in the same round; of features, speed over the other's",
        "threads": 1,
        "results": {},
    }
    with parallel.threads(1), threadpool_limits(1):
        for part in (_knn, _linear, _features):
            rows, more = part(sizes, rounds)
            content["results"] |= effort.rows(rows, GOALS)
            content |= more
            effort.keep(content)
    return content


Found = tuple[dict[str, list[float]], Content]
"""Rows, and what else there is to keep."""


def _in_turn(arms: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    return take_turns({name: timed(work, time.process_time) for name, work in arms.items()}, rounds)


def _made(count: int, width: int, seed: int) -> Features:
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=drawn)
    centers = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(0))
    return Features(centers[labels] + 4 * torch.randn(count, width, generator=drawn), labels, torch.arange(count))


# --- kNN


def _knn(sizes: _Sizes, rounds: int) -> Found:
    bank, queries = _made(sizes.bank, sizes.width, 1), _made(sizes.queries, sizes.width, 2)
    arms: dict[str, Callable[[], object]] = {
        "product": partial(_product, queries.values, bank.values),
        "product into the same memory": partial(_product_in_place, queries.values, bank.values),
        "scikit-learn's brute force, k=20": partial(_by_sklearn, queries.values, bank.values),
    }
    arms |= {name: partial(knn_by_each, bank, queries, votings) for name, votings in VOTES.items()}
    times = _in_turn(arms, 2 * rounds - 1)  # each takes seconds, in which a shared machine drifts by a tenth
    rows = {f"kNN, {name} / product": values for name, values in ratios(times, "product").items()}
    theirs, ours = times["scikit-learn's brute force, k=20"], times["k=20, one vote"]
    rows["kNN, scikit-learn's brute force / ours, k=20"] = over(theirs, ours)
    return rows, {"product_seconds": summary(times["product"])}


def _product(queries: Tensor, bank: Tensor) -> None:
    """All cosines and nothing else, a tile at a time as anyone would write it."""
    for part in torch.split(queries, TILE):
        part @ bank.T


def _product_in_place(queries: Tensor, bank: Tensor) -> None:
    """The same into memory that is used again and again: fresh memory costs a good part of the time."""
    room = queries.new_empty(TILE, len(bank))
    for part in torch.split(queries, TILE):
        torch.mm(part, bank.T, out=room[: len(part)])


def _by_sklearn(queries: Tensor, bank: Tensor) -> None:
    """Neighbors alone, without a vote."""
    found = NearestNeighbors(n_neighbors=20, metric="cosine", algorithm="brute").fit(bank.numpy())
    found.kneighbors(queries.numpy())


# --- linear probe


def _linear(sizes: _Sizes, rounds: int) -> Found:
    train, test = _made(sizes.train, sizes.width, 3), _made(sizes.train // 5, sizes.width, 4)
    settings = LinearSettings(epochs=sizes.epochs)
    arms: dict[str, Callable[[], object]] = {
        "ours": lambda: linear(train, test, settings),
        "bare": lambda: _bare_probe(train, test, settings),
    }
    times = _in_turn(arms, 2 * rounds - 1)  # each takes seconds, in which a shared machine drifts by a tenth
    reached = {"ours": linear(train, test, settings).top1, "bare": _bare_probe(train, test, settings)}
    rows = {"linear probe, ours / bare loop of torch": over(times["ours"], times["bare"])}
    return rows, {"linear_bare_seconds": summary(times["bare"]), "linear_top1": reached}


def _bare_probe(train: Features, test: Features, settings: LinearSettings) -> float:
    """What anyone would write; returns the share of right answers."""
    classifier = nn.Linear(train.values.shape[1], CLASSES)
    how: dict[str, Any] = {"lr": settings.lr, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
    optimizer = torch.optim.SGD(classifier.parameters(), **how)
    steps = settings.epochs * -(-len(train) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(settings.epochs):
        for rows in torch.split(torch.randperm(len(train)), settings.batch_size):
            loss = nn.functional.cross_entropy(classifier(train.values[rows]), train.labels[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        right = classifier(test.values).argmax(dim=1) == test.labels
    return float(right.float().mean())


# --- features


def _features(sizes: _Sizes, rounds: int) -> Found:
    rows, cosines = dict[str, list[float]](), Content()
    with tempfile.TemporaryDirectory() as scratch:
        medium, small = Path(scratch) / "photographs", Path(scratch) / "shapes"
        make_medium(made_photographs(), medium / "train", sizes.photographs)
        make_shapes(small / "train", sizes.small)
        for folder, words in ((medium, "JPEGs of 500 × 375"), (small, "PNGs of 32 px")):
            settings = resolve_data(DataSettings(name=str(folder), cache_megabytes=0))
            backbone = make_backbone(BACKBONE).eval()
            ours, theirs = partial(_ours, settings, backbone), partial(_torchvision, folder, settings, backbone)
            times = _in_turn({"ours": ours, "torchvision": theirs}, rounds)
            rows[f"features, {words}: speed over torchvision's"] = over(times["torchvision"], times["ours"])
            cosines[words] = round(torch.cosine_similarity(ours(), theirs(), dim=1).min().item(), 4)
    return rows, {"least_cosine_between_features": cosines}


def _torchvision(folder: Path, settings: DataSettings, backbone: nn.Module) -> Tensor:
    """What anyone would write."""
    side, share = settings.image_size, plain_share(settings.image_size)
    view = Compose([Resize(round(side / share)), CenterCrop(side), ToTensor(), Normalize(settings.mean, settings.std)])
    loader: DataLoader[Any] = DataLoader(ImageFolder(str(folder / "train"), view), BATCH, num_workers=0)
    with torch.inference_mode():
        return torch.cat([backbone(x) for x, _ in loader])


def _ours(settings: DataSettings, backbone: nn.Module) -> Tensor:
    source, share = open_source(settings, "train"), plain_share(settings.image_size)
    look: dict[str, Any] = {"image_size": settings.image_size, "mean": settings.mean, "std": settings.std}
    return extract(backbone, source, batch=BATCH, share=share, **look).values
