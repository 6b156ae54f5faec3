"""What the input block does to images: entropy gain, singular values, drift."""

from dataclasses import dataclass

import torch

from iecl import counter
from iecl.inspection.subject import Subject
from iecl.meters.entropy_gain import rms
from iecl.meters.jacobian import singular_range

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
    images = x[:FEW] if not block.is_mixing else x  # the determinant of a block that mixes is that of the whole batch
    stream = counter.Stream(subject.stream.key, subject.stream.positions[: len(images)])
    with torch.no_grad():
        gain = block.entropy_gain(images, stream, probes=PROBES, steps=LANCZOS)
    found = singular_range(block.at(stream), images, steps=RANGE_STEPS, is_mixing=block.is_mixing)
    change, proven = shaped - x, block.certificate(images, stream, exact=False)
    view, made = ((images - images.mean((1, 2, 3), keepdim=True)).flatten(1) for images in (x, shaped))
    return BlockReport(
        gain_total=gain.total.item(),
        gain_rescaling=gain.rescaling.item(),
        gain_rest=gain.rest.item(),
        gain_error=gain.standard_error.item(),
        sigma_min=found.smallest.min().item(),
        sigma_max=found.largest.max().item(),
        sigma_tolerance=found.tolerance.max().item(),
        proven_sigma_min=None if proven is None else proven.sigma_min.min().item(),
        drift_rms=(change.square().mean().sqrt() / rms(x)).item(),
        drift_largest=change.abs().max().item(),
        likeness=torch.cosine_similarity(view, made, dim=1).mean().item(),
    )
