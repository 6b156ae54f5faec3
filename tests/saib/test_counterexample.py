"""What the paper claims of its block and what is so: with the meters, on the form that the `paper` preset has."""

import math

import pytest
import torch
from torch import Tensor

from iecl.entropy import EntropyGain, entropy_gain
from iecl.saib.printed import SAIB

SEEDS = range(6)


def smooth(seed: int) -> Tensor:
    noise = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 3 * torch.nn.functional.avg_pool2d(noise, 3, 1, 1)


def gain(seed: int, *skips: str) -> EntropyGain:
    """Of a fresh printed block with Kaiming weights, exactly; the batch is one point."""
    torch.manual_seed(seed)
    block = SAIB(image_size=8, batch=4, patch_size=4, skips=skips)
    for part in block.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
    return entropy_gain(block.double(), smooth(seed), is_mixing=True)


def test_the_determinant_of_a_printed_block_is_often_below_one() -> None:
    # The paper: |det J| > 1 almost everywhere. benchmarks/printed_block.py counts over more cases.
    totals = [gain(seed, "image").total.item() for seed in SEEDS]
    assert sum(total < 0 for total in totals) >= 2
    assert max(abs(total) for total in totals) < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_with_all_skips_the_gain_is_that_of_doubling_and_nothing_is_left(seed: int) -> None:
    found = gain(seed, "inner", "stack", "image")
    assert found.total.item() == pytest.approx(math.log(2), abs=0.07)
    assert found.rescaling.item() > 0.9 * math.log(2)
    assert found.rest.item() < 0.05
