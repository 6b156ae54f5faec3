"""How much is to be measured: what a question is told."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench.turns import summary

log = logging.getLogger("iecl.bench")
Content = dict[str, Any]
"""What a question found: `results` by name, and whatever else a reader may want to see again."""


def _forget(_: Content) -> None:
    """Nobody asked for what there is so far."""


@dataclass(frozen=True)
class Effort:
    """Rounds, size and images of a measurement."""

    is_quick: bool = False
    """Small sizes and few rounds: shows that everything runs, and is too small to be judged."""
    rounds: int = 0
    """Rounds that count; 0: as many as the question finds right."""
    data: Path | None = None
    """A folder of images; None: they are made."""
    keep: Callable[[Content], object] = _forget
    """Is told what was found so far, so that a long measurement that is broken off leaves something."""
    left_out: list[str] = field(default_factory=list)
    """What could not be measured here, and why."""

    def rounds_of(self, usual: int, quick: int = 2) -> int:
        """How many rounds count."""
        return self.rounds or (quick if self.is_quick else usual)

    def rows(self, found: Mapping[str, Sequence[float]], goals: Mapping[str, str] | None = None) -> Content:
        """The summary of each row, with the goal of those that have one; a quick form is not judged."""
        judged = {} if self.is_quick else goals or {}
        return {
            name: summary(values) | ({"goal": judged[name]} if name in judged else {}) for name, values in found.items()
        }

    def leave_out(self, what: str, why: object) -> None:
        """Say that a part cannot be measured here, once."""
        line = f"{what} ({why})"
        if line not in self.left_out:
            self.left_out.append(line)
            log.info("left out: %s", line)
