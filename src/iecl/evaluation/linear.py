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
from iecl.evaluation.linear_heads import FeaturesOfEpoch, Heads, Pace, Progress, train_heads
from iecl.evaluation.logistic import Optimum, optimum
from iecl.evaluation.splits import hashes_of, held_out, names_of
from iecl.files import LARGEST
from iecl.settings import as_values, setting

STEPS_PER_EPOCH = 20
"""Least number of steps in an epoch of a sweep: with fewer, SGD on few images stops far from the optimum."""


@dataclass(frozen=True, kw_only=True)
class LinearSettings:
    """How the classifier is trained; the defaults are those of the IE-CL paper, on features computed once."""

    mode: str = setting(
        "cached",
        "cached: features of the plain view, computed once; literal: of new crops and mirror images in each epoch, as "
        "slow as so many passes; sweep: cached, with learning rate and weight decay chosen on a tenth of the images",
        choices=("cached", "literal", "sweep"),
    )
    crops: int = setting(
        0, "cached: the first so many crops of `literal`, kept and taken in turn instead of the plain view", low=0
    )
    epochs: int = setting(200, "passes over the training features", low=1)
    batch_size: int = setting(512, "features in a step", low=1)
    lr: float = setting(0.03, "learning rate of the first step; falls to 0 along half a cosine", above=0)
    lrs: tuple[float, ...] = setting(
        (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "learning rates that a sweep chooses from", above=0
    )
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(1e-5, "weight decay", low=0)
    weight_decays: tuple[float, ...] = setting(
        (1e-5, 1e-4, 1e-3, 1e-2), "weight decays that a sweep chooses from", low=0
    )
    normalize: str = setting(
        "auto",
        "standardize: each feature to mean 0 and standard deviation 1 over the training set; auto: in a sweep",
        choices=("auto", "none", "standardize"),
    )
    reference: bool = setting(False, "also find the optimum by L-BFGS, with a penalty chosen on the held-out tenth")
    seed: int = setting(0, "decides the order of the features and the crops", low=0, high=LARGEST)

    def __post_init__(self) -> None:
        for name in ("lrs", "weight_decays"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty: a sweep needs one at least")
        if self.crops and self.mode != "cached":
            raise ValueError(f"crops is {self.crops}, it belongs to mode=cached")

    @property
    def pace(self) -> Pace:
        """Rate and decay as they are given."""
        return Pace(self.lr, self.weight_decay)

    @property
    def is_standardized(self) -> bool:
        """Whether features are brought to mean 0 and standard deviation 1."""
        return self.normalize == "standardize" or (self.normalize == "auto" and self.mode == "sweep")


@dataclass(frozen=True)
class LinearResult:
    """Shares of right answers after the last epoch."""

    top1: float
    top5: float
    n: int
    train_top1: float
    """On the features of the last epoch."""
    pace: Pace
    """The rate and decay that were chosen, or given."""
    batch: int
    """Features in a step."""
    held_out: dict[str, float]
    """Of a sweep: accuracy on the held-out tenth by rate and decay."""
    top1_of_given_rate: float
    """What `rate` and `weight_decay` give under the same conditions; they took no part in the choice by themselves."""
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
        settings: how to train; by default as the paper does.
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
    paces, held = [settings.pace], dict[str, float]()
    if settings.mode == "sweep":
        assert parts is not None
        chosen, held = probe.choose(parts, progress)
        paces = [chosen, settings.pace]
    own = _then(of_epoch, lambda some: some.labeled("train"))
    seen, heads = probe.fit(own, paces, progress, is_second=bool(held), folder=folder)
    readings = heads.readings(test)
    best = optimum(train, test, parts, classes) if settings.reference and parts is not None else None
    return LinearResult(
        top1=readings[0].top1,
        top5=readings[0].top5,
        n=len(test),
        train_top1=heads.readings(seen)[0].top1,
        pace=paces[0],
        batch=probe.settings.batch_size,
        held_out=held,
        top1_of_given_rate=readings[-1].top1,
        optimum=best,
        right=readings[0].right,
    )


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each feature over the training set: batch norm without parameters of its own."""

    mean: Float[Tensor, " width"]
    deviation: Float[Tensor, " width"]

    @classmethod
    def of(cls, values: Float[Tensor, "n width"]) -> "Scale":
        """Those of some rows; a feature that never changes keeps its size."""
        deviation = values.std(dim=0, correction=0)
        return cls(values.mean(dim=0), torch.where(deviation > 1e-6, deviation, 1.0))

    def apply(self, features: Features) -> Features:
        """The same rows, scaled."""
        return replace(features, values=(features.values - self.mean) / self.deviation)


def _then(of_epoch: FeaturesOfEpoch | None, change: Callable[[Features], Features]) -> FeaturesOfEpoch | None:
    return None if of_epoch is None else lambda epoch: change(of_epoch(epoch))


def _steadied(settings: LinearSettings, rows: int) -> LinearSettings:
    """The settings with a smaller batch where a sweep over few images would take too few steps."""
    if settings.mode != "sweep":
        return settings
    return replace(settings, batch_size=min(settings.batch_size, -(-rows // STEPS_PER_EPOCH)))


def _parts(train: Features, hashes: Int64[Tensor, " n"] | None) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to choose by."""
    parts = held_out(train.labels, train.index if hashes is None else hashes)
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

    def choose(self, parts: tuple[Tensor, Tensor], progress: Progress | None) -> tuple[Pace, dict[str, float]]:
        """The pace with the least loss on held-out rows, and the accuracy of each there; all are trained at once."""
        paces = [Pace(rate, decay) for rate in self.settings.lrs for decay in self.settings.weight_decays]
        part, rest = (self.train.rows(rows) for rows in parts)
        heads = self._empty(len(paces))
        train_heads(heads, lambda _: part, paces, self.settings, _half(progress, self.settings.epochs, first=True))
        readings = heads.readings(rest)
        best = max(range(len(paces)), key=lambda number: readings[number].merit)
        named = {f"{pace.rate:g}, {pace.decay:g}": reading.top1 for pace, reading in zip(paces, readings, strict=True)}
        return paces[best], named

    def fit(
        self,
        of_epoch: FeaturesOfEpoch | None,
        paces: list[Pace],
        progress: Progress | None,
        *,
        is_second: bool,
        folder: Path | None,
    ) -> tuple[Features, Heads]:
        """Heads trained on all rows at these paces, and the features of the last epoch."""
        heads = self._empty(len(paces))
        told = _half(progress, self.settings.epochs, first=False) if is_second else progress
        if of_epoch is None:
            return train_heads(heads, lambda _: self.train, paces, self.settings, told), heads
        return train_heads(heads, of_epoch, paces, self.settings, told, folder), heads

    def _empty(self, heads: int) -> Heads:
        return Heads.empty(heads, self.classes, self.train.values.shape[1], self.device)


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
        rate, decay = ("swept", "swept") if s.mode == "sweep" else (f"{s.lr:g}", f"{s.weight_decay:g}")
        seen = s.mode + (f" crops={s.crops}" if s.crops else "") + (" standardized" if s.is_standardized else "")
        return f"linear/1 sgd lr={rate} wd={decay} batch={s.batch_size} epochs={s.epochs} {seen}"

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
            "lr": result.pace.rate,
            "weight_decay": result.pace.decay,
            "held_out_top1": result.held_out,
            "batch": result.batch,
            "top1_of_given_rate": result.top1_of_given_rate,
        }
    if result.optimum is not None:
        found = result.optimum
        made["optimum"] = {
            "top1": found.reading.top1,
            "top5": found.reading.top5,
            "C": found.strength,
            "held_out_top1": found.held_out,
            "is_converged": found.is_converged,
        }
    return made
