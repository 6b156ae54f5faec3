"""Operators that end the chain, against torchvision's functions or slow ones on the same draws, in both engines."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import chisquare, ks_2samp, kstest
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from iecl.counter import key, uniform
from iecl.views.operators import OPERATORS, Policy
from iecl.views.params import ViewParams, draw, whole
from iecl.views.policies import POLICIES
from iecl.views.transform import apply

both = pytest.mark.usefixtures("path")  # twice: by compiled loops and by tensor operations
Maker = Callable[[int, int, int], Tensor]
SIDE, MANY = 20, 4000
MEAN = (0.48, 0.25, 0.61)
NOTHING = POLICIES["none"][0]


@dataclass(frozen=True)
class Row:
    """What an operator must do to one image in [0, 1], given its amounts."""

    slowly: Callable[[Tensor, list[float]], Tensor]
    policy: Policy = NOTHING
    """Parameters other than the default ones, where those would hide something."""
    atol: float = 1e-5


def rotated(x: Tensor, amounts: list[float]) -> Tensor:
    mean = torch.tensor(MEAN)[:, None, None]
    # Without `fill` torchvision samples zeros outside; with it, pixels at the edge are darkened twice.
    return tv.rotate(x - mean, amounts[0], interpolation=InterpolationMode.BILINEAR) + mean


def equalized(x: Tensor, amounts: list[float]) -> Tensor:
    by_pil = ImageOps.equalize(Image.fromarray((x * 255).round().byte().permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.array(by_pil)).permute(2, 0, 1).float() / 255


def edges(x: Tensor, amounts: list[float]) -> Tensor:
    gray = torch.nn.functional.pad(tv.rgb_to_grayscale(x)[None], (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]) / 4
    both = torch.nn.functional.conv2d(gray, torch.stack([kernel, kernel.T])[:, None])
    return both.norm(dim=1).clamp_max(1).expand(3, -1, -1)


def noisy(x: Tensor, amounts: list[float]) -> Tensor:
    """By numbers of Python, one pixel after the other."""
    high, low, sigma = amounts
    count = x.numel()
    numbers = uniform(key(0, "view/noise"), torch.tensor([int(high) * 2**24 + int(low)]), 2 * count)[0].tolist()
    bell = [
        math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
        for first, second in zip(numbers[:count], numbers[count:], strict=True)
    ]
    return (x + sigma * torch.tensor(bell).view_as(x)).clamp(0, 1)


def erased(x: Tensor, amounts: list[float]) -> Tensor:
    height, width = (round(share * SIDE) for share in amounts[2:])
    top, left = math.floor(amounts[0] * (SIDE - height + 1)), math.floor(amounts[1] * (SIDE - width + 1))
    return tv.erase(x, top, left, height, width, torch.tensor(MEAN)[:, None, None])


ROWS = {
    "vflip": Row(lambda x, amounts: tv.vflip(x)),
    "rot90": Row(lambda x, amounts: tv.rotate(x, 90 * amounts[0])),
    "rotation": Row(rotated, replace(NOTHING, degrees=180.0), atol=1e-4),
    "posterize": Row(
        lambda x, amounts: tv.posterize(x, int(math.log2(amounts[0]))), replace(NOTHING, posterize_bits=3)
    ),
    "equalize": Row(equalized),
    "sharpness": Row(
        lambda x, amounts: tv.adjust_sharpness(x, amounts[0]), replace(NOTHING, sharpness_factor=(0.0, 3.0))
    ),
    "sobel": Row(edges),
    "gaussian_noise": Row(noisy),
    "erasing": Row(erased),
}
"""A new operator is one more row."""


def drawn_for(images: Tensor, policy: Policy, view: int = 0) -> ViewParams:
    sizes = torch.tensor(images.shape[2:]).repeat(len(images), 1)
    return draw(policy, sizes, torch.arange(len(images)), seed=0, epoch=0, view=view)


def seen(
    images: Tensor, drawn: ViewParams, size: int = SIDE, layout: torch.memory_format = torch.contiguous_format
) -> Tensor:
    """The views as they are before the mean is taken off."""
    return apply(images, drawn, size, MEAN, (1.0, 1.0, 1.0), layout) + torch.tensor(MEAN)[:, None, None]


def on(name: str, chance: float = 1.0, policy: Policy = NOTHING) -> Policy:
    return replace(policy, **{f"{name}_prob": chance})


def many(policy: Policy) -> ViewParams:
    return draw(policy, torch.full((MANY, 2), 32), torch.arange(MANY), seed=0, epoch=0, view=0)


def test_every_operator_has_a_row_here_and_is_off_in_every_policy() -> None:
    assert set(ROWS) == set(OPERATORS)
    assert {getattr(policy, f"{name}_prob") for row in POLICIES.values() for policy in row for name in OPERATORS} == {
        0.0
    }
    assert all(not many(policy).operators for row in POLICIES.values() for policy in row[:2])


@both
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_does_to_each_image_what_the_slow_one_does(drawn_images: Tensor, name: str) -> None:
    row = ROWS[name]
    drawn = drawn_for(drawn_images, on(name, policy=row.policy))
    amounts = drawn.operators[name][:, 1:].tolist()
    expected = [row.slowly(x.float() / 255, amount) for x, amount in zip(drawn_images, amounts, strict=True)]
    made = seen(drawn_images, drawn)
    assert torch.allclose(made, torch.stack(expected), rtol=0, atol=row.atol)
    assert ((made - drawn_images / 255).abs().amax(dim=(1, 2, 3)) > 0.01).all()


@both
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_changes_the_images_it_was_drawn_for_and_no_others(drawn_images: Tensor, name: str) -> None:
    drawn = drawn_for(drawn_images, on(name, 0.5, ROWS[name].policy))
    wanted = drawn.operators[name][:, 0].bool()
    changed = (seen(drawn_images, drawn) - drawn_images / 255).abs().amax(dim=(1, 2, 3)) > 1e-5
    assert 0 < wanted.sum() < len(wanted)
    assert torch.equal(changed, wanted)
    assert [name in drawn.row(i) for i in range(len(wanted))] == wanted.tolist()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_view_is_the_same_alone_in_any_batch_and_layout(make_images: Maker, path: str, name: str) -> None:
    images = make_images(40, 24, 24)
    drawn = drawn_for(images, on(name, 0.7, ROWS[name].policy))
    together = seen(images, drawn, 23)
    rows = [38, 2, 2, 17]
    # A matrix product of another batch may add in another order; compiled loops may not.
    near = 0 if path == "native" else 1e-5
    assert torch.allclose(seen(images[rows], drawn.take(rows), 23), together[rows], rtol=0, atol=near)
    assert torch.equal(seen(images, drawn, 23, torch.channels_last), together)


@both
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_tiny_views_stay_within_black_and_white(make_images: Maker, name: str, size: int) -> None:
    made = seen(make_images(5, 9, 6), drawn_for(make_images(5, 9, 6), on(name, policy=ROWS[name].policy)), size)
    assert made.shape == (5, 3, size, size)
    assert made.min() >= -1e-5  # NaN fails here as well
    assert made.max() <= 1 + 1e-5


@both
def test_operators_follow_the_chain_in_the_order_of_the_table(drawn_images: Tensor) -> None:
    x = (drawn_images.float() / 255)[:1]
    certain = replace(NOTHING, **{f"{name}_prob": 1.0 for name in ("grayscale", "posterize", "vflip", "sobel")})
    expected = tv.posterize(tv.vflip(tv.rgb_to_grayscale(x, num_output_channels=3)), 4)
    made = seen(drawn_images[:1], drawn_for(drawn_images[:1], certain))
    assert torch.allclose(made[0], edges(expected[0], []), atol=1e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_moves_no_other_draw(name: str) -> None:
    policy = replace(POLICIES["byol"][1], **{f"{other}_prob": 0.5 for other in OPERATORS})
    everything, without = many(policy), many(replace(policy, **{f"{name}_prob": 0.0}))
    assert set(everything.operators) - set(without.operators) == {name}
    for field in fields(ViewParams):
        if field.name != "operators":
            assert torch.equal(getattr(everything, field.name), getattr(without, field.name))
    for other, amounts in without.operators.items():
        assert torch.equal(everything.operators[other], amounts)


@pytest.mark.parametrize("chance", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", OPERATORS)
def test_it_happens_as_often_as_its_chance_says(name: str, chance: float) -> None:
    share = many(on(name, chance)).operators[name][:, 0].double().mean().item()
    assert abs(share - chance) <= 4 * math.sqrt(chance * (1 - chance) / MANY)


def test_amounts_are_uniform_over_their_range() -> None:
    policy = replace(NOTHING, rotation_prob=1.0, sharpness_prob=1.0, sharpness_factor=(0.5, 3.0), degrees=20.0)
    drawn = many(policy).operators
    assert kstest(drawn["rotation"][:, 1], "uniform", args=(-20, 40)).pvalue > 1e-3
    assert kstest(drawn["sharpness"][:, 1], "uniform", args=(0.5, 2.5)).pvalue > 1e-3
    quarters = many(on("rot90")).operators["rot90"][:, 1]
    assert chisquare([(quarters == quarter).sum().item() for quarter in (1, 2, 3)]).pvalue > 1e-3


@pytest.mark.parametrize("column", range(4), ids=["top", "left", "height", "width"])
def test_rectangles_are_distributed_as_random_erasing_draws_them(column: int) -> None:
    side, sampler = 200, v2.RandomErasing(p=1.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        params = [sampler.make_params([torch.empty(3, side, side)]) for _ in range(1500)]
    theirs = torch.tensor([[p[name] for name in "ijhw"] for p in params])[:, column]
    amounts = many(on("erasing")).operators["erasing"][:, 1:]
    extent = (amounts[:, 2:] * side).round()
    ours = torch.cat([(amounts[:, :2] * (side - extent + 1)).floor(), extent], dim=1)[:, column]
    assert ks_2samp(ours, theirs).pvalue > 1e-3


@both
def test_equalizing_rounds_as_torchvision_does_where_tones_have_many_pixels() -> None:
    dark = (uniform(key(0, "dark"), torch.arange(4), 3 * 60 * 60).square() * 256).to(torch.uint8).view(4, 3, 60, 60)
    dark[3] = 77  # a single tone stays
    made = seen(dark, drawn_for(dark, on("equalize")), 60)
    assert torch.equal((made * 255).round().to(torch.uint8), tv.equalize(dark))


@both
def test_a_rectangle_that_never_fits_erases_nothing(drawn_images: Tensor) -> None:
    policy = replace(NOTHING, erasing_prob=1.0, erasing_scale=(0.9, 1.0), erasing_ratio=(3.0, 3.3))
    assert torch.allclose(seen(drawn_images, drawn_for(drawn_images, policy)), drawn_images / 255, atol=1e-6)


@both
def test_noise_is_normal_and_another_in_every_image_view_and_epoch(make_images: Maker) -> None:
    gray = torch.full((8, 3, SIDE, SIDE), 128, dtype=torch.uint8)
    policy = replace(NOTHING, gaussian_noise_prob=1.0, noise_sigma=0.05)
    sizes = torch.full((8, 2), SIDE)
    noise = [
        (seen(gray, draw(policy, sizes, torch.arange(8), seed=seed, epoch=epoch, view=view)) - 128 / 255) / 0.05
        for seed, epoch, view in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    values = torch.stack(noise).flatten(2).flatten(0, 1)
    assert kstest(values.flatten(), "norm").pvalue > 1e-3
    assert (np.corrcoef(values) - np.eye(32)).max() < 5 / math.sqrt(3 * SIDE * SIDE)


def test_the_whole_image_has_no_operator() -> None:
    assert not whole(torch.tensor([[7, 9]])).operators
