"""Checks of the block that take minutes: ten thousand cases, and determinants of whole images written out."""

import pytest
import torch
from benchmarks.certificate import CASES, IMAGES, ROUNDING, compared, make

from iecl.entropy import log_abs_det, stochastic_log_abs_det
from iecl.saib.certified import CertifiedSAIB


@pytest.mark.slow
def test_ten_thousand_random_cases_violate_no_bound() -> None:
    worst: dict[str, float] = {}
    for seed in range(CASES // IMAGES):
        for name, margin in compared(*make(seed)).items():
            worst[name] = min(worst.get(name, 1.0), margin.min().item())
    assert {name for name, margin in worst.items() if margin < -ROUNDING} == set()


@pytest.mark.slow
def test_exact_and_estimated_determinants_of_a_whole_image_of_32_pixels_agree() -> None:
    torch.manual_seed(0)
    block, x = CertifiedSAIB(image_size=32).double(), torch.randn(1, 3, 32, 32, dtype=torch.float64)
    block(x)
    block.eval()
    dense = log_abs_det(block, x)  # 3072 × 3072 numbers
    assert torch.allclose(block.certificate(x).exact_log_det, dense, rtol=1e-9)
    for found in (block.log_det(x, probes=8), stochastic_log_abs_det(block, x, probes=8, steps=15)):
        assert (found.value - dense).abs() < 4 * found.standard_error + found.truncation
