"""Linear probe: a softmax classifier on frozen features, trained with SGD and reported after its last epoch."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl import counter
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores, accuracies
from iecl.evaluation.features import Features, refuse_one_class
from iecl.evaluation.linear_heads import (
    FeaturesOfEpoch,
    Hyperparameters,
    LinearHeads,
    LinearSettings,
    Progress,
    train_heads,
)
from iecl.evaluation.logistic import Optimum, optimum
from iecl.evaluation.splits import hashes_of, names_of, split_for_validation
from iecl.settings import as_values

STEPS_PER_EPOCH = 20
"""Least number of steps in an epoch of a sweep: with fewer, SGD on few images stops far from the optimum."""


@dataclass(frozen=True)
class LinearResult:
    """Shares of right answers after the last epoch."""

    top1: float
    top5: float
    n: int
    train_top1: float
    """On the features of the last epoch."""
    hyperparameters: Hyperparameters
    """Those that were chosen, or given."""
    batch: int
    """Features in a step."""
    held_out: dict[str, float]
    """Of a sweep: accuracy on the held-out tenth by learning rate and weight decay."""
    top1_of_given_rate: float
    """What `lr` and `weight_decay` give under the same conditions; they took no part in the choice by themselves."""
    optimum: Optimum | None
    right: Bool[Tensor, " n"] = field(compare=False)
    """Which test images it puts into their class."""


def linear(
    train: Features,
    test: Features,
    settings: LinearSettings | None = None,
    *,
    of_epoch: FeaturesOfEpoch | None = None,
    hashes: Int64[Tensor, " n"] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    folder: Path | None = None,
) -> LinearResult:
    """Train a linear classifier on one set of features and test it on another.

    Args:
        train: labeled features.
        test: labeled features of other images.
        settings: how to train; by default with the numbers of the paper, and without its crops.
        of_epoch: gives other features of the training images in each epoch, such as those of random crops.
        hashes: a number for each labeled row of `train` that decides which ones are held out; None: its index.
        device: where to train.
        progress: called with how many epochs are done, of how many.
        folder: with `of_epoch`, whose features are expensive: where a checkpoint of each epoch is kept, to go on from.

    Raises:
        UserError: labels are missing, there is only one class, a feature is not finite, or nothing can be held out.
    """
    settings = settings or LinearSettings()
    train, test = train.labeled("train"), test.labeled("test")
    refuse_one_class(train.labels)
    if settings.is_standardized:
        scale = Scale.of(train.values)
        train, test = scale.apply(train), scale.apply(test)
        of_epoch = _then(of_epoch, scale.apply)
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    parts = _parts(train, hashes) if settings.mode == "sweep" or settings.reference else None
    probe = _Probe(train, classes, _steadied(settings, len(train)), device)
    tried, held = [settings.hyperparameters], dict[str, float]()
    if settings.mode == "sweep":
        assert parts is not None
        chosen, held = probe.choose(parts, progress)
        tried = [chosen, settings.hyperparameters]
    own = _then(of_epoch, lambda some: some.labeled("train"))
    seen, heads = probe.fit(own, tried, progress, is_second=bool(held), folder=folder)
    metrics = heads.evaluate(test)
    best = optimum(train, test, parts, classes) if settings.reference and parts is not None else None
    return LinearResult(
        top1=metrics[0].top1,
        top5=metrics[0].top5,
        n=len(test),
        train_top1=heads.evaluate(seen)[0].top1,
        hyperparameters=tried[0],
        batch=probe.settings.batch_size,
        held_out=held,
        top1_of_given_rate=metrics[-1].top1,
        optimum=best,
        right=metrics[0].right,
    )


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each feature: batch norm without parameters, over the whole training set."""

    mean: Float[Tensor, " width"]
    std: Float[Tensor, " width"]

    @classmethod
    def of(cls, values: Float[Tensor, "n width"]) -> "Scale":
        """Those of some rows; a feature that never changes keeps its size."""
        std = values.std(dim=0, correction=0)
        return cls(values.mean(dim=0), torch.where(std > 1e-6, std, 1.0))

    def apply(self, features: Features) -> Features:
        """The same rows, scaled."""
        return replace(features, values=(features.values - self.mean) / self.std)


def _then(of_epoch: FeaturesOfEpoch | None, change: Callable[[Features], Features]) -> FeaturesOfEpoch | None:
    return None if of_epoch is None else lambda epoch: change(of_epoch(epoch))


