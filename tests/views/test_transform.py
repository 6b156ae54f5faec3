from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from iecl.views.params import ViewParams, draw, whole
from iecl.views.policies import POLICIES
from iecl.views.transform import apply

pytestmark = pytest.mark.usefixtures("path")  # every test here twice: by compiled loops and by tensor operations
Maker = Callable[[int, int, int], Tensor]
quick = settings(derandomize=True, deadline=None, max_examples=25)
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
ADJUST = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)


def sizes_of(images: Tensor) -> Tensor:
    return torch.tensor(images.shape[2:]).repeat(len(images), 1)


def drawn_for(images: Tensor, name: str, view: int = 0) -> ViewParams:
    policy = POLICIES[name][view % len(POLICIES[name])]
    return draw(policy, sizes_of(images), torch.arange(len(images)), seed=0, epoch=0, view=view)


def one_by_one(image: Tensor, drawn: ViewParams, row: int, size: int, kernel: int) -> Tensor:
    """A single view by torchvision's functions: slow, and written down from its documentation."""
    height, width = image.shape[1:]
    box = (drawn.box[row] * torch.tensor([height, width, height, width])).round().int().tolist()
    x = tv.resized_crop(image.float() / 255, *box, [size, size], antialias=True)
    x = tv.hflip(x) if drawn.flip[row] else x
    amounts = [values[row].item() for values in (drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue)]
    for number in drawn.order[row].tolist() if drawn.jitter[row] else []:
        x = ADJUST[number](x, amounts[number])
    x = tv.rgb_to_grayscale(x, num_output_channels=3) if drawn.gray[row] else x
    sigma = drawn.blur_sigma[row].item()
    return tv.gaussian_blur(x, [kernel, kernel], [sigma, sigma]) if sigma else x


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("view", [0, 1])
def test_a_whole_view_agrees_with_torchvisions_functions(make_images: Maker, name: str, view: int) -> None:
    images = make_images(24, 30, 26)
    drawn = replace(drawn_for(images, name, view), solarize=torch.zeros(24, dtype=torch.bool))
    expected = torch.stack([one_by_one(image, drawn, row, 48, 5) for row, image in enumerate(images)])
    # Hue is steep where a pixel is almost gray, so the crop's 1e-6 may grow a little.
    assert torch.allclose(apply(images, drawn, 48, **PLAIN), expected, atol=1e-3)


def test_solarization_inverts_from_128_on() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    drawn = replace(whole(sizes_of(ramp)), solarize=torch.tensor([True, False]))
    views = (apply(ramp, drawn, 16, **PLAIN) * 255).round().to(torch.uint8)
    assert torch.equal(views[0], tv.solarize(ramp[0], threshold=128))
    assert torch.equal(views[1], ramp[1])


def test_gray_then_blur_then_solarize_is_the_order(make_images: Maker) -> None:
    images = make_images(1, 20, 20)
    yes = torch.tensor([True])
    drawn = replace(whole(sizes_of(images)), gray=yes, blur_sigma=torch.tensor([1.5]), solarize=yes)
    expected = tv.gaussian_blur(tv.rgb_to_grayscale(images.float() / 255, num_output_channels=3), [3, 3], [1.5, 1.5])
    view = apply(images, drawn, 20, **PLAIN)
    sure = (expected - 128 / 255).abs() > 1e-4  # nearer to the threshold rounding decides
    assert torch.allclose(view[sure], tv.solarize(expected, threshold=128 / 255)[sure], atol=1e-5)
    assert sure.float().mean() > 0.9


def test_the_view_is_normalized_by_channel() -> None:
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1).repeat(1, 1, 4, 4)
    view = apply(image, whole(sizes_of(image)), 2, mean=(0.5, 0.1, 0.25), std=(0.25, 0.2, 0.5))
    # (0 - 0.5) / 0.25, (0.2 - 0.1) / 0.2, (1 - 0.25) / 0.5
    assert view[0, :, 0, 0].tolist() == pytest.approx([-2, 0.5, 1.5], abs=1e-5)
    assert view.dtype == torch.float32


def test_the_images_themselves_are_not_touched(drawn_images: Tensor) -> None:
    before = drawn_images.clone()
    apply(drawn_images, drawn_for(drawn_images, "byol", view=1), 20, **PLAIN)
    assert torch.equal(drawn_images, before)


@pytest.mark.parametrize("name", POLICIES)
def test_a_view_is_the_same_alone_and_in_any_batch(make_images: Maker, name: str) -> None:
    images = make_images(10, 24, 24)
    drawn, rows = drawn_for(images, name, view=1), torch.tensor([7, 2, 9])
    together = apply(images, drawn, 24, **PLAIN)
    some = apply(images[rows], drawn.take(rows), 24, **PLAIN)
    alone = apply(images[7:8], drawn.take(torch.tensor([7])), 24, **PLAIN)
    # A matrix product of another batch may add in another order; solarization could flip such a last bit, not here.
    assert torch.allclose(some, together[rows], atol=1e-5)
    assert torch.allclose(alone, together[7:8], atol=1e-5)


def disc(height: int, width: int, side: int) -> Tensor:
    """A white disc whose diameter is half the shorter side, squeezed to a square."""
    rows, columns = torch.arange(height)[:, None] + 0.5 - height / 2, torch.arange(width) + 0.5 - width / 2
    image = ((rows**2 + columns**2).sqrt() < min(height, width) / 4).float() * 255
    squeezed = tv.resize(image.expand(1, 3, -1, -1), [side, side], antialias=True)
    return squeezed.round().to(torch.uint8)


@pytest.mark.parametrize(("height", "width"), [(100, 200), (240, 120), (128, 128)])
def test_a_disc_that_was_squeezed_is_round_in_a_square_crop(height: int, width: int) -> None:
    squeezed = disc(height, width, 64)
    side = min(height, width)
    box = torch.tensor([[(height - side) / 2 / height, (width - side) / 2 / width, side / height, side / width]])
    view = apply(squeezed, replace(whole(torch.tensor([[height, width]])), box=box), 64, **PLAIN)[0, 0]
    tall, wide = (view[:, 31:33].mean(dim=1) > 0.5).sum().item(), (view[31:33].mean(dim=0) > 0.5).sum().item()
    # Half of 64 pixels either way; the squeezed direction was stored in half as many, so it is good to two.
    assert (tall, wide) == (pytest.approx(32, abs=2), pytest.approx(32, abs=2))


@quick
@given(
    height=st.integers(1, 21),
    width=st.integers(1, 21),
    size=st.integers(1, 23),
    name=st.sampled_from(sorted(POLICIES)),
    view=st.integers(0, 1),
)
def test_views_of_any_size_stay_within_black_and_white(
    make_images: Maker, height: int, width: int, size: int, name: str, view: int
) -> None:
    images = make_images(6, height, width)
    made = apply(images, drawn_for(images, name, view), size, **PLAIN)
    assert made.shape == (6, 3, size, size)
    assert made.min() >= -1e-5  # NaN fails here as well
    assert made.max() <= 1 + 1e-5


def test_an_empty_batch_gives_an_empty_batch(make_images: Maker) -> None:
    images = make_images(0, 8, 8)
    assert apply(images, drawn_for(images, "byol"), 8, **PLAIN).shape == (0, 3, 8, 8)
