"""What the numbers of an inspection say, one sentence each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from iecl.inspection.block_report import BlockReport
from iecl.inspection.layer_report import Stage

NOTICED = 0.05
"""Nats: a smaller fall from one stage to the next is not worth a sentence."""


def findings(
    block: BlockReport | None, stages: Sequence[Stage], embedding: Mapping[str, float], images: int
) -> list[str]:
    """Of the block first, then along the encoder."""
    return [*(_of_block(block) if block else _of_no_block()), *_of_encoder(stages, embedding, math.log(images - 1))]


def _of_no_block() -> Iterator[str]:
    yield "there is no input block: nothing is added to the entropy of a view before the encoder"


def _of_block(block: BlockReport) -> Iterator[str]:
    yield (
        f"the block adds {block.gain_total:.3f} ± {block.gain_error:.3f} nats per dimension, "
        f"{block.gain_rescaling:.3f} of them by rescaling and {block.gain_rest:.3f} at equal power"
    )
    ends = f"singular values from {block.sigma_min:.3f} to {block.sigma_max:.3f}"
    if block.proven_sigma_min is not None:
        what = "contracts nothing" if block.proven_sigma_min >= 1 else "folds no image onto another"
        yield f"it {what}: {ends}, and that none is below {block.proven_sigma_min:.3f} is proved"
    elif block.sigma_min < 1:
        yield f"it contracts some directions: {ends}"
    else:
        yield f"it contracted no direction that was tried: {ends}"
    yield f"it changes a view by {100 * block.drift_rms:.0f} % of its size; likeness {block.likeness:.3f}"


def _of_encoder(stages: Sequence[Stage], embedding: Mapping[str, float], most: float) -> Iterator[str]:
    first, last = stages[0], stages[-1]
    pooled = stages[-2].pooled_entropy
    pairs = [(before, after, before.entropy) for before, after in pairwise(stages)]
    if pooled is not None:  # a map has numbers for every place, the features have one for all: compare like with like
        pairs[-1] = (stages[-2], last, pooled)
    before, after, had = max(pairs, key=lambda pair: pair[2] - pair[1].entropy)
    if had - after.entropy > NOTICED:
        lost = f"{had:.2f} to {after.entropy:.2f} of {most:.2f} nats"
        yield f"most entropy is lost between {before.name} and {after.name}: {lost}"
    else:
        yield f"no stage loses entropy: {first.entropy:.2f} nats in the images, {last.entropy:.2f} in the features"
    if pooled is not None:
        maps = stages[-2]
        yield (
            f"pooling the maps of {maps.name}, {maps.units:,} numbers, leaves {pooled:.2f} of {maps.entropy:.2f} nats"
        )
    if last.block_entropy is not None:
        kept = last.block_entropy - last.view_entropy
        yield f"of what the block does {kept:+.2f} nats are left in the features of the views"
    yield (
        f"features use {embedding['effective_rank']:.0f} of {last.units} directions; two views of an image are "
        f"{last.view_distance:.2f} times as far apart as two images"
    )
