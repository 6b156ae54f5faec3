import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from iecl.views.resampling import blur_matrix, cut_matrix, resample

Maker = Callable[[int, int, int], Tensor]
quick = settings(derandomize=True, deadline=None, max_examples=25)


def shares(*values: float) -> Tensor:
    return torch.tensor(values)


def cut(images: Tensor, box: tuple[int, int, int, int], size: int, mirrored: bool = False) -> Tensor:
    (top, left, tall, wide), (height, width) = box, images.shape[2:]
    flags = torch.tensor([mirrored]).expand(len(images))
    down = cut_matrix(shares(top / height).expand(len(images)), shares(tall / height).expand(len(images)), height, size)
    across = cut_matrix(
        shares(left / width).expand(len(images)), shares(wide / width).expand(len(images)), width, size, flags
    )
    return resample(images, down, across)


@quick
@given(data=st.data(), height=st.integers(1, 40), width=st.integers(1, 40), size=st.integers(1, 33))
def test_a_cut_is_torchvisions_resized_crop(
    make_images: Maker, data: st.DataObject, height: int, width: int, size: int
) -> None:
    tall, wide = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - wide))
    images = make_images(2, height, width).float() / 255
    theirs = tv.resized_crop(images, top, left, tall, wide, [size, size], antialias=True)
    assert torch.allclose(cut(images, (top, left, tall, wide), size), theirs, atol=1e-4)


@pytest.mark.parametrize("size", [8, 13, 30])
def test_a_mirrored_cut_is_the_mirror_image_of_the_cut(make_images: Maker, size: int) -> None:
    images = make_images(2, 20, 20).float() / 255
    box = (3, 5, 11, 14)
    assert torch.allclose(cut(images, box, size, mirrored=True), tv.hflip(cut(images, box, size)), atol=1e-6)


def test_a_cut_of_everything_at_its_own_size_changes_nothing() -> None:
    assert torch.allclose(cut_matrix(shares(0.0), shares(1.0), 17, 17), torch.eye(17), atol=1e-5)


@quick
@given(
    start=st.floats(0, 0.9),
    share=st.floats(0.05, 1),
    pixels=st.integers(1, 60),
    size=st.integers(1, 40),
    flip=st.booleans(),
)
def test_weights_are_an_average_of_pixels_the_part_covers(
    start: float, share: float, pixels: int, size: int, flip: bool
) -> None:
    length = share * (1 - start)
    (weights,) = cut_matrix(shares(start), shares(length), pixels, size, torch.tensor([flip]))
    assert weights.min() >= 0
    assert torch.allclose(weights.sum(dim=1), torch.ones(size), atol=1e-5)
    first, last = math.floor(start * pixels - 1e-3), math.ceil((start + length) * pixels + 1e-3)
    outside = torch.ones(pixels, dtype=torch.bool)
    outside[max(first, 0) : last] = False
    assert weights[:, outside].sum() == 0


def test_half_a_pixel_counts_half() -> None:
    # From 0.5 to 2 of three pixels, brought to one sample: step 1.5, center 1.25. Triangle of reach 1.5 at the centers
    # 0.5 and 1.5: 1 - 0.75/1.5 = 1/2 and 1 - 0.25/1.5 = 5/6; covered 1/2 and 1: 1/4 to 5/6, that is 3 to 10.
    (row,) = cut_matrix(shares(0.5 / 3), shares(0.5), pixels=3, size=1)[0]
    assert row.tolist() == pytest.approx([3 / 13, 10 / 13, 0], abs=1e-6)


def test_a_part_within_one_pixel_is_that_pixel() -> None:
    assert torch.allclose(cut_matrix(shares(0.55), shares(0.1), 3, 4), torch.tensor([0.0, 1.0, 0.0]).expand(1, 4, 3))


@pytest.mark.parametrize(("size", "kernel"), [(224, 23), (96, 9), (64, 7), (32, 3), (16, 3), (3, 3), (2, 3)])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_a_blur_is_torchvisions_gaussian_blur_of_a_tenth_of_the_side(
    make_images: Maker, size: int, kernel: int, sigma: float
) -> None:
    images = make_images(2, size, size).float() / 255
    matrix = blur_matrix(shares(sigma, 1.3), size)
    blurred = resample(images, matrix, matrix)
    assert torch.allclose(blurred[0], tv.gaussian_blur(images[0], [kernel, kernel], [sigma, sigma]), atol=1e-5)
    assert torch.allclose(blurred[1], tv.gaussian_blur(images[1], [kernel, kernel], [1.3, 1.3]), atol=1e-5)


def test_a_line_of_one_pixel_cannot_be_blurred() -> None:
    assert blur_matrix(shares(0.1, 2.0), 1).tolist() == [[[1.0]], [[1.0]]]


@quick
@given(size=st.integers(1, 120), sigma=st.floats(0.1, 2))
def test_a_blur_keeps_what_is_even_and_is_symmetric_left_to_right(size: int, sigma: float) -> None:
    (matrix,) = blur_matrix(shares(sigma), size)
    assert torch.allclose(matrix.sum(dim=1), torch.ones(size), atol=1e-5)
    assert torch.allclose(matrix, matrix.flip(0, 1), atol=1e-6)
