"""How a view may differ from its image, and the operators that end the chain. Free of torch until one is drawn.

A view is cut, mirrored, jittered, made gray, blurred and solarized by `transform`. What stands in `OPERATORS` follows,
in the order of the table, on images in [0, 1]; then the view is normalized. All are off unless a chance is given.

An operator is added here and nowhere else: `NAME_prob` and its parameters in `Policy`, a function, a row of
`OPERATORS`. Its draws, its settings, its place in `iecl views` and in the documentation follow from these; a row in the
table of tests/views/test_operators.py says what it must equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iecl.settings import setting

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    Images = Float[Tensor, "n 3 size size"]
    Amounts = Float[Tensor, "n amounts"]
    Numbers = Float[Tensor, "n columns"]

ATTEMPTS = 10
"""Rectangles tried before none is erased, as in torchvision's RandomErasing."""
SOME = 16
"""Images at a time for which noise is drawn: the draws of a large batch would fill the memory."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The chances and ranges one view is drawn from."""

    scale: tuple[float, float] = setting(
        (0.08, 1.0), "least and greatest share of the image's area in a crop; [1, 1]: the whole image", above=0, high=1
    )
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "least and greatest width / height of a crop", above=0)
    hflip_prob: float = setting(0.5, "chance of a mirror image", low=0, high=1)
    color_jitter_prob: float = setting(0.8, "chance of color jitter", low=0, high=1)
    brightness: float = setting(0.4, "brightness is multiplied by 1 ± this at most", low=0)
    contrast: float = setting(0.4, "contrast is multiplied by 1 ± this at most", low=0)
    saturation: float = setting(0.4, "saturation is multiplied by 1 ± this at most", low=0)
    hue: float = setting(0.1, "hue is turned by this share of the color circle at most", low=0, high=0.5)
    grayscale_prob: float = setting(0.2, "chance of losing all color", low=0, high=1)
    gaussian_blur_prob: float = setting(0.0, "chance of a Gaussian blur", low=0, high=1)
    sigma: tuple[float, float] = setting(
        (0.1, 2.0), "least and greatest standard deviation of the blur, in pixels of the view", above=0
    )
    solarize_prob: float = setting(0.0, "chance of inverting the brighter half of the tones", low=0, high=1)
    vflip_prob: float = setting(0.0, "chance of turning the view upside down, as in a mirror", low=0, high=1)
    rot90_prob: float = setting(0.0, "chance of a rotation by 90, 180 or 270 degrees", low=0, high=1)
    rotation_prob: float = setting(
        0.0, "chance of a rotation by any angle; the corners get the mean color", low=0, high=1
    )
    degrees: float = setting(30.0, "a rotation turns by this many degrees at most, either way", low=0, high=180)
    posterize_prob: float = setting(0.0, "chance of fewer tones", low=0, high=1)
    posterize_bits: int = setting(4, "bits of a tone that are left of 8", low=1, high=8)
    equalize_prob: float = setting(0.0, "chance of an even histogram of each channel", low=0, high=1)
    sharpness_prob: float = setting(0.0, "chance of another sharpness", low=0, high=1)
    sharpness_factor: tuple[float, float] = setting(
        (0.0, 2.0), "least and greatest sharpness: 0 smooths, 1 changes nothing, 2 sharpens", low=0
    )
    sobel_prob: float = setting(0.0, "chance of showing edges alone (Sobel), in gray", low=0, high=1)
    gaussian_noise_prob: float = setting(0.0, "chance of Gaussian noise on every pixel", low=0, high=1)
    noise_sigma: float = setting(0.1, "standard deviation of the noise; white is 1", low=0, high=1)
    erasing_prob: float = setting(0.0, "chance of a rectangle of the mean color (cutout)", low=0, high=1)
    erasing_scale: tuple[float, float] = setting(
        (0.02, 0.33), "least and greatest share of the view's area that is erased", above=0, high=1
    )
    erasing_ratio: tuple[float, float] = setting((0.3, 3.3), "least and greatest height / width of it", above=0)

    def __post_init__(self) -> None:
        for name, pair in vars(self).items():
            if isinstance(pair, tuple) and len(pair) != 2:
                raise ValueError(f"{name} needs two numbers, the least and the greatest")
            if isinstance(pair, tuple) and pair[0] > pair[1]:
                raise ValueError(f"{name} goes from {pair[0]:g} to {pair[1]:g}: the first must not be the greater")


