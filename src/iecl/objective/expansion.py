"""The block's own entropy gain as a term of the objective: what a certified block adds to each picture."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl import counter
from iecl.errors import UserError
from iecl.meters.entropy_gain import EntropyGain
from iecl.objective.settings import ObjectiveSettings
from iecl.saib.certified import CertifiedSAIB
from iecl.schedule import Clock

STEPS = 8
"""Of Lanczos: with eigenvalues between 1 and 10 the quadrature is off by less than a thousandth of a nat."""


def check_expansion(block: nn.Module | None, settings: ObjectiveSettings) -> None:
    """Raise a `UserError` where the expansion is to be maximised and there is no block whose expansion is known."""
    if settings.expansion != "none" and not isinstance(block, CertifiedSAIB):
        raise UserError(
            "only a certified block has an expansion that can be maximised",
            where=f"objective.expansion = {settings.expansion}",
            do="saib.form = certified, or objective.expansion = none",
        )


def expansion(block: CertifiedSAIB, x: Float[Tensor, "n c h w"], stream: counter.Stream, clock: Clock) -> EntropyGain:
    """The gain of the block at these pictures and this noise, with gradient; new random signs at every step.

    One probe for each picture: the estimate is unbiased up to the truncation of Lanczos, and steps average its noise.
    The block's budget counts as fixed: it is spent anew after each optimiser step.
    """
    with torch.autocast(x.device.type, enabled=False):
        seed = counter.key(clock.seed, "expansion", clock.step)
        return block.entropy_gain(x.float(), stream, probes=1, steps=STEPS, seed=seed)


def mean_of(gains: Sequence[EntropyGain], part: str) -> Float[Tensor, ""]:
    """One part of the gain, mean over the views."""
    return torch.stack([getattr(gain, part) for gain in gains]).mean()
