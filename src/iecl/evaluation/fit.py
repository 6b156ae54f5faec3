"""The training of a network by an evaluation: steps in a fixed order, any of which can be the first after a break."""

import logging
import math
import time
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from iecl import counter
from iecl.console import ProgressLine
from iecl.errors import Interrupted, TrainingError
from iecl.runs.checkpoint import latest_checkpoint, save_checkpoint
from iecl.schedule import Clock, lr_factor
from iecl.training.checkpoint_check import check_fit
from iecl.training.optimizers import recall
from iecl.training.signals import StopFlag
from iecl.weights.file import load_into

SAVE_SECONDS = 60.0
"""Epochs of a tiny set end every second; checkpoints are not written more often than this."""
T = TypeVar("T")
log = logging.getLogger("iecl.evaluation")


@dataclass(kw_only=True)
class Fit:
    """A network, what trains it, and how far it has come."""

    network: nn.Module
    optimizer: Optimizer
    """The learning rates that it comes with are the peaks of the schedule."""
    epochs: int
    steps_per_epoch: int
    schedule: str = "cosine"
    """A row of `iecl.schedule.LR_SCHEDULES`."""
    warmup_steps: int = 0
    purpose: str
    """Of the draws that torch makes in a step: with the seed and the number of the step they follow from it."""
    seed: int
    folder: Path | None
    """Where checkpoints are kept, to go on from; None: nowhere."""
    line: ProgressLine
    step: int = 0
    curve: list[float] = field(default_factory=list)
    """The mean loss of each finished epoch."""
    partial: list[float] = field(default_factory=list)
    """Losses of the steps of the epoch that is under way."""

    def __post_init__(self) -> None:
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self._saved_at = -math.inf

    @property
    def steps(self) -> int:
        """Steps in all."""
        return self.epochs * self.steps_per_epoch

    def run(self, batches: Callable[[int], Generator[T, None, None]], loss_of: Callable[[T], Tensor]) -> list[float]:
        """Train to the end, from the newest checkpoint if there is one; returns the mean loss of each epoch.

        Args:
            batches: the batches from a step on to the last.
            loss_of: the loss of a batch; may draw from torch's generators, which are seeded for the step.

        Raises:
            TrainingError: the loss is not finite.
            Interrupted: a signal came; the step was taken and saved.
        """
        self.restore()
        with (
            StopFlag() if self.folder is not None else nullcontext() as flag,
            closing(batches(self.step)) as found,
        ):
            if flag is not None:
                flag.is_polled = True
            for batch in found:
                self.take(loss_of, batch)
                is_stopped = flag is not None and bool(flag.signal)
                if is_stopped or self.step % self.steps_per_epoch == 0:
                    self._save(must=is_stopped or self.step == self.steps)
                if flag is not None and is_stopped and self.step < self.steps:
                    raise Interrupted(
                        f"stopped after step {self.step} of {self.steps}",
                        where=str(self.folder),
                        do="the same command goes on from there",
                        signal=flag.signal,
                    )
        return self.curve

    def take(self, loss_of: Callable[[T], Tensor], batch: T) -> None:
        """One step."""
        epoch, number = divmod(self.step, self.steps_per_epoch)
        clock = Clock(self.seed, self.step, self.steps, epoch, self.epochs)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * lr_factor(clock, self.schedule, warmup=self.warmup_steps)
        device = next(self.network.parameters()).device
        with counter.seeded(counter.key(self.seed, f"{self.purpose}/step", self.step), device):
            loss = loss_of(batch)
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {self.step}", where=f"epoch {epoch + 1}", do="lower the learning rate"
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        self.partial.append(value)
        if number + 1 == self.steps_per_epoch:
            self.curve.append(sum(self.partial) / len(self.partial))
            self.partial = []
        self.line.show(f"epoch {epoch + 1}/{self.epochs}  step {number + 1}/{self.steps_per_epoch}  loss {value:.4f}")

    def _save(self, *, must: bool) -> None:
        """Write a checkpoint, whole or not at all; one that need not be is left out soon after another."""
        if self.folder is None or not (must or time.monotonic() - self._saved_at >= SAVE_SECONDS):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curve": self.curve,
            "partial": self.partial,
        }
        save_checkpoint(self.folder, state)
        self._saved_at = time.monotonic()

    def restore(self) -> None:
        """Take over the newest checkpoint that fits, if there is one."""
        state = latest_checkpoint(self.folder, self._check) if self.folder is not None else None
        if state is not None:
            load_into(self.network, state["network"], str(self.folder))
            recall(self.optimizer, state["optimizer"])
            self.step, self.curve, self.partial = state["step"], state["curve"], state["partial"]
            log.info("going on from step %d of %d in %s", self.step, self.steps, self.folder)

    def _check(self, state: dict[str, Any]) -> None:
        if state.keys() == {"step", "network", "optimizer"}:  # fine-tuning once counted epochs and kept no losses
            state |= {"step": state["step"] * self.steps_per_epoch, "curve": [math.nan] * state["step"], "partial": []}
        check_fit(state, self.network, self.optimizer, steps=self.steps)


def param_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """What is trained, in two groups: kernels, which are decayed, and biases and norms, which are not."""
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    kernels, others = ([w for w in trained if (w.ndim > 1) is wanted] for wanted in (True, False))
    return [{"params": kernels, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
