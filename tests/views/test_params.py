"""Draws against torchvision's own samplers, and the law that a row knows only seed, epoch, view and position."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, ks_2samp, kstest
from torch import Tensor
from torchvision.transforms import v2

from iecl.views.params import ViewParams, center, draw, whole
from iecl.views.policies import POLICIES, Policy

MANY = 4000
quick = settings(derandomize=True, deadline=None, max_examples=25)


def many(
    policy: Policy, height: int = 32, width: int = 32, *, seed: int = 0, epoch: int = 0, view: int = 0
) -> ViewParams:
    sizes = torch.tensor([[height, width]]).repeat(MANY, 1)
    return draw(policy, sizes, torch.arange(MANY), seed=seed, epoch=epoch, view=view)


def in_pixels(box: Tensor, height: int, width: int) -> Tensor:
    return box * torch.tensor([height, width, height, width])


def torchvision_boxes(policy: Policy, height: int, width: int, count: int) -> Tensor:
    """Top, left, height, width as RandomResizedCrop draws them."""
    sampler = v2.RandomResizedCrop(8, scale=policy.scale, ratio=policy.ratio)
    image = [torch.empty(3, height, width)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        params = [sampler.make_params(image) for _ in range(count)]
    return torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in params], dtype=torch.float)


SHAPES = {
    "area": lambda box: box[:, 2] * box[:, 3],
    "ratio": lambda box: box[:, 3] / box[:, 2],
    "top": lambda box: box[:, 0],
    "left": lambda box: box[:, 1],
}


# The last shape is so long that most attempts miss and the center is taken.
@pytest.mark.parametrize(("height", "width"), [(224, 224), (300, 200), (32, 32), (40, 160)])
@pytest.mark.parametrize("shape", SHAPES)
def test_crops_are_distributed_as_torchvision_draws_them(shape: str, height: int, width: int) -> None:
    ours = in_pixels(many(Policy(), height, width).box, height, width).round()
    theirs = torchvision_boxes(Policy(), height, width, 1500)
    measure: Callable[[Tensor], Tensor] = SHAPES[shape]
    # Seeds are fixed, so this does not flicker; of sixteen true hypotheses one in sixty would come below.
    assert ks_2samp(measure(ours), measure(theirs)).pvalue > 1e-3


@pytest.mark.parametrize(("height", "width"), [(20, 400), (400, 20), (5, 100)])
def test_an_image_no_attempt_fits_gives_torchvisions_center(height: int, width: int) -> None:
    policy = Policy(scale=(0.9, 1.0))  # nine tenths of so long an image never have a ratio below 4/3
    ours = in_pixels(many(policy, height, width).box[:1], height, width)
    theirs = torchvision_boxes(policy, height, width, 1)
    assert torch.allclose(ours, theirs, atol=1e-3)


@quick
@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    low=st.floats(0.01, 1),
    ratio=st.tuples(st.floats(0.1, 1), st.floats(1, 10)),
)
def test_a_crop_lies_in_the_image_on_whole_pixels(
    height: int, width: int, low: float, ratio: tuple[float, float]
) -> None:
    box = in_pixels(many(Policy(scale=(low, 1.0), ratio=ratio), height, width).box[:200].double(), height, width)
    assert (box - box.round()).abs().max() < 1e-3
    top, left, tall, wide = box.round().long().unbind(dim=1)
    assert min(tall.min(), wide.min()) >= 1
    assert min(top.min(), left.min()) >= 0
    assert (top + tall).max() <= height
    assert (left + wide).max() <= width


def test_crop_from_one_is_the_whole_image_of_any_shape() -> None:
    assert (many(POLICIES["none"][0], 30, 100).box == torch.tensor([0.0, 0.0, 1.0, 1.0])).all()


CHANCES: dict[str, Callable[[ViewParams], Tensor]] = {
    "hflip_prob": lambda drawn: drawn.flip,
    "color_jitter_prob": lambda drawn: drawn.jitter,
    "grayscale_prob": lambda drawn: drawn.gray,
    "gaussian_blur_prob": lambda drawn: drawn.blur_sigma > 0,
    "solarize_prob": lambda drawn: drawn.solarize,
}


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", CHANCES)
def test_a_thing_happens_as_often_as_its_chance_says(name: str, chance: float) -> None:
    share = CHANCES[name](many(Policy(**{name: chance}))).double().mean().item()
    # Four deviations of a binomial share; at 0 and 1 there is no room at all.
    assert abs(share - chance) <= 4 * math.sqrt(chance * (1 - chance) / MANY)


READINGS: dict[str, Callable[[ViewParams], Tensor]] = {
    "area": lambda drawn: drawn.box[:, 2] * drawn.box[:, 3],
    "ratio": lambda drawn: drawn.box[:, 3] / drawn.box[:, 2],
    **CHANCES,
    "brightness": lambda drawn: drawn.brightness,
    "contrast": lambda drawn: drawn.contrast,
    "saturation": lambda drawn: drawn.saturation,
    "hue": lambda drawn: drawn.hue,
    "first operation": lambda drawn: drawn.order[:, 0] == 0,
}


@pytest.mark.parametrize("pair", list(combinations(READINGS, 2)), ids="-".join)
def test_what_happens_to_an_image_is_independent_of_what_else_does(pair: tuple[str, str]) -> None:
    drawn = many(Policy(**dict.fromkeys(CHANCES, 0.5)), 224, 224)
    first, second = (READINGS[name](drawn).double() for name in pair)
    # The correlation of independent numbers has a deviation of 1 / sqrt(n).
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(MANY)


@pytest.mark.parametrize(
    ("name", "policy", "low", "high"),
    [
        ("brightness", Policy(brightness=0.4), 0.6, 1.4),
        ("contrast", Policy(contrast=0.8), 0.2, 1.8),
        ("saturation", Policy(saturation=1.5), 0.0, 2.5),  # a factor is never negative, as in ColorJitter
        ("hue", Policy(hue=0.1), -0.1, 0.1),
        ("blur_sigma", Policy(gaussian_blur_prob=1.0), 0.1, 2.0),
    ],
)
def test_amounts_are_uniform_over_their_range(name: str, policy: Policy, low: float, high: float) -> None:
    values = getattr(many(policy), name)
    assert kstest(values, "uniform", args=(low, high - low)).pvalue > 1e-3


def test_color_factors_span_what_color_jitter_spans() -> None:
    jitter = v2.ColorJitter(brightness=0.8, contrast=0.8, saturation=0.2, hue=0.2)
    drawn = many(Policy(brightness=0.8, contrast=0.8, saturation=0.2, hue=0.2))
    spans = [(jitter.brightness, drawn.brightness), (jitter.saturation, drawn.saturation), (jitter.hue, drawn.hue)]
    # 4000 uniform numbers come within 1 % of either end.
    assert all([v.min(), v.max()] == pytest.approx(ends, abs=0.01 * (ends[1] - ends[0])) for ends, v in spans)


def test_all_24_orders_of_the_color_operations_are_equally_likely() -> None:
    orders, counts = many(Policy()).order.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    assert (orders.sort(dim=1).values == torch.arange(4)).all()
    assert chisquare(counts).pvalue > 1e-3


@pytest.fixture(scope="module")
def color_jitter() -> list[dict[str, object]]:
    """Two thousand draws of torchvision's ColorJitter, of strength 1 as SimCLR has it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [v2.ColorJitter(0.8, 0.8, 0.8, 0.2).make_params([]) for _ in range(2000)]


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_color_factors_are_distributed_as_color_jitter_draws_them(
    color_jitter: list[dict[str, object]], name: str
) -> None:
    ours = getattr(many(POLICIES["simclr"][0]), name)
    assert ks_2samp(ours, [params[f"{name}_factor"] for params in color_jitter]).pvalue > 1e-3