def _steadied(settings: LinearSettings, rows: int) -> LinearSettings:
    """The settings with a smaller batch where a sweep over few images would take too few steps."""
    if settings.mode != "sweep":
        return settings
    return replace(settings, batch_size=min(settings.batch_size, -(-rows // STEPS_PER_EPOCH)))


def _parts(train: Features, hashes: Int64[Tensor, " n"] | None) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to choose by."""
    parts = split_for_validation(train.labels, train.index if hashes is None else hashes)
    if not len(parts[1]):
        raise UserError(
            "no class has two train images: nothing can be held out to choose by",
            where="linear.mode, linear.reference",
            do="use mode=cached without reference, or give more images",
        )
    return parts


@dataclass(frozen=True)
class _Probe:
    """Training features and how to learn from them."""

    train: Features
    classes: int
    settings: LinearSettings
    device: torch.device | str

    def choose(
        self, parts: tuple[Tensor, Tensor], progress: Progress | None
    ) -> tuple[Hyperparameters, dict[str, float]]:
        """Those with the least loss on held-out rows, and the accuracy of each there; all are trained at once."""
        grid = [Hyperparameters(lr, decay) for lr in self.settings.lrs for decay in self.settings.weight_decays]
        part, rest = (self.train.rows(rows) for rows in parts)
        heads = self._empty(len(grid))
        train_heads(heads, lambda _: part, grid, self.settings, _half(progress, self.settings.epochs, first=True))
        found = list(zip(grid, heads.evaluate(rest), strict=True))
        best = min(found, key=lambda pair: pair[1].loss)[0]
        return best, {f"{one.lr:g}, {one.weight_decay:g}": metrics.top1 for one, metrics in found}

    def fit(
        self,
        of_epoch: FeaturesOfEpoch | None,
        hyperparameters: list[Hyperparameters],
        progress: Progress | None,
        *,
        is_second: bool,
        folder: Path | None,
    ) -> tuple[Features, LinearHeads]:
        """Heads trained on all rows with these hyperparameters, and the features of the last epoch."""
        heads = self._empty(len(hyperparameters))
        told = _half(progress, self.settings.epochs, first=False) if is_second else progress
        if of_epoch is None:
            return train_heads(heads, lambda _: self.train, hyperparameters, self.settings, told), heads
        return train_heads(heads, of_epoch, hyperparameters, self.settings, told, folder), heads

    def _empty(self, heads: int) -> LinearHeads:
        return LinearHeads.empty(heads, self.classes, self.train.values.shape[1], self.device)


def _half(progress: Progress | None, epochs: int, *, first: bool) -> Progress | None:
    """Progress of one of two rounds of so many epochs, as a part of both."""
    if progress is None:
        return None
    return lambda done, _: progress(done if first else epochs + done, 2 * epochs)


@final
class Linear(Evaluation):
    """The linear probe, on features that are computed once or, to the letter, from new crops in each epoch."""

    Settings = LinearSettings

    def __init__(self, settings: LinearSettings) -> None:
        self.settings = settings
        self.rereads = settings.mode == "literal" or settings.crops > 1  # each pass over the images cuts new crops

    @property
    def summary(self) -> str:
        """As in `linear/1 sgd lr=0.03 wd=1e-05 batch=512 epochs=200 cached crops=4`."""
        s = self.settings
        lr, decay = ("swept", "swept") if s.mode == "sweep" else (f"{s.lr:g}", f"{s.weight_decay:g}")
        seen = s.mode + (f" crops={s.crops}" if s.crops else "") + (" standardized" if s.is_standardized else "")
        return f"linear/1 sgd lr={lr} wd={decay} batch={s.batch_size} epochs={s.epochs} {seen}"

    def measure(self, context: EvaluationContext) -> Scores:
        """Train on the training images, test on the test images."""
        train, is_long = context.train, self.settings.mode == "literal"
        parts = as_values(self.settings), train.index.tolist(), train.labels.tolist()
        result = linear(
            train,
            context.test,
            self.settings,
            of_epoch=self._crops(context),
            hashes=hashes_of(names_of(context.train_images, train.index)),
            device=context.device,
            progress=context.line.count("epoch"),
            folder=context.place("linear", *parts) if is_long else None,
        )
        values = accuracies(result.top1, result.top5, context.counts["classes"])
        details = _details(result, self.settings)
        return Scores(values, context.counts, context.protocol, context.seen, details, result.right)

    def _crops(self, context: EvaluationContext) -> FeaturesOfEpoch | None:
        """Features of random crops for each epoch: new ones, or a few that are kept; None: those of the plain view."""
        s = self.settings
        seed = counter.key(s.seed, "probe/crops")  # other crops than the backbone was trained with
        if s.mode == "literal":
            return lambda epoch: context.crops(seed, epoch)
        kept = cache(lambda number: context.crops(seed, number))
        return (lambda epoch: kept(epoch % s.crops)) if s.crops else None


def _details(result: LinearResult, settings: LinearSettings) -> dict[str, Any]:
    """What a mode has to say besides its accuracy."""
    made: dict[str, Any] = {"train_top1": result.train_top1}
    if settings.mode == "sweep":
        made["sweep"] = {
            "lr": result.hyperparameters.lr,
            "weight_decay": result.hyperparameters.weight_decay,
            "held_out_top1": result.held_out,
            "batch": result.batch,
            "top1_of_given_rate": result.top1_of_given_rate,
        }
    if result.optimum is not None:
        found = result.optimum
        made["optimum"] = {
            "top1": found.metrics.top1,
            "top5": found.metrics.top5,
            "C": found.strength,
            "held_out_top1": found.held_out,
            "is_converged": found.is_converged,
        }
    return made
