"""What constraints on an encoder do to the volume that it keeps, read by the meters."""

import math

import pytest
import torch
from torch import Tensor, nn

from iecl.entropy import log_volume
from iecl.losses.orthogonality import orthogonality, restricted_isometry, sigma_min_hinge
from iecl.parts.spectral_norm import input_sizes, normalize_convolutions


def encoder(scale: float = 1.0, batch_norm: bool = True) -> nn.Sequential:
    """Two convolutions to 6 features; without batch norm a positive homogeneous function of its kernels."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 6, 3, stride=2, bias=False)
    first.weight.data *= scale
    norms = [nn.BatchNorm2d(8), nn.BatchNorm2d(6)] if batch_norm else [nn.Identity(), nn.Identity()]
    parts = (first, norms[0], nn.Softplus(), second, norms[1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*parts).double()


def images(count: int = 3, side: int = 6) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def normalize(module: nn.Module, norm: str) -> None:
    normalize_convolutions(module, input_sizes(module, 6) if norm == "operator" else None)


@pytest.mark.parametrize("norm", ["kernel", "operator"])
def test_before_a_batch_norm_in_training_spectral_norm_keeps_the_volume_as_it_is(norm: str) -> None:
    module, x = encoder(), images()
    before = module(x), log_volume(module, x, is_mixing=True)
    normalize(module, norm)
    # Only the epsilon of batch norm, 1e-5 beside a variance, sees the scale.
    assert torch.allclose(module(x), before[0], atol=1e-2)
    after = log_volume(module, x, is_mixing=True)
    assert after.rank.tolist() == before[1].rank.tolist()
    assert (after.value / after.rank).item() == pytest.approx((before[1].value / before[1].rank).item(), abs=2e-3)


@pytest.mark.parametrize("norm", ["kernel", "operator"])
def test_with_fixed_statistics_spectral_norm_shrinks_the_volume_of_large_kernels(norm: str) -> None:
    module, x = encoder(scale=10.0).eval(), images()
    before = log_volume(module, x).value
    normalize(module, norm)
    assert (log_volume(module, x).value < before - 1).all()


def test_the_operator_norm_shrinks_more_than_the_kernels() -> None:
    values = {}
    for norm in ("kernel", "operator"):
        module = encoder(scale=10.0).eval()
        normalize(module, norm)
        values[norm] = log_volume(module, images()).value.mean().item()
    assert values["operator"] < values["kernel"] - 0.5


def descend(penalty: object, scale: float) -> tuple[float, float]:
    """Log-volume for each direction before and after a penalty was descended alone, without batch norm."""
    assert callable(penalty)
    module, x = encoder(scale, batch_norm=False), images()
    kernels = [part.weight for part in module if isinstance(part, nn.Conv2d)]
    optimizer, readings = torch.optim.Adam(kernels, lr=0.02), [log_volume(module, x).value.mean().item() / 6]
    for _ in range(80):
        penalty(kernels).backward()
        optimizer.step()
        optimizer.zero_grad()
    readings.append(log_volume(module, x).value.mean().item() / 6)
    return readings[0], readings[1]


@pytest.mark.parametrize(
    "penalty", [orthogonality, restricted_isometry, lambda kernels: sigma_min_hinge(kernels, 1.0)], ids=["o", "r", "s"]
)
def test_every_penalty_raises_the_volume_of_a_layer_with_small_singular_values(penalty: object) -> None:
    before, after = descend(penalty, scale=0.05)
    assert after > before + math.log(2)


def test_large_singular_values_are_cut_by_orthogonality_and_left_alone_by_the_hinge() -> None:
    cut, left = descend(orthogonality, scale=8.0), descend(lambda kernels: sigma_min_hinge(kernels, 1.0), scale=8.0)
    assert cut[1] < cut[0] - 0.5
    assert left[1] >= left[0]
