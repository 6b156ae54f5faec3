"""What a Python program hears of its run while it trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from iecl.brought import at_hand_or
from iecl.methods.contract import Method

CALLBACKS = "object:callbacks"
EVENTS = ("on_step_end", "on_epoch_end", "on_checkpoint")


@dataclass(frozen=True)
class Moment:
    """Where a run stands; `on_step_end`, `on_epoch_end` and `on_checkpoint` of a callback are given one."""

    step: int
    """Optimizer steps that are done, from the first start of the run on."""
    steps: int
    epoch: int
    """From 0 on: the one that this step belongs to."""
    epochs: int
    run: Path
    """The run directory."""
    method: Method = field(repr=False)
    """What is trained; `method.encoder()` is the backbone. To change it is to change the run."""
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    """After a step: its terms, on the run's device. To ask for a number makes a GPU wait."""
    checkpoint: Path | None = None
    """Where `on_checkpoint` finds the file that was written."""


class Callbacks:
    """Those that the call was given; only the first process of a run calls them."""

    def __init__(self, is_first: bool) -> None:
        self._all: tuple[Any, ...] = at_hand_or(CALLBACKS, ()) if is_first else ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def call(self, event: str, moment: Moment) -> None:
        """Call the method of this name of each that has one; what it raises ends the run."""
        for one in self._all:
            listener = getattr(one, event, None)
            if listener is not None:
                listener(moment)
