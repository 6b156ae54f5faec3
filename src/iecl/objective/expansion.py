"""The block's own entropy gain: as a term of the objective, and as a reading for the log."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import counter
from iecl.errors import UserError
from iecl.estimators.precision import full_precision
from iecl.meters.entropy_gain import EntropyGain, entropy_gain
from iecl.objective.settings import ObjectiveSettings
from iecl.saib.certified import CertifiedSAIB
from iecl.saib.printed import SAIB
from iecl.schedule import Clock

STEPS = 8
"""Of Lanczos: with eigenvalues between 1 and 10 the quadrature is off by less than a thousandth of a nat."""

FEW_STEPS = 4
"""Of Lanczos for the printed block, whose products are expensive: 0.001 to 0.007 nats too high, measured."""


def check_expansion(block: nn.Module | None, settings: ObjectiveSettings) -> None:
    """Raise a `UserError` where the expansion is to be maximized and there is no block whose expansion is known."""
    if settings.expansion != "none" and not isinstance(block, CertifiedSAIB):
        raise UserError(
            "only a certified block has an expansion that can be maximized",
            where=f"objective.expansion = {settings.expansion}",
            do="saib.form = certified, or objective.expansion = none",
        )


@full_precision
def expansion(block: CertifiedSAIB, x: Float[Tensor, "n c h w"], stream: counter.Stream, clock: Clock) -> EntropyGain:
    """The gain of the block at these images and this noise, with gradient; new random signs at every step.

    One probe for each image: the estimate is unbiased up to the truncation of Lanczos, and steps average its noise.
    The block's budget counts as fixed: it is restored after each optimizer step.
    """
    seed = counter.key(clock.seed, "expansion", clock.step)
    return block.entropy_gain(x, stream, probes=1, steps=STEPS, seed=seed)


@torch.no_grad()
@full_precision
def block_gain(
    block: SAIB | CertifiedSAIB, x: Float[Tensor, "n c h w"], stream: counter.Stream, seed: int
) -> EntropyGain:
    """The same of any block, for the log: one probe, few images.

    The printed block mixes images, by its batch norm at least, so that its determinant is that of a whole batch.
    """
    if isinstance(block, CertifiedSAIB):
        return block.entropy_gain(x, stream, probes=1, steps=STEPS, seed=seed)
    return entropy_gain(block, x, probes=1, steps=FEW_STEPS, seed=seed, is_mixing=True)


def images_to_read(block: SAIB | CertifiedSAIB) -> int | None:
    """How many images of a batch `block_gain` needs; None: all of them."""
    if isinstance(block, CertifiedSAIB):
        return 8
    return None if block.form == "batch" else 32  # so many give its batch norm usual statistics


def readings_between(block: SAIB | CertifiedSAIB) -> int:
    """How rarely its gain is read: at every so many readings of the meters, to stay below 2 % of a run's time."""
    return 1 if isinstance(block, CertifiedSAIB) else 4


def mean_of(gains: Sequence[EntropyGain], part: str) -> Float[Tensor, ""]:
    """One part of the gain, mean over the views."""
    return torch.stack([getattr(gain, part) for gain in gains]).mean()
