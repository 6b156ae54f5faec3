"""Norms of convolutions as operators: printed values, dense oracles, and how far the kernel's norm is from them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from iecl.errors import UserError
from iecl.estimators.convolution import Geometry, circular_norm, convolution_norm


def kernel_norm(weight: Tensor) -> float:
    return torch.linalg.matrix_norm(weight.flatten(1), ord=2).item()


def dense_norm(weight: Tensor, geometry: Geometry) -> float:
    """Largest singular value of the operator written out as a matrix."""
    inputs = weight.shape[1] * geometry.groups
    basis = torch.eye(inputs * geometry.height * geometry.width, dtype=weight.dtype)
    columns = geometry.push(weight, basis.reshape(-1, inputs, geometry.height, geometry.width))
    return torch.linalg.matrix_norm(columns.flatten(1), ord=2).item()


def test_the_kernel_of_ones_has_three_norms() -> None:
    ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    assert kernel_norm(ones) == pytest.approx(3)
    assert circular_norm(ones, 16, 16).item() == pytest.approx(9)
    assert convolution_norm(ones, Geometry(16, 16, padding=(1, 1))).item() == pytest.approx(8.79683685, abs=1e-6)


def test_a_kernel_that_copies_has_norm_one_in_every_sense() -> None:
    delta = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    delta[..., 1, 1] = 1
    norms = [kernel_norm(delta), circular_norm(delta, 8, 8), convolution_norm(delta, Geometry(8, 8, padding=(1, 1)))]
    assert [float(norm) for norm in norms] == pytest.approx([1, 1, 1])


def test_for_kernels_of_one_pixel_all_norms_are_equal() -> None:
    weight = torch.randn(5, 4, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert circular_norm(weight, 6, 6).item() == pytest.approx(kernel_norm(weight))
    assert convolution_norm(weight, Geometry(6, 6), 500).item() == pytest.approx(kernel_norm(weight), rel=1e-4)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    size=st.tuples(st.integers(5, 7), st.integers(5, 7)),
)
def test_the_power_iteration_finds_the_norm_of_the_written_out_operator(
    seed: int, stride: int, padding: int, dilation: int, groups: int, size: tuple[int, int]
) -> None:
    weight = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    geometry = Geometry(*size, (stride, stride), (padding, padding), (dilation, dilation), groups)
    found, exact = convolution_norm(weight, geometry, 300).item(), dense_norm(weight, geometry)
    assert found <= exact * (1 + 1e-9)
    assert found == pytest.approx(exact, rel=0.01)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_operator_lies_between_the_kernels_norm_and_its_side_times_that(seed: int) -> None:
    weight = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    padded = dense_norm(weight, Geometry(6, 6, padding=(1, 1)))
    assert padded <= circular_norm(weight, 8, 8).item() + 1e-9  # the proof of the certificate rests on this
    assert kernel_norm(weight) <= padded + 1e-9
    assert padded <= 3 * kernel_norm(weight) + 1e-9


def test_of_default_layers_the_kernel_says_too_little() -> None:
    # 64×3×3×3 by torch's own initialization on 16×16: 1.38 by the kernel, 3.29 circular, 3.26 with zeros around.
    torch.manual_seed(0)
    weight = nn.Conv2d(3, 64, 3).weight.detach().double()
    ratio = circular_norm(weight, 16, 16).item() / kernel_norm(weight)
    assert 1.8 < ratio < 3


def test_the_circular_norm_has_a_gradient() -> None:
    weight = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: circular_norm(w, 5, 5), (weight,))


@pytest.mark.parametrize("choices", [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}])
def test_other_paddings_are_refused(choices: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"only for padding with a number of zeros \(a convolution with .* = kernel"):
        Geometry.of(nn.Conv2d(1, 1, 3, **choices), 8, 8)