def _no_amounts(policy: Policy, numbers: Numbers) -> Amounts:
    return numbers


@dataclass(frozen=True)
class Operator:
    """One change of a view. Its chance is `NAME_prob` of the policy."""

    change: Callable[[Images, Amounts, Tensor], Images]
    """The images in [0, 1], changed by the amounts of each; the last argument is the mean color, of shape (3, 1, 1)."""
    columns: int = 0
    """Numbers in [0, 1) that are drawn for each image."""
    amounts: Callable[[Policy, Numbers], Amounts] = _no_amounts
    """Those numbers as amounts."""


def draw_operators(policy: Policy, numbers: Callable[[str, int], Numbers]) -> dict[str, Amounts]:
    """For each operator that may happen: 1 or 0 for each image, whether it does, then its amounts.

    Each draws for a purpose of its own, so that no draw depends on which others are on.
    """
    import torch

    made = {}
    for name, operator in OPERATORS.items():
        chance = getattr(policy, f"{name}_prob")
        if chance:
            drawn = numbers(name, 1 + operator.columns)
            made[name] = torch.cat([(drawn[:, :1] < chance).float(), operator.amounts(policy, drawn[:, 1:])], dim=1)
    return made


def change_(views: Images, drawn: Mapping[str, Amounts], mean: Tensor) -> None:
    """Change, in place, the images that each operator was drawn for."""
    from iecl.transfer import send

    for name, amounts in drawn.items():
        drawn_for = amounts[:, 0].nonzero().squeeze(1)
        if len(drawn_for):
            rows, own = send(drawn_for, views.device), send(amounts[drawn_for, 1:], views.device)
            chosen = views.index_select(0, rows).contiguous()
            views.index_copy_(0, rows, OPERATORS[name].change(chosen, own, mean))


def _vflip(views: Images, amounts: Amounts, mean: Tensor) -> Images:
    return views.flip(2)


def _quarter_turns(policy: Policy, numbers: Numbers) -> Amounts:
    return 1 + (3 * numbers).floor()


def _rot90(views: Images, quarters: Amounts, mean: Tensor) -> Images:
    import torch

    made = views
    for quarter in (1, 2, 3):  # all of them by each: to sort the rows first, one would wait for a GPU
        made = torch.where(quarters[:, :, None, None] == quarter, views.rot90(quarter, (2, 3)), made)
    return made


def _angle(policy: Policy, numbers: Numbers) -> Amounts:
    return (2 * numbers - 1) * policy.degrees


def _rotate(views: Images, degrees: Amounts, mean: Tensor) -> Images:
    """Against the clock, about the center, bilinear. Less the mean, so that what comes from outside is the mean."""
    import torch
    from torch.nn.functional import grid_sample

    side = views.shape[2]
    place = (2 * torch.arange(side, device=views.device) + 1) / side - 1
    cos, sin = (part[:, :, None] for part in (degrees.deg2rad().cos(), degrees.deg2rad().sin()))
    down, across = place[:, None], place[None, :]
    grid = torch.stack([cos * across - sin * down, sin * across + cos * down], dim=3)
    return grid_sample(views - mean, grid, align_corners=False) + mean


def _bits(policy: Policy, numbers: Numbers) -> Amounts:
    return numbers.new_full((len(numbers), 1), 2.0**policy.posterize_bits)


def _posterize(views: Images, levels: Amounts, mean: Tensor) -> Images:
    levels = levels[:, :, None, None]
    return (views * levels).floor().clamp_min(0).minimum(levels - 1) / levels


