"""Linear probe: a softmax classifier on frozen features, trained with SGD and reported after its last epoch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from iecl import counter
from iecl.errors import UserError
from iecl.evaluation.bench import Bench
from iecl.evaluation.contract import Evaluation, Scores, ranked_hits
from iecl.evaluation.features import Features
from iecl.schedule import Clock, warm_cosine
from iecl.settings import setting

_AT_ONCE = 8192  # rows that are scored at once
FeaturesOfEpoch = Callable[[int], Features]


@dataclass(frozen=True, kw_only=True)
class LinearSettings:
    """How the classifier is trained; the defaults are those of the IE-CL paper."""

    epochs: int = setting(200, "passes over the training features", low=1)
    batch: int = setting(512, "features in a step", low=1)
    rate: float = setting(0.03, "learning rate of the first step; falls to 0 along half a cosine", above=0)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(1e-5, "weight decay", low=0)
    augment: bool = setting(False, "new crops and mirror images of the training pictures in each epoch; much slower")
    seed: int = setting(0, "decides the order of the features and the crops", low=0)


@dataclass(frozen=True)
class LinearResult:
    """Shares of right answers after the last epoch."""

    top1: float
    top5: float
    n: int
    train_top1: float
    """On the features of the last epoch."""
    epochs: int


def linear(
    train: Features,
    test: Features,
    settings: LinearSettings | None = None,
    *,
    of_epoch: FeaturesOfEpoch | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> LinearResult:
    """Train a linear classifier on one set of features and test it on another.

    Args:
        train: labelled features.
        test: labelled features of other pictures.
        settings: how to train; by default as the paper does.
        of_epoch: gives other features of the training pictures in each epoch, such as those of random crops.
        device: where to train.
        progress: is told how many epochs are done, of how many.

    Raises:
        UserError: labels are missing, there is only one class, or a feature is not finite.
    """
    settings = settings or LinearSettings()
    train, test = train.labelled("train"), test.labelled("test")
    if (train.labels == train.labels[0]).all():
        raise UserError("the train images are all of one class", where="--data", do="give images of two or more")
    head = empty_head(train.values.shape[1], int(max(train.labels.max(), test.labels.max())) + 1, device)
    fresh = of_epoch
    seen = fit(head, (lambda epoch: fresh(epoch).labelled("train")) if fresh else (lambda _: train), settings, progress)
    (train_hits, _), (top1, top5) = _hits(head, seen), _hits(head, test)
    n = len(test)
    return LinearResult(top1 / n, top5 / n, n, train_hits / len(seen), settings.epochs)


def empty_head(width: int, classes: int, device: torch.device | str = "cpu") -> nn.Linear:
    """A linear classifier with all weights zero: the problem is convex, so that one start is as good as another."""
    head = nn.Linear(width, classes, device="meta").to_empty(device=device)  # on meta no random number is drawn
    for weight in head.parameters():
        nn.init.zeros_(weight)
    return head


def fit(
    head: nn.Linear,
    of_epoch: FeaturesOfEpoch,
    settings: LinearSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Features:
    """Train the head; returns the features of the last epoch."""
    velocities = [torch.zeros_like(weight) for weight in head.parameters()]
    for epoch in range(settings.epochs):
        seen = of_epoch(epoch)
        _pass(head, velocities, seen, epoch, settings)
        if progress is not None:
            progress(epoch + 1, settings.epochs)
    return seen


def _pass(head: nn.Linear, velocities: list[Tensor], features: Features, epoch: int, settings: LinearSettings) -> None:
    """One epoch; features stay one tensor, and a batch is picked from it by number."""
    device = head.weight.device
    values, labels = features.values.to(device), features.labels.to(device)
    order = counter.permutation(counter.key(settings.seed, "probe/order", epoch), len(values)).to(device)
    steps = -(-len(values) // settings.batch)
    for number in range(steps):
        rows = order[number * settings.batch : (number + 1) * settings.batch]
        clock = Clock(settings.seed, epoch * steps + number, settings.epochs * steps, epoch, settings.epochs)
        loss = cross_entropy(head(values.index_select(0, rows)), labels.index_select(0, rows))
        _step(head, velocities, loss, settings.rate * warm_cosine(clock, warmup=0), settings)


def _step(head: nn.Linear, velocities: list[Tensor], loss: Tensor, rate: float, settings: LinearSettings) -> None:
    """SGD with momentum and weight decay, as torch.optim has it; that one first imports a compiler, for seconds."""
    weights = list(head.parameters())
    with torch.no_grad():
        for weight, velocity, slope in zip(weights, velocities, torch.autograd.grad(loss, weights), strict=True):
            velocity.mul_(settings.momentum).add_(slope).add_(weight, alpha=settings.weight_decay)
            weight.sub_(velocity, alpha=rate)


@torch.no_grad()
def _hits(head: nn.Linear, features: Features) -> tuple[int, int]:
    """How many labels the head puts first, and among the first five."""
    first = five = 0
    for start in range(0, len(features), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        scores = head(features.values[rows].to(head.weight.device)).cpu()
        one, more = ranked_hits(scores, features.labels[rows])
        first, five = first + one, five + more
    return first, five


@final
class Linear(Evaluation):
    """The linear probe, on features that are computed once or, if asked for, anew from crops in each epoch."""

    Settings = LinearSettings

    def __init__(self, settings: LinearSettings) -> None:
        self.settings = settings
        self.rereads = settings.augment  # crops are cut anew from the pictures in each epoch

    @property
    def summary(self) -> str:
        """As in `linear/1 sgd lr=0.03 wd=1e-05 batch=512 epochs=200 cached`."""
        s = self.settings
        seen = "crops" if s.augment else "cached"
        return f"linear/1 sgd lr={s.rate:g} wd={s.weight_decay:g} batch={s.batch} epochs={s.epochs} {seen}"

    def measure(self, bench: Bench) -> Scores:
        """Train on the training pictures, test on the test pictures."""
        seed = counter.key(self.settings.seed, "probe/crops")  # other crops than the backbone was trained with
        of_epoch = (lambda epoch: bench.crops(seed, epoch)) if self.settings.augment else None
        progress = bench.line.count("epoch")
        result = linear(
            bench.train, bench.test, self.settings, of_epoch=of_epoch, device=bench.device, progress=progress
        )
        values = {"top1": result.top1, "top5": result.top5}
        return Scores(values, bench.counts, bench.protocol, bench.seen, {"train_top1": result.train_top1})
