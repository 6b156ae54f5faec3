"""Time in a run, and values that change over it as pure functions of that time."""

import math
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


def warm_cosine(clock: Clock, warmup: int, floor: float = 0.0) -> float:
    """Share of the peak learning rate: linear over the first `warmup` steps, then a half cosine down to `floor`.

    The first step already moves: step 0 has 1 / warmup of the peak.
    """
    if clock.step < warmup:
        return (clock.step + 1) / warmup
    way = (clock.step - warmup) / max(1, clock.steps - warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, way))) / 2
