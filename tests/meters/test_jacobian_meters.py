"""Volume and entropy change of maps: closed forms, exact against estimated, and what looking must not do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import iecl
from iecl.errors import UserError
from iecl.meters.entropy_gain import entropy_gain
from iecl.meters.jacobian import (
    Linearised,
    jacobian,
    log_abs_det,
    log_volume,
    singular_range,
    singular_values,
    stochastic_log_abs_det,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixing_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh()).double()


WEIGHT = draw(12, 12, seed=1) / 4 + torch.eye(12, dtype=torch.float64)


def bent(x: Tensor) -> Tensor:
    """A map of images of 3×2×2 that is neither linear nor symmetric."""
    flat = x.flatten(1) @ WEIGHT.T
    return (flat + 0.3 * torch.sin(flat)).reshape(x.shape)


def test_the_jacobian_is_that_of_torch() -> None:
    x = draw(2, 3, 2, 2)
    whole = torch.autograd.functional.jacobian(bent, x).reshape(2, 12, 2, 12)
    found = jacobian(bent, x, chunk=5)
    assert torch.allclose(found[0], whole[0, :, 0], atol=1e-12)
    assert torch.allclose(found[1], whole[1, :, 1], atol=1e-12)


def test_of_a_map_that_mixes_the_batch_the_jacobian_is_that_of_the_whole_batch() -> None:
    net, x = mixing_net().train(), draw(2, 3, 4, 4)
    whole = torch.autograd.functional.jacobian(net, x).reshape(1, 96, 96)
    assert torch.allclose(jacobian(net, x, is_mixing=True), whole, atol=1e-12)


def test_pushing_and_pulling_are_products_with_the_jacobian() -> None:
    x, seen = draw(2, 3, 2, 2), Linearised(bent, draw(2, 3, 2, 2))
    matrix, v = jacobian(bent, x), draw(2, 12, seed=5)
    assert torch.allclose(seen.push(v), torch.einsum("noi,ni->no", matrix, v), atol=1e-12)
    assert torch.allclose(seen.pull(v), torch.einsum("noi,no->ni", matrix, v), atol=1e-12)


def test_looking_at_a_module_changes_none_of_its_buffers() -> None:
    net = mixing_net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    log_abs_det(net, draw(2, 3, 4, 4), is_mixing=True)
    stochastic_log_abs_det(net, draw(2, 3, 4, 4), is_mixing=True, steps=3)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("scale", [2.0, -0.5])
def test_scaling_changes_the_log_determinant_by_its_logarithm_in_every_dimension(scale: float) -> None:
    assert log_abs_det(lambda x: scale * x, draw(2, 3, 2, 2)).tolist() == pytest.approx([12 * math.log(abs(scale))] * 2)


def test_a_shear_changes_no_volume() -> None:
    def shear(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], x[:, 1:] + x[:, :1].square()], 1)

    assert log_abs_det(shear, draw(2, 3, 2, 2)).tolist() == pytest.approx([0, 0], abs=1e-12)
    assert singular_values(shear, draw(2, 3, 2, 2))[:, 0].min() > 1


def test_exact_and_estimated_log_determinants_agree_within_the_stated_error() -> None:
    x = draw(8, 3, 2, 2)
    exact, found = log_abs_det(bent, x), stochastic_log_abs_det(bent, x, probes=64, steps=12)
    assert ((found.value - exact).abs() < 4 * found.standard_error + found.truncation).all()
    assert (found.standard_error < 0.5).all()


def test_a_map_without_determinant_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(
        UserError, match=r"from 12 to 4 numbers has no determinant \(log\|det J\|\); iecl.entropy.log_v"
    ):
        log_abs_det(lambda x: x[:, :1], draw(1, 3, 2, 2))


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), outputs=st.integers(1, 12))
def test_the_range_is_that_of_the_singular_values(seed: int, outputs: int) -> None:
    weight, x = draw(outputs, 12, seed=seed), draw(1, 12)
    found = singular_range(lambda x: x @ weight.T, x, steps=12)
    exact = torch.linalg.svdvals(weight)
    assert found.largest.item() == pytest.approx(exact[0].item(), rel=1e-6)
    assert found.smallest.item() == pytest.approx(exact[-1].item(), rel=1e-4, abs=1e-6)


def test_with_few_steps_the_range_is_inside_and_its_tolerance_holds_a_singular_value() -> None:
    weight, x = draw(80, 80), draw(1, 80)
    found, exact = singular_range(lambda x: x @ weight.T, x, steps=15), torch.linalg.svdvals(weight)
    assert exact[-1] <= found.smallest.item()
    assert found.largest.item() <= exact[0] + 1e-9
    ends = torch.stack([found.smallest, found.largest], 1)[0]
    nearest = (exact[:, None] - ends).abs().amin(0)
    assert (nearest <= found.tolerance[0] + 1e-9).all()


# --- the gain and its two parts ---


@pytest.mark.parametrize("ruler", ["images", "singular-values"])
@pytest.mark.parametrize("probes", [0, 2])
@settings(derandomize=True, deadline=None, max_examples=10)
@given(scale=st.floats(0.05, 20), shift=st.floats(-3, 3))
def test_a_map_that_only_scales_has_no_rest(ruler: str, probes: int, scale: float, shift: float) -> None:
    found = entropy_gain(lambda x: scale * x + shift, draw(2, 3, 2, 2), ruler=ruler, probes=probes)
    assert found.total.item() == pytest.approx(math.log(scale), abs=1e-9)
    assert found.rest.item() == pytest.approx(0, abs=1e-9)


def test_whitening_adds_entropy_at_equal_power_and_the_opposite_removes_it() -> None:
    # Columns of deviation 4 and 1/4; scaling each to 1 keeps the volume and lowers the power by 8.03 = (16 + 1/16) / 2.
    x = draw(4000, 1, 2) * torch.tensor([4.0, 0.25]).double()
    even = torch.tensor([0.25, 4.0]).double()
    added, removed = entropy_gain(lambda x: x * even, x), entropy_gain(lambda x: x / even, x)
    assert added.total.item() == pytest.approx(0, abs=1e-12)
    assert added.rest.item() == pytest.approx(math.log(8.03) / 2, abs=0.05)
    assert removed.rest.item() < -0.5


def test_by_singular_values_the_rest_is_minus_their_unevenness() -> None:
    # Singular values 4 and 1/4: geometric mean 1, root mean square sqrt(8.03125).
    found = entropy_gain(lambda x: x * torch.tensor([4.0, 0.25]).double(), draw(3, 1, 2), ruler="singular-values")
    assert found.rest.item() == pytest.approx(-math.log(8.03125) / 2)


def test_the_estimated_gain_lies_within_its_stated_error() -> None:
    x = draw(6, 3, 2, 2)
    exact, found = entropy_gain(bent, x), entropy_gain(bent, x, probes=40, steps=12)
    assert exact.standard_error.item() == 0
    assert abs(found.total - exact.total) < 4 * found.standard_error
    assert found.rescaling == exact.rescaling


def test_an_unknown_ruler_is_refused() -> None:
    with pytest.raises(UserError, match=r"no ruler is called 'feet' \(ruler\); one of: images, singular-values"):
        entropy_gain(lambda x: x, draw(1, 3, 2, 2), ruler="feet")


# --- encoders ---


@pytest.mark.parametrize(("outputs", "inputs"), [(3, 12), (12, 3), (5, 5)])
def test_the_log_volume_of_a_matrix_is_the_sum_of_its_log_singular_values(outputs: int, inputs: int) -> None:
    weight = draw(outputs, inputs)
    found = log_volume(lambda x: x @ weight.T, draw(2, inputs))
    assert found.value.tolist() == pytest.approx([torch.linalg.svdvals(weight).log().sum().item()] * 2)
    assert found.rank.tolist() == [min(outputs, inputs)] * 2


def test_a_square_map_has_the_log_volume_of_its_determinant() -> None:
    x = draw(2, 3, 2, 2)
    assert torch.allclose(log_volume(bent, x).value, log_abs_det(bent, x), atol=1e-9)


def test_destroyed_directions_lower_the_rank_and_are_left_out() -> None:
    # ReLU kills the second output of the first image: there only the first, of length 2, is left.
    weight = torch.tensor([[2.0, 0, 0], [0, 3, 0]], dtype=torch.float64)
    x = torch.tensor([[1.0, -1, 0], [1, 1, 0]], dtype=torch.float64)
    found = log_volume(lambda x: (x @ weight.T).relu(), x)
    assert found.rank.tolist() == [1, 2]
    assert found.value.tolist() == pytest.approx([math.log(2), math.log(6)])


def test_the_meters_are_reached_by_one_name() -> None:
    assert iecl.entropy.log_volume is log_volume
    assert {name for name in iecl.entropy.__all__ if not hasattr(iecl.entropy, name)} == set()


def test_in_32_bits_many_steps_stay_within_the_spectrum() -> None:
    # Singular values between 1.07 and 2.5, as a trained block has them: one Gram-Schmidt pass gave 0 and 7 here.
    turn = torch.linalg.qr(draw(200, 200, seed=3)).Q
    matrix = (turn * torch.linspace(1.07, 2.5, 200).double() @ turn.T).float()
    found = singular_range(lambda x: x @ matrix, torch.zeros(4, 200), steps=60)
    assert found.smallest.min().item() == pytest.approx(1.07, abs=0.01)
    assert found.largest.max().item() == pytest.approx(2.5, abs=0.01)


def test_a_start_that_sees_everything_at_once_adds_no_value_of_its_own() -> None:
    found = singular_range(lambda x: 3 * x, torch.zeros(2, 50), steps=10)
    assert found.smallest.tolist() == pytest.approx([3.0, 3.0])
    assert found.largest.tolist() == pytest.approx([3.0, 3.0])
