"""The weights of a run's input block, as one of its checkpoints has them."""

from typing import Any

from torch import Tensor

from iecl.errors import UserError
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint, weights_in
from iecl.runs.directory import RunDirectory

PREFIX = "saib."
"""Where the state of a method keeps its block."""


def block_weights(run: RunDirectory, epoch: int | None = None) -> dict[str, Tensor]:
    """By name, of the newest checkpoint or of an epoch of `training.keep_epochs`.

    Raises:
        UserError: there is no such checkpoint.
    """
    found = weights_in(_state(run, epoch), str(run.checkpoints)).items()
    return {name.removeprefix(PREFIX): value for name, value in found if name.startswith(PREFIX)}


def _state(run: RunDirectory, epoch: int | None) -> dict[str, Any]:
    kept = run.kept_epochs()
    if epoch is not None and epoch not in kept:
        there = f"it kept {', '.join(map(str, kept))}" if kept else "it kept none"
        raise UserError(
            f"{run.path} kept no checkpoint of epoch {epoch}: {there}",
            where="epoch",
            do="leave it out for the newest, or train with training.keep_epochs",
        )
    state = latest_checkpoint(run.checkpoints) if epoch is None else None
    if state is None and kept:
        state = load_checkpoint(run.kept_checkpoint(kept[-1] if epoch is None else epoch))
    if state is None:
        raise UserError(f"{run.path} has no checkpoint", where="RUN", do="wait for its first one, or resume it")
    return state
