"""Linear classifiers trained side by side: the same features in the same order, each with its own learning rate."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl import counter
from iecl.evaluation.contract import first_right, ranked_hits
from iecl.evaluation.features import Features
from iecl.files import LARGEST
from iecl.runs.checkpoint import latest_checkpoint, save_checkpoint, shown
from iecl.schedule import Clock, lr_factor
from iecl.settings import setting
from iecl.training.checkpoint_check import refuse, unfit_tensors

log = logging.getLogger("iecl.evaluation")
_CELLS = 2**23  # scores that are held at once
FeaturesOfEpoch = Callable[[int], Features]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Hyperparameters:
    """What may differ between heads that are trained together."""

    lr: float
    weight_decay: float
    """Of weights and biases."""


@dataclass(frozen=True, kw_only=True)
class LinearSettings:
    """How the classifier is trained. `mode=literal` is the protocol of the IE-CL paper; the default is not."""

    mode: str = setting(
        "cached",
        "cached: features of the plain view, computed once; literal: of new crops and mirror images in each epoch, as "
        "in the IE-CL paper, and as slow as so many passes; sweep: cached, and lr and weight_decay are chosen on a "
        "tenth of the training images",
        choices=("cached", "literal", "sweep"),
    )
    crops: int = setting(
        0, "cached: the first so many crops of `literal`, kept and taken in turn in the place of the plain view", low=0
    )
    epochs: int = setting(200, "passes over the training features", low=1)
    batch_size: int = setting(512, "features in a step", low=1)
    lr: float = setting(0.03, "learning rate of the first step; falls to 0 along half a cosine", above=0)
    lrs: tuple[float, ...] = setting(
        (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "what a sweep chooses its learning rate from", above=0
    )
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(1e-5, "weight decay", low=0)
    weight_decays: tuple[float, ...] = setting(
        (1e-5, 1e-4, 1e-3, 1e-2), "what a sweep chooses its weight decay from", low=0
    )
    normalize: str = setting(
        "auto",
        "standardize: each feature minus its mean, over its standard deviation in the training set; auto: in a sweep",
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
    def hyperparameters(self) -> Hyperparameters:
        """Learning rate and weight decay as they are given."""
        return Hyperparameters(self.lr, self.weight_decay)

    @property
    def is_standardized(self) -> bool:
        """Whether features are brought to mean 0 and standard deviation 1."""
        return self.normalize == "standardize" or (self.normalize == "auto" and self.mode == "sweep")


@dataclass(frozen=True)
class LinearHeads:
    """Weights of several linear classifiers of one shape."""

    weight: Float[Tensor, "heads classes width"]
    bias: Float[Tensor, "heads classes"]

    @classmethod
    def empty(cls, heads: int, classes: int, width: int, device: torch.device | str = "cpu") -> "LinearHeads":
        """All weights zero: the problem is convex, so that one start is as good as another."""
        return cls(torch.zeros(heads, classes, width, device=device), torch.zeros(heads, classes, device=device))

    def scores(self, x: Float[Tensor, "n width"]) -> Float[Tensor, "n heads classes"]:
        """What each head says of each row: all heads are one matrix, so that one product serves them."""
        flat = torch.addmm(self.bias.flatten(), x, self.weight.flatten(0, 1).T)
        return flat.view(len(x), *self.bias.shape)

    def evaluate(self, features: Features) -> list["ClassificationMetrics"]:
        """How good each head is; the scores of one that diverged are no numbers, so that it is never right."""
        heads, classes = self.bias.shape
        step = max(1, _CELLS // (heads * classes))
        hits, losses = torch.zeros(heads, 2, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
        right = torch.empty(heads, len(features), dtype=torch.bool)
        for start in range(0, len(features), step):
            labels = features.labels[start : start + step]
            scores = self.scores(features.values[start : start + step].to(self.bias.device)).double().cpu()
            own = labels[:, None, None].expand(-1, heads, 1)
            losses -= scores.log_softmax(dim=2).gather(2, own).squeeze(2).sum(dim=0)
            hits += torch.tensor([ranked_hits(scores[:, head], labels) for head in range(heads)])
            for head in range(heads):
                right[head, start : start + step] = first_right(scores[:, head], labels)
        shares, means = (hits / len(features)).tolist(), (losses / len(features)).nan_to_num(torch.inf).tolist()
        rows = zip(shares, means, right, strict=True)
        return [ClassificationMetrics(top1, top5, loss, own) for (top1, top5), loss, own in rows]


@dataclass(frozen=True)
class ClassificationMetrics:
    """How good a classifier is on some features."""

    top1: float
    top5: float
    loss: float
    """Mean cross-entropy: what a choice goes by, since few images give it far more surely than accuracy."""
    right: Bool[Tensor, " n"] = field(compare=False)
    """Which rows it puts into their class."""


def train_heads(
    heads: LinearHeads,
    of_epoch: FeaturesOfEpoch,
    hyperparameters: Sequence[Hyperparameters],
    settings: LinearSettings,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> Features:
    """Train each head with its own hyperparameters; returns the features of the last epoch.

    With a `folder` a checkpoint is kept there after each epoch, and the training goes on from it after a break.
    """
    velocities = LinearHeads(torch.zeros_like(heads.weight), torch.zeros_like(heads.bias))
    peaks, decays = (
        torch.tensor([getattr(one, name) for one in hyperparameters], device=heads.bias.device)
        for name in ("lr", "weight_decay")
    )
    first = _restore(heads, velocities, settings.epochs, folder)
    seen = of_epoch(settings.epochs - 1) if first == settings.epochs else None
    for epoch in range(first, settings.epochs):
        seen = of_epoch(epoch)
        _pass(heads, velocities, seen, epoch, peaks, decays, settings)
        _save(heads, velocities, epoch + 1, folder)
        if progress is not None:
            progress(epoch + 1, settings.epochs)
    assert seen is not None
    return seen


def _restore(heads: LinearHeads, velocities: LinearHeads, epochs: int, folder: Path | None) -> int:
    """Take over the newest checkpoint, if there is one; returns how many epochs are done."""

    def check(state: dict[str, Any]) -> None:
        parts = {"heads": vars(heads), "velocities": vars(velocities)}
        problems = [words for name, wanted in parts.items() for words in unfit_tensors(state.get(name), wanted)]
        refuse(problems if state["step"] <= epochs else [*problems, f"epoch {shown(state['step'])} of {epochs}"])

    state = latest_checkpoint(folder, check) if folder is not None else None
    if state is None:
        return 0
    for name, some in (("heads", heads), ("velocities", velocities)):
        for key, tensor in vars(some).items():
            tensor.copy_(state[name][key])
    done: int = state["step"]
    log.info("the linear probe goes on after epoch %d", done)
    return done


def _save(heads: LinearHeads, velocities: LinearHeads, done: int, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(folder, {"step": done, "heads": dict(vars(heads)), "velocities": dict(vars(velocities))})


def _pass(
    heads: LinearHeads,
    velocities: LinearHeads,
    features: Features,
    epoch: int,
    peaks: Tensor,
    decays: Tensor,
    settings: LinearSettings,
) -> None:
    """One epoch; features stay one tensor, and a batch is picked from it by number."""
    device = heads.bias.device
    values, labels = features.values.to(device), features.labels.to(device)
    order = counter.permutation(counter.key(settings.seed, "probe/order", epoch), len(values)).to(device)
    steps = -(-len(values) // settings.batch_size)
    for number in range(steps):
        rows = order[number * settings.batch_size : (number + 1) * settings.batch_size]
        clock = Clock(settings.seed, epoch * steps + number, settings.epochs * steps, epoch, settings.epochs)
        gradients = _gradients(heads, values.index_select(0, rows), labels.index_select(0, rows))
        _step(heads, velocities, gradients, peaks * lr_factor(clock), decays, settings.momentum)


def _gradients(heads: LinearHeads, x: Float[Tensor, "n width"], labels: Int64[Tensor, " n"]) -> LinearHeads:
    """Gradients of the mean cross-entropy of each head: (softmax - one for the label) times the features."""
    excess = heads.scores(x).softmax(dim=2)
    excess[torch.arange(len(x), device=x.device), :, labels] -= 1
    excess /= len(x)
    weight = (excess.flatten(1).T @ x).view_as(heads.weight)
    return LinearHeads(weight, excess.sum(dim=0))


def _step(
    heads: LinearHeads,
    velocities: LinearHeads,
    gradients: LinearHeads,
    lrs: Float[Tensor, " heads"],
    decays: Float[Tensor, " heads"],
    momentum: float,
) -> None:
    """SGD with momentum and weight decay, as torch.optim has it; that one first imports a compiler, for seconds."""
    parts = (vars(some).values() for some in (heads, velocities, gradients))
    for weight, velocity, gradient in zip(*parts, strict=True):
        shape = (-1, *[1] * (weight.ndim - 1))
        velocity.mul_(momentum).add_(gradient).addcmul_(weight, decays.view(shape))
        weight.sub_(velocity * lrs.view(shape))