def _equalize(views: Images, amounts: Amounts, mean: Tensor) -> Images:
    """Tones of 8 bits by their rank, channel by channel; a channel of one tone, or with few pixels, stays as it is."""
    import torch

    tones = (views * 255).round().clamp(0, 255).long().flatten(2)
    counts = torch.zeros(*tones.shape[:2], 256, dtype=torch.int64, device=views.device)
    counts.scatter_add_(2, tones, torch.ones_like(tones))
    brightest = counts.gather(2, tones.amax(dim=2, keepdim=True))
    step = (tones.shape[2] - brightest) // 255
    below = counts.cumsum(dim=2) - counts
    ranks = ((below + step // 2) // step.clamp_min(1)).clamp_max(255)
    equal = (ranks.gather(2, tones) / 255).view_as(views)
    return torch.where((step > 0)[:, :, :, None], equal, views)


def _sharpness(policy: Policy, numbers: Numbers) -> Amounts:
    low, high = policy.sharpness_factor
    return low + (high - low) * numbers


def _sharpen(views: Images, factor: Amounts, mean: Tensor) -> Images:
    """Away from the view smoothed with 5 in the middle of ones; the pixels at its edge have no neighbors and stay."""
    smooth = views.clone()
    if views.shape[2] > 2:
        rows = views[:, :, :-2] + views[:, :, 1:-1] + views[:, :, 2:]
        nine = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
        smooth[:, :, 1:-1, 1:-1] = (nine + 4 * views[:, :, 1:-1, 1:-1]) / 13
    factor = factor[:, :, None, None]
    return (factor * views + (1 - factor) * smooth).clamp(0, 1)


def _sobel(views: Images, amounts: Amounts, mean: Tensor) -> Images:
    """Length of the gradient of the gray image; a step from black to white is 1. Beyond its edge the image goes on."""
    from torch.nn.functional import pad

    from iecl.views.color import luma

    gray = pad(luma(views), (1, 1, 1, 1), mode="replicate")
    down = gray[:, :, :-2] + 2 * gray[:, :, 1:-1] + gray[:, :, 2:]
    across = gray[..., :-2] + 2 * gray[..., 1:-1] + gray[..., 2:]
    horizontal = (down[..., 2:] - down[..., :-2]) / 4
    vertical = (across[:, :, 2:] - across[:, :, :-2]) / 4
    return (horizontal**2 + vertical**2).sqrt().clamp(0, 1).expand(-1, 3, -1, -1)


def _noise_seed(policy: Policy, numbers: Numbers) -> Amounts:
    """Two parts of a seed, whole numbers of 24 bits, and the deviation."""
    import torch

    return torch.cat([numbers * 2**24, numbers.new_full((len(numbers), 1), policy.noise_sigma)], dim=1)


def _add_noise(views: Images, amounts: Amounts, mean: Tensor) -> Images:
    import torch

    from iecl.counter import key, normal

    high, low, sigma = amounts.unbind(dim=1)
    seeds = high.long() * 2**24 + low.long()
    pixels = views[0].numel()
    drawn = [normal(key(0, "view/noise"), some, pixels) for some in torch.split(seeds, SOME)]
    return (views + sigma[:, None, None, None] * torch.cat(drawn).view_as(views)).clamp_(0, 1)


def _rectangle(policy: Policy, numbers: Numbers) -> Amounts:
    """Top and left as shares of the room that is left, height and width as shares of the side; 0 where none fits."""
    import torch

    areas, ratios, places = numbers[:, :ATTEMPTS], numbers[:, ATTEMPTS:-2], numbers[:, -2:]
    low, high = policy.erasing_scale
    area = low + (high - low) * areas
    least, greatest = (math.log(ratio) for ratio in policy.erasing_ratio)
    ratio = (least + (greatest - least) * ratios).exp()
    extents = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=2)
    fits = (extents < 1).all(dim=2)
    first = fits.int().argmax(dim=1)
    extent = extents[torch.arange(len(numbers), device=numbers.device), first]
    return torch.cat([places, torch.where(fits.any(dim=1, keepdim=True), extent, 0.0)], dim=1)


def _erase(views: Images, amounts: Amounts, mean: Tensor) -> Images:
    import torch

    side = views.shape[2]
    extent = (amounts[:, 2:] * side).round()
    start = (amounts[:, :2] * (side - extent + 1)).floor()
    place = torch.arange(side, device=views.device)
    inside = (place >= start[:, :, None]) & (place < (start + extent)[:, :, None])
    return torch.where((inside[:, 0, :, None] & inside[:, 1, None, :])[:, None], mean, views)


OPERATORS: dict[str, Operator] = {
    "vflip": Operator(_vflip),
    "rot90": Operator(_rot90, 1, _quarter_turns),
    "rotation": Operator(_rotate, 1, _angle),
    "posterize": Operator(_posterize, 0, _bits),
    "equalize": Operator(_equalize),
    "sharpness": Operator(_sharpen, 1, _sharpness),
    "sobel": Operator(_sobel),
    "gaussian_noise": Operator(_add_noise, 2, _noise_seed),
    "erasing": Operator(_erase, 2 * ATTEMPTS + 2, _rectangle),
}
"""In the order in which they change a view."""
