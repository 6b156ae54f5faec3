"""The input block of a run by itself: as it is now, or at a moment that the run kept."""

from pathlib import Path
from typing import Any

from iecl.errors import UserError
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint, weights_in
from iecl.runs.directory import RunDirectory
from iecl.saib.contract import InputBlock
from iecl.saib.factory import make_saib
from iecl.training.config import read_config
from iecl.training.factory import batch_per_process
from iecl.weights.file import load_into

PREFIX = "saib."
"""Where the state of a method keeps its block."""


def load_block(run: Path | str, epoch: int | None = None) -> InputBlock:
    """The block of a run with its trained weights: normalized images in, images of the same shape out.

    It is in training mode, as during the run: the running statistics of a printed block mean nothing. Its weights take
    no gradient. A certified block draws noise from the `iecl.counter.Stream` that it is called with.

    Args:
        run: a run directory.
        epoch: an epoch of `training.keep_epochs`, 0 for the start; None: the newest checkpoint.

    Raises:
        UserError: the run has no block, or kept nothing of that epoch.
    """
    found = RunDirectory.existing(run)
    config = read_config(found)
    world = max(1, config.training.devices) * config.training.nodes
    block = make_saib(config.saib, image_size=config.data.image_size, batch=batch_per_process(config, world))
    if block is None:
        raise UserError(f"{found.path} has no block: its saib.form is none", where="RUN", do="train one with --saib")
    state, where = _state(found, epoch), str(found.checkpoints)
    weights = {name: value for name, value in weights_in(state, where).items() if name.startswith(PREFIX)}
    load_into(block, {name.removeprefix(PREFIX): value for name, value in weights.items()}, where)
    return block.requires_grad_(False)


def _state(run: RunDirectory, epoch: int | None) -> dict[str, Any]:
    kept = run.kept_epochs()
    if epoch is not None and epoch not in kept:
        there = f"it kept {', '.join(map(str, kept))}" if kept else "it kept none"
        raise UserError(
            f"{run.path} kept no checkpoint of epoch {epoch}: {there}",
            where="epoch",
            do="leave it out for the newest, or train with training.keep_epochs",
        )
    state = latest_checkpoint(run.checkpoints) if epoch is None else load_checkpoint(run.kept_checkpoint(epoch))
    if state is None:
        raise UserError(f"{run.path} has no checkpoint", where="RUN", do="wait for its first one, or resume it")
    return state
