"""Linear classifiers trained side by side: the same features in the same order, each at its own pace."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from iecl import counter
from iecl.evaluation.contract import first_right, ranked_hits
from iecl.evaluation.features import Features
from iecl.runs.checkpoint import latest_checkpoint, save_checkpoint, shown
from iecl.schedule import Clock, lr_factor
from iecl.training.checkpoint_check import refuse, unfit_tensors

log = logging.getLogger("iecl.evaluation")
_CELLS = 2**23  # scores that are held at once
FeaturesOfEpoch = Callable[[int], Features]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pace:
    """What may differ between heads that are trained together."""

    rate: float
    decay: float
    """Weight decay, of weights and biases."""


class Schooling(Protocol):
    """How heads are trained, but for their paces; the settings of the linear evaluation are one."""

    @property
    def epochs(self) -> int:
        """Passes over the features."""

    @property
    def batch_size(self) -> int:
        """Features in a step."""

    @property
    def momentum(self) -> float:
        """Momentum of SGD."""

    @property
    def seed(self) -> int:
        """Decides the order of the features."""


@dataclass(frozen=True)
class Heads:
    """Weights of several linear classifiers of one shape."""

    weight: Float[Tensor, "heads classes width"]
    bias: Float[Tensor, "heads classes"]

    @classmethod
    def empty(cls, heads: int, classes: int, width: int, device: torch.device | str = "cpu") -> "Heads":
        """All weights zero: the problem is convex, so that one start is as good as another."""
        return cls(torch.zeros(heads, classes, width, device=device), torch.zeros(heads, classes, device=device))

    def scores(self, x: Float[Tensor, "n width"]) -> Float[Tensor, "n heads classes"]:
        """What each head says of each row: all heads are one matrix, so that one product serves them."""
        flat = torch.addmm(self.bias.flatten(), x, self.weight.flatten(0, 1).T)
        return flat.view(len(x), *self.bias.shape)

    def readings(self, features: Features) -> list["Reading"]:
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
        return [Reading(top1, top5, loss, own) for (top1, top5), loss, own in rows]


@dataclass(frozen=True)
class Reading:
    """How good a classifier is on some features."""

    top1: float
    top5: float
    loss: float
    """Mean cross-entropy."""
    right: Bool[Tensor, " n"] = field(compare=False)
    """Which rows it puts into their class."""

    @property
    def merit(self) -> float:
        """What a choice goes by: the loss, which a small part of the images gives far more surely than accuracy."""
        return -self.loss


def train_heads(
    heads: Heads,
    of_epoch: FeaturesOfEpoch,
    paces: Sequence[Pace],
    how: Schooling,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> Features:
    """Train each head at its own pace; returns the features of the last epoch.

    With a `folder` a checkpoint is kept there after each epoch, and the training goes on from it after a break.
    """
    velocities = Heads(torch.zeros_like(heads.weight), torch.zeros_like(heads.bias))
    peaks, decays = (
        torch.tensor(values, device=heads.bias.device)
        for values in ([pace.rate for pace in paces], [pace.decay for pace in paces])
    )
    first = _restore(heads, velocities, how.epochs, folder)
    seen = of_epoch(how.epochs - 1) if first == how.epochs else None
    for epoch in range(first, how.epochs):
        seen = of_epoch(epoch)
        _pass(heads, velocities, seen, epoch, (peaks, decays), how)
        _save(heads, velocities, epoch + 1, folder)
        if progress is not None:
            progress(epoch + 1, how.epochs)
    assert seen is not None
    return seen


def _restore(heads: Heads, velocities: Heads, epochs: int, folder: Path | None) -> int:
    """Take over the newest checkpoint, if there is one; returns how many epochs are done."""

    def check(state: dict[str, Any]) -> None:
        parts = {"heads": vars(heads), "velocities": vars(velocities)}
        problems = [words for name, wanted in parts.items() for words in unfit_tensors(state.get(name), wanted)]
        refuse(problems if state["step"] <= epochs else [*problems, f"epoch {shown(state['step'])} of {epochs}"])

    state = latest_checkpoint(folder, check) if folder is not None and folder.is_dir() else None
    if state is None:
        return 0
    for name, some in (("heads", heads), ("velocities", velocities)):
        for key, tensor in vars(some).items():
            tensor.copy_(state[name][key])
    done: int = state["step"]
    log.info("the linear probe goes on after epoch %d", done)
    return done


def _save(heads: Heads, velocities: Heads, done: int, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(folder, {"step": done, "heads": dict(vars(heads)), "velocities": dict(vars(velocities))})


def _pass(
    heads: Heads, velocities: Heads, features: Features, epoch: int, paces: tuple[Tensor, Tensor], how: Schooling
) -> None:
    """One epoch; features stay one tensor, and a batch is picked from it by number."""
    device = heads.bias.device
    values, labels = features.values.to(device), features.labels.to(device)
    order = counter.permutation(counter.key(how.seed, "probe/order", epoch), len(values)).to(device)
    steps = -(-len(values) // how.batch_size)
    for number in range(steps):
        rows = order[number * how.batch_size : (number + 1) * how.batch_size]
        clock = Clock(how.seed, epoch * steps + number, how.epochs * steps, epoch, how.epochs)
        slopes = _slopes(heads, values.index_select(0, rows), labels.index_select(0, rows))
        _step(heads, velocities, slopes, paces[0] * lr_factor(clock), paces[1], how.momentum)


def _slopes(heads: Heads, x: Float[Tensor, "n width"], labels: Int64[Tensor, " n"]) -> Heads:
    """Gradients of the mean cross-entropy of each head: (softmax - one for the label) times the features."""
    excess = heads.scores(x).softmax(dim=2)
    excess[torch.arange(len(x), device=x.device), :, labels] -= 1
    excess /= len(x)
    weight = (excess.flatten(1).T @ x).view_as(heads.weight)
    return Heads(weight, excess.sum(dim=0))


def _step(
    heads: Heads,
    velocities: Heads,
    slopes: Heads,
    rates: Float[Tensor, " heads"],
    decays: Float[Tensor, " heads"],
    momentum: float,
) -> None:
    """SGD with momentum and weight decay, as torch.optim has it; that one first imports a compiler, for seconds."""
    parts = (vars(some).values() for some in (heads, velocities, slopes))
    for weight, velocity, slope in zip(*parts, strict=True):
        shape = (-1, *[1] * (weight.ndim - 1))
        velocity.mul_(momentum).add_(slope).addcmul_(weight, decays.view(shape))
        weight.sub_(velocity * rates.view(shape))
