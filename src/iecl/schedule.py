"""Time in a run, and values that change over it as pure functions of that time."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from iecl.settings import setting


@dataclass(frozen=True)
class Clock:
    """Where a run stands: `step` counts optimizer steps already taken, of `steps` in all."""

    seed: int
    step: int
    steps: int
    epoch: int
    epochs: int

    @property
    def share(self) -> float:
        """How much of the run is over, from 0 to 1."""
        return min(1.0, self.step / self.steps) if self.steps else 1.0


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """A value that goes from `start` to `end` over a run.

    >>> half = Clock(seed=0, step=50, steps=100, epoch=0, epochs=1)
    >>> round(Ramp(start=0.996, end=1.0, shape="cosine").at(half), 6)
    0.998
    """

    start: float = setting(1.0, "value at the first step")
    end: float = setting(1.0, "value at the last step")
    shape: str = setting("cosine", "how it moves from one to the other", choices=("linear", "cosine"))

    @classmethod
    def constant(cls, value: float) -> "Ramp":
        """A ramp that does not move."""
        return cls(start=value, end=value)

    def at(self, clock: Clock) -> float:
        """The value at this time."""
        way = clock.share if self.shape == "linear" else (1 - math.cos(math.pi * clock.share)) / 2
        return self.start + (self.end - self.start) * way


# --- learning rates: shares of the peak, after `warmup` steps


def constant(clock: Clock, warmup: int) -> float:
    """The peak to the end."""
    return 1.0


def cosine(clock: Clock, warmup: int) -> float:
    """Half a cosine from the end of the warm-up to 0."""
    way = (clock.step - warmup) / max(1, clock.steps - warmup)
    return (1 + math.cos(math.pi * min(1.0, way))) / 2


def multistep(clock: Clock, warmup: int) -> float:
    """A tenth after 3/4 of all steps and a hundredth after 11/12, as 18k and 22k of MoCo's 24k steps for detection.

    >>> [multistep(Clock(0, step, 12, 0, 1), warmup=0) for step in (0, 8, 9, 11)]
    [1.0, 1.0, 0.1, 0.01]
    """
    return 0.01 if 12 * clock.step >= 11 * clock.steps else 0.1 if 4 * clock.step >= 3 * clock.steps else 1.0


def poly(clock: Clock, warmup: int) -> float:
    """The share of all steps that is left, to the power of 0.9, as in DeepLab."""
    return float((1 - clock.step / clock.steps) ** 0.9)


LR_SCHEDULES: dict[str, Callable[[Clock, int], float]] = {
    "constant": constant,
    "multistep": multistep,
    "poly": poly,
    "cosine": cosine,
}


def lr_factor(clock: Clock, schedule: str = "cosine", *, warmup: int = 0, floor: float = 0.0) -> float:
    """Share of the peak learning rate: linear over the first `warmup` steps, then the schedule, between `floor` and 1.

    The first step already moves: step 0 has 1 / warmup of the peak.
    """
    if clock.step < warmup:
        return (clock.step + 1) / warmup
    return floor + (1 - floor) * LR_SCHEDULES[schedule](clock, warmup)
