"""The certified block: no direction contracts, the budget is kept, the noise is a pure function."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.counter import Stream
from iecl.errors import UserError
from iecl.saib.certified import CertifiedSAIB


def block_with(seed: int, **choices: object) -> CertifiedSAIB:
    torch.manual_seed(seed)
    return CertifiedSAIB(image_size=8, patch_size=4, hidden_dim=8, **choices).double()


def jacobian(block: CertifiedSAIB, x: torch.Tensor, stream: Stream | None = None) -> torch.Tensor:
    whole = torch.autograd.functional.jacobian(lambda image: block(image, stream), x)
    return whole.reshape(x.numel(), x.numel())


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 10), budget=st.floats(0, 3), cascade=st.integers(1, 3))
def test_no_singular_value_is_below_one(seed: int, scale: float, budget: float, cascade: int) -> None:
    block = block_with(seed, budget=budget, cascade=cascade)
    x = scale * torch.randn(1, 3, 8, 8, dtype=torch.float64)
    stream = Stream(seed, torch.tensor([5]))
    block(x, stream)  # sets the gain
    sigma = torch.linalg.svdvals(jacobian(block, x, stream))
    assert sigma.min() >= 1 - 1e-9


def test_the_jacobian_of_one_layer_is_symmetric() -> None:
    block, x = block_with(1), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    block(x)
    matrix = jacobian(block.eval(), x)
    assert torch.allclose(matrix, matrix.T, atol=1e-12)


def test_an_activation_that_falls_somewhere_would_break_the_bound() -> None:
    # The same tied form with GELU, one unit whose slope is negative at this point: 1 + w² gelu'(-1) < 1.
    x, w = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True), 1.0
    y = x + w * torch.nn.functional.gelu(w * x)
    (slope,) = torch.autograd.grad(y, x)
    assert slope < 1


def test_the_change_is_held_at_the_budget_while_the_weights_grow() -> None:
    block, x = block_with(0, budget=0.3), torch.randn(16, 3, 8, 8, dtype=torch.float64)
    stream = Stream(1, torch.arange(16))
    block(x, stream)
    for layer in block.layers:
        layer.coarse.data *= 5
    block(x, stream)
    block.after_step()
    change = block(x, stream) - x
    assert change.square().mean().sqrt().item() == pytest.approx(0.3, rel=1e-6)


def test_the_gain_does_not_move_within_a_step() -> None:
    block = block_with(0)
    block(torch.randn(4, 3, 8, 8, dtype=torch.float64))
    before = block.layers[0].gain.clone()
    block(3 * torch.randn(4, 3, 8, 8, dtype=torch.float64))
    assert torch.equal(block.layers[0].gain, before)


def test_the_noise_of_an_image_depends_on_its_position_alone() -> None:
    block, x = block_with(0), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    whole = block(x, Stream(3, torch.tensor([10, 11, 12, 13])))
    alone = block(x[2:3], Stream(3, torch.tensor([12])))
    assert torch.allclose(whole[2:3], alone, atol=1e-12)
    assert not torch.allclose(whole, block(x, Stream(4, torch.tensor([10, 11, 12, 13]))), atol=1e-3)


def test_image_wide_noise_is_the_same_at_every_place() -> None:
    block = block_with(0, noise="image")
    flat = torch.zeros(2, 3, 8, 8, dtype=torch.float64)
    block(flat, Stream(0, torch.arange(2)))
    out = block(flat, Stream(0, torch.arange(2)))
    # On a constant image the patch map alone can make no difference between patches; inner pixels show it.
    assert torch.allclose(out[:, :, 1:3, 1:3], out[:, :, 5:7, 5:7], atol=1e-12)
    assert not torch.allclose(out[0], out[1], atol=1e-3)


def test_there_is_no_noise_outside_training() -> None:
    block, x = block_with(0), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    block(x)
    block.eval()
    assert torch.equal(block(x, Stream(1, torch.arange(2))), block(x, Stream(2, torch.arange(2))))


def test_a_patch_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(UserError, match=r"32×32 into patches of 5 .* 1, 2, 4, 8, 16, 32"):
        CertifiedSAIB(image_size=32, patch_size=5)


def test_an_image_of_another_size_is_an_error() -> None:
    with pytest.raises(UserError, match="built for 8×8 pixels, these images are 16×16"):
        CertifiedSAIB(image_size=8)(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"budget": -1.0}, "saib.budget is -1.0, it must be at least 0"),
        ({"noise": "pixels"}, r"saib.noise is 'pixels'.*did you mean pixel\?"),
        ({"image_size": (32, 48)}, r"image_size is \(32, 48\) \(CertifiedSAIB\); give the side of the images"),
    ],
)
def test_a_wrong_choice_is_refused(choice: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        CertifiedSAIB(**({"image_size": 32} | choice))
