"""The input block of a run by itself: as it is now, or at a moment that the run kept."""

from pathlib import Path

from iecl.errors import UserError
from iecl.runs.directory import RunDirectory
from iecl.saib.contract import InputBlock
from iecl.saib.factory import make_saib
from iecl.training.block_weights import block_weights
from iecl.training.config import read_config
from iecl.training.factory import batch_per_process
from iecl.weights.file import load_into


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
    load_into(block, block_weights(found, epoch), str(found.checkpoints))
    return block.requires_grad_(False)