def test_orders_are_distributed_as_color_jitter_draws_them(color_jitter: list[dict[str, object]]) -> None:
    theirs = torch.stack([torch.as_tensor(params["fn_idx"]) for params in color_jitter])
    codes = [(order * torch.tensor([64, 16, 4, 1])).sum(dim=1) for order in (many(Policy()).order, theirs)]
    table = [torch.bincount(code, minlength=256)[codes[0].unique()].tolist() for code in codes]
    assert sum(table[1]) == len(theirs)  # the same 24 orders
    assert chi2_contingency(table).pvalue > 1e-3


def test_the_deviation_of_a_blur_is_distributed_as_gaussian_blur_draws_it() -> None:
    sampler = v2.GaussianBlur(23, (0.1, 2.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = [sampler.make_params([])["sigma"][0] for _ in range(2000)]
    drawn = many(POLICIES["simclr"][0]).blur_sigma
    assert ks_2samp(drawn[drawn > 0], theirs).pvalue > 1e-3


def rows_of(drawn: ViewParams, rows: Tensor) -> list[dict[str, object]]:
    return [drawn.row(row) for row in rows.tolist()]


@quick
@given(order=st.permutations(range(9)), kept=st.integers(1, 9))
def test_a_row_is_the_same_in_any_batch_and_order(order: list[int], kept: int) -> None:
    sizes, positions = torch.randint(1, 500, (9, 2), generator=torch.Generator().manual_seed(1)), torch.arange(9) * 7
    rows = torch.tensor(order[:kept])
    everything = draw(POLICIES["byol"][1], sizes, positions, seed=3, epoch=2, view=1)
    some = draw(POLICIES["byol"][1], sizes[rows], positions[rows], seed=3, epoch=2, view=1)
    assert rows_of(some, torch.arange(kept)) == rows_of(everything, rows)


def test_the_same_seed_epoch_view_and_position_give_the_same_draw() -> None:
    again = rows_of(many(Policy(gaussian_blur_prob=0.5), seed=5, epoch=4, view=1), torch.arange(MANY))
    assert rows_of(many(Policy(gaussian_blur_prob=0.5), seed=5, epoch=4, view=1), torch.arange(MANY)) == again


@pytest.mark.parametrize("change", ["seed", "epoch", "view"])
def test_another_seed_epoch_or_view_gives_unrelated_draws(change: str) -> None:
    policy = Policy(gaussian_blur_prob=1.0)
    one, other = many(policy), many(policy, **{change: 1})
    for name in ("brightness", "contrast", "saturation", "hue", "blur_sigma"):
        assert abs(np.corrcoef(getattr(one, name), getattr(other, name))[0, 1]) < 4 / math.sqrt(MANY)
    assert (one.flip == other.flip).double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(MANY))
    assert (one.box == other.box).all(dim=1).double().mean() < 0.05


def test_the_whole_image_is_cut_and_not_changed() -> None:
    drawn = whole(torch.tensor([[7, 9], [3, 3]]))
    assert drawn.box.tolist() == [[0, 0, 1, 1]] * 2
    assert not torch.stack([drawn.flip, drawn.jitter, drawn.gray, drawn.blur_sigma > 0, drawn.solarize]).any()


@quick
@given(height=st.integers(1, 5000), width=st.integers(1, 5000), share=st.floats(0.1, 1))
def test_the_center_is_a_square_in_the_middle(height: int, width: int, share: float) -> None:
    box = in_pixels(center(torch.tensor([[height, width]]), share).box, height, width)[0]
    top, left, tall, wide = box.tolist()
    side = share * min(height, width)
    assert (tall, wide) == (pytest.approx(side, rel=1e-5), pytest.approx(side, rel=1e-5))
    # In the middle: as much room before as after. Float32 of 5000 pixels is good to a thousandth.
    assert (2 * top + tall, 2 * left + wide) == (pytest.approx(height, abs=2e-3), pytest.approx(width, abs=2e-3))
