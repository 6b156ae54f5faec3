import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from iecl.errors import UserError
from iecl.estimators.convolution import Geometry, convolution_norm
from iecl.parts.momentum_copy import MomentumCopy
from iecl.parts.spectral_norm import SpectralScale, fold, follow_kernels, input_sizes, normalize_convolutions, sizes_in


def convolutions(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False))


def norms(module: nn.Module) -> list[float]:
    """Largest singular value of each effective kernel, reshaped to a matrix."""
    kernels = [part.weight for part in module.modules() if isinstance(part, nn.Conv2d)]
    return [torch.linalg.matrix_norm(kernel.flatten(1), ord=2).item() for kernel in kernels]


def train(module: nn.Module, copy: MomentumCopy | None, steps: int) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    x = torch.randn(4, 3, 8, 8)
    for _ in range(steps):
        module(x).square().mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()
        follow_kernels(module)
        if copy is not None:
            copy.follow(module, keep=0.9)


def test_every_kernel_has_norm_one_from_the_start_and_after_training() -> None:
    module = convolutions()
    assert normalize_convolutions(module) == 2
    assert norms(module) == pytest.approx([1, 1], abs=0.01)
    train(module, None, 200)
    assert norms(module) == pytest.approx([1, 1], abs=0.01)


def test_the_momentum_copy_keeps_the_bound_in_training_and_in_evaluation() -> None:
    module = convolutions()
    normalize_convolutions(module)
    copy = MomentumCopy(module)
    train(module, copy, 300)
    assert norms(copy) == pytest.approx([1, 1], abs=0.02)
    assert norms(copy.eval()) == pytest.approx([1, 1], abs=0.02)


def test_reading_a_weight_changes_nothing() -> None:
    module = convolutions().train()
    normalize_convolutions(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, second = module[0].weight, module[0].weight
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_two_forward_passes_and_one_backward_work_while_the_vectors_move() -> None:
    module = convolutions()
    normalize_convolutions(module)
    first = module(torch.randn(2, 3, 8, 8))
    follow_kernels(module)
    (first.sum() + module(torch.randn(2, 3, 8, 8)).sum()).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_the_gradient_is_that_of_the_kernel_over_its_norm() -> None:
    module = nn.Conv2d(2, 3, 1, bias=False).double()
    kernel = module.weight.detach().clone().requires_grad_()
    normalize_convolutions(module)
    follow_kernels(module, 200)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    module(x).square().sum().backward()
    exact = kernel / torch.linalg.matrix_norm(kernel.flatten(1), ord=2)
    nn.functional.conv2d(x, exact).square().sum().backward()
    assert torch.allclose(module.parametrizations.weight.original.grad, kernel.grad, atol=1e-9)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(5, 3, 3, 2), (4, 6, 1, 1), (3, 1, 3, 3), (1, 4, 2, 2)])
def test_first_and_second_derivatives_are_right_however_the_kernel_lies_in_memory(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    kernel = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    scale = SpectralScale(kernel)
    norm = torch.linalg.matrix_norm(kernel.flatten(1), ord=2)
    assert torch.allclose(scale(kernel), kernel / norm, rtol=0.02)
    assert torch.autograd.gradcheck(scale, kernel)
    assert torch.autograd.gradgradcheck(scale, kernel)


def test_the_vectors_are_the_same_however_the_kernel_lies_in_memory() -> None:
    kernel = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    one, other = SpectralScale(kernel), SpectralScale(kernel.contiguous(memory_format=torch.channels_last))
    assert torch.allclose(one.u, other.u)
    assert torch.allclose(one.v, other.v)


def test_folding_gives_plain_names_and_the_same_function() -> None:
    module, x = convolutions().eval(), torch.randn(2, 3, 8, 8)
    plain_names = list(module.state_dict())
    normalize_convolutions(module)
    before = module(x)
    fold(module)
    assert sorted(module.state_dict()) == sorted(plain_names)
    assert not any(parametrize.is_parametrized(part) for part in module.modules())
    assert torch.equal(module(x), before)


def test_state_survives_saving_and_loading() -> None:
    first, second = convolutions(0), convolutions(1)
    normalize_convolutions(first)
    normalize_convolutions(second)
    train(first, None, 5)
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(first(x), second(x))


def test_a_zero_kernel_is_refused() -> None:
    module = convolutions()
    nn.init.zeros_(module[2].weight)
    with pytest.raises(UserError, match="zero weights cannot be normalized"):
        normalize_convolutions(module)


def test_before_a_batch_norm_in_training_it_changes_nothing_in_the_function() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)).train()
    x = torch.randn(8, 3, 8, 8)
    before = module(x)
    normalize_convolutions(module)
    assert torch.allclose(module(x), before, atol=1e-3)  # only batch norm's epsilon sees the scale


# --- the norm of the operator ---


def operator_norms(module: nn.Module, image_size: int) -> list[float]:
    """Norm of each convolution with its effective kernel, at the size of its input."""
    sizes = input_sizes(module, image_size)
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Conv2d)]
    return [
        convolution_norm(part.weight.detach().double(), Geometry.of(part, *sizes[name]), 1000).item()
        for name, part in layers
    ]


def test_normalized_as_operators_convolutions_lengthen_nothing_and_stay_so_in_training() -> None:
    module = convolutions()
    normalize_convolutions(module, input_sizes(module, 8))
    assert operator_norms(module, 8) == pytest.approx([1, 1], abs=0.03)
    train(module, None, 100)
    assert operator_norms(module, 8) == pytest.approx([1, 1], abs=0.05)  # it follows steps of 0.02 at a distance
    assert norms(module)[0] < 0.9  # the kernel's own norm is the smaller one


def test_normalized_by_their_kernels_convolutions_still_lengthen() -> None:
    module = convolutions()
    normalize_convolutions(module)
    assert operator_norms(module, 8)[0] > 1.3


def test_a_momentum_copy_keeps_the_norm_of_the_operator_too() -> None:
    module = convolutions()
    sizes = input_sizes(module, 8)
    normalize_convolutions(module, sizes)
    copy = MomentumCopy(module)
    train(module, copy, 100)
    assert operator_norms(copy.parts[0], 8) == pytest.approx([1, 1], abs=0.05)


def test_sizes_of_an_encoder_serve_its_copies_by_the_end_of_their_names() -> None:
    pair = nn.ModuleDict({"online": convolutions(), "copy": convolutions()})
    assert normalize_convolutions(pair, {"0": (8, 8), "2": (8, 8)}) == 4


def test_the_sizes_of_a_checkpoint_are_read_from_its_vectors() -> None:
    module = convolutions()
    normalize_convolutions(module, input_sizes(module, 8))
    again = convolutions(1)
    normalize_convolutions(again, sizes_in(module.state_dict()), iterations=0)
    again.load_state_dict(module.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(again(x), module(x))
    assert sizes_in(convolutions().state_dict()) is None


def test_a_convolution_of_unknown_size_is_refused() -> None:
    with pytest.raises(UserError, match=r"what the convolution 2 reads is not known \(.* = operator\); .* = kernel"):
        normalize_convolutions(convolutions(), {"0": (8, 8)})
