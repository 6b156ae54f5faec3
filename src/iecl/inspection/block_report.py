"""What the input block does to images: entropy gain, singular values, drift."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iecl import counter
from iecl.inspection.subject import Block, Subject
from iecl.meters.entropy_gain import EntropyGain, entropy_gain, rms
from iecl.meters.jacobian import singular_range
from iecl.saib.certified import CertifiedSAIB

FEW, PROBES, LANCZOS = 8, 2, 12
RANGE_STEPS = 24


@dataclass(frozen=True)
class BlockReport:
    """In nats per dimension, singular values, and units of the normalized image."""

    gain_total: float
    gain_rescaling: float
    gain_rest: float
    gain_error: float
    sigma_min: float
    sigma_max: float
    sigma_tolerance: float
    """How far the ends of the spectrum may be from singular values."""
    proven_sigma_min: float | None
    """Of the certified block: no singular value is below this."""
    drift_rms: float
    """Size of the change over the size of the image."""
    drift_largest: float
    """The largest change of a pixel."""
    likeness: float
    """Mean cosine of an image and what the block makes of it, each about its mean."""


def report_block(subject: Subject) -> BlockReport | None:
    """Measure the block on query views; None where there is none."""
    block = subject.block
    if block is None:
        return None
    x = subject.views[1]
    shaped = subject.shaped(x)
    gain = _gain(block, x, subject.stream)
    smallest, largest, tolerance = _range(block, x, subject.stream)
    change, proven = shaped - x, None
    if isinstance(block, CertifiedSAIB):
        few = counter.Stream(subject.stream.key, subject.stream.positions[:FEW])
        proven = block.certificate(x[:FEW], few, exact=False).sigma_min.min().item()
    view, made = ((images - images.mean((1, 2, 3), keepdim=True)).flatten(1) for images in (x, shaped))
    return BlockReport(
        gain_total=gain.total.item(),
        gain_rescaling=gain.rescaling.item(),
        gain_rest=gain.rest.item(),
        gain_error=gain.standard_error.item(),
        sigma_min=smallest,
        sigma_max=largest,
        sigma_tolerance=tolerance,
        proven_sigma_min=proven,
        drift_rms=(change.square().mean().sqrt() / rms(x)).item(),
        drift_largest=change.abs().max().item(),
        likeness=torch.cosine_similarity(view, made, dim=1).mean().item(),
    )


def _gain(block: Block, x: Float[Tensor, "n c h w"], stream: counter.Stream) -> EntropyGain:
    if isinstance(block, CertifiedSAIB):
        few = counter.Stream(stream.key, stream.positions[:FEW])
        with torch.no_grad():
            return block.entropy_gain(x[:FEW], few, probes=PROBES, steps=LANCZOS)
    return entropy_gain(block, x, probes=PROBES, steps=LANCZOS, is_mixing=True)


def _range(block: Block, x: Float[Tensor, "n c h w"], stream: counter.Stream) -> tuple[float, float, float]:
    """Smallest and largest singular value over the images, and how far each may be from one."""
    if isinstance(block, CertifiedSAIB):
        few = counter.Stream(stream.key, stream.positions[:FEW])
        found = singular_range(lambda v: block.linearised(v, few)[0], x[:FEW], steps=RANGE_STEPS)
    else:
        found = singular_range(block, x, steps=RANGE_STEPS, is_mixing=True)
    return found.smallest.min().item(), found.largest.max().item(), found.tolerance.max().item()
