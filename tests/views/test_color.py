import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from iecl.views import color

quick = settings(derandomize=True, deadline=None, max_examples=25)
Adjust = Callable[[Tensor, float], Tensor]
THEIRS: tuple[Adjust, ...] = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
FACTORS = ((0.2, 1.0, 1.8), (0.2, 1.0, 1.8), (0.0, 1.0, 1.8), (-0.5, 0.13, 0.2))


@pytest.mark.parametrize("number", range(4), ids=["brightness", "contrast", "saturation", "hue"])
def test_an_operation_agrees_with_torchvision_row_by_row(drawn_images: Tensor, number: int) -> None:
    images, factors = drawn_images.float() / 255, torch.tensor(FACTORS[number]).repeat(4)
    ours = color.OPERATIONS[number](images, factors)
    theirs = torch.stack([THEIRS[number](x, f.item()) for x, f in zip(images, factors, strict=True)])
    # Hue divides by the range of a pixel's channels, a hundredth at the least here: 1e-7 may grow to 1e-5.
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_luma_agrees_with_torchvisions_grayscale(drawn_images: Tensor) -> None:
    images = drawn_images.float() / 255
    assert torch.allclose(color.luma(images), tv.rgb_to_grayscale(images), atol=1e-6)


def test_jitter_follows_each_rows_own_order(drawn_images: Tensor) -> None:
    images = drawn_images.float() / 255
    order = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]]).repeat(3, 1)
    factors = torch.tensor([[1.7, 0.3, 1.6, 0.2], [0.4, 1.8, 0.3, -0.2], [1.3, 1.3, 1.3, 0.1]]).repeat(4, 1)

    def slowly(x: Tensor, numbers: list[int], amounts: list[float]) -> Tensor:
        for number in numbers:
            x = THEIRS[number](x, amounts[number])
        return x

    expected = [slowly(x, o.tolist(), f.tolist()) for x, o, f in zip(images, order, factors, strict=True)]
    color.jitter_(images, torch.ones(12, dtype=torch.bool), order, factors)
    assert torch.allclose(images, torch.stack(expected), atol=1e-4)


def test_jitter_leaves_alone_what_is_not_wanted(drawn_images: Tensor) -> None:
    images, before = drawn_images.float() / 255, drawn_images.float() / 255
    wanted = torch.arange(12) % 3 == 0
    color.jitter_(images, wanted, torch.arange(4).repeat(12, 1), torch.full((12, 4), 0.4))
    assert (images != before).flatten(1).any(dim=1).tolist() == wanted.tolist()


@quick
@given(channels=st.tuples(*[st.floats(0, 1, width=32)] * 3), turn=st.floats(-0.5, 0.5))
def test_hue_keeps_the_greatest_and_least_channel(channels: tuple[float, float, float], turn: float) -> None:
    pixel = torch.tensor(channels).view(1, 3, 1, 1)
    turned = color.hue(pixel, torch.tensor([turn]))
    assert turned.max().item() == pytest.approx(pixel.max().item(), abs=1e-5)
    assert turned.min().item() == pytest.approx(pixel.min().item(), abs=1e-5)


@pytest.mark.parametrize("sixths", range(-3, 4))
def test_six_sixths_of_a_turn_visit_the_pure_colors(sixths: int) -> None:
    # Red, yellow, green, cyan, blue, magenta.
    circle = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]]
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    turned = color.hue(red, torch.tensor([sixths / 6])).flatten().tolist()
    assert turned == pytest.approx(circle[sixths % 6], abs=1e-5)


def test_a_gray_pixel_has_no_hue_to_turn() -> None:
    grays = torch.linspace(0, 1, 11).view(11, 1, 1, 1).expand(-1, 3, -1, -1)
    assert torch.equal(color.hue(grays, torch.linspace(-0.5, 0.5, 11)), grays)


@quick
@given(number=st.integers(0, 3), factor=st.floats(0, 2), seed=st.integers(0, 9))
def test_operations_stay_within_zero_and_one(number: int, factor: float, seed: int) -> None:
    images = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    amount = torch.full((2,), factor if number < 3 else math.fmod(factor, 0.5))
    changed = color.OPERATIONS[number](images, amount)
    assert changed.min() >= 0
    assert changed.max() <= 1 + 1e-6
