"""Named augmentation policies as data: how a view may differ from its image."""

from dataclasses import dataclass, fields, replace
from typing import Any

from iecl.errors import UserError, did_you_mean
from iecl.settings import setting

SMALL = 64
"""Views up to this side are small: blur would remove what little they show, and evaluation sees all of the image."""


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

    def __post_init__(self) -> None:
        for name, pair in {"scale": self.scale, "ratio": self.ratio, "sigma": self.sigma}.items():
            if len(pair) != 2:
                raise ValueError(f"{name} needs two numbers, the least and the greatest")
            if pair[0] > pair[1]:
                raise ValueError(f"{name} goes from {pair[0]:g} to {pair[1]:g}: the first must not be the greater")


_HALF_STRENGTH = Policy()
_FULL_STRENGTH = Policy(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
_CROP = Policy(color_jitter_prob=0.0, grayscale_prob=0.0)
# Grill et al. 2020, table 6: the views share the colors and differ in blur and solarization.
_BYOL = Policy(saturation=0.2)
_BYOL_PAIR = (replace(_BYOL, gaussian_blur_prob=1.0), replace(_BYOL, gaussian_blur_prob=0.1, solarize_prob=0.2))

POLICIES: dict[str, tuple[Policy, ...]] = {
    # Chen et al. 2020, appendix A: color strength 1, blur for every second view.
    "simclr": (replace(_FULL_STRENGTH, gaussian_blur_prob=0.5),),
    # The same authors on CIFAR-10, appendix B.9: color strength 0.5, no blur.
    "simclr-small": (_HALF_STRENGTH,),
    # Chen et al. 2020 (MoCo v2), as their training script has it: crops keep a fifth of the image at least.
    "moco-v2": (replace(_HALF_STRENGTH, scale=(0.2, 1.0), gaussian_blur_prob=0.5),),
    # The CIFAR-10 notebook of the same repository: no blur, and crops down to 0.08. That is SimCLR's small set.
    "moco-small": (_HALF_STRENGTH,),
    # Chen et al. 2021 (MoCo v3) with a ResNet: BYOL's views with less tight crops. Their ViT uses `byol`.
    "moco-v3": tuple(replace(policy, scale=(0.2, 1.0)) for policy in _BYOL_PAIR),
    # Grill et al. 2020, table 6.
    "byol": _BYOL_PAIR,
    # solo-learn's CIFAR recipes of BYOL: no blur, solarization stays.
    "byol-small": (_BYOL, replace(_BYOL, solarize_prob=0.2)),
    # Ermolov et al. 2021 (W-MSE), as their training script has it: less gray, no blur. There colors come before crops.
    "w-mse": (replace(_HALF_STRENGTH, scale=(0.2, 1.0), grayscale_prob=0.1),),
    # solo-learn's CIFAR recipe of VICReg: both views alike, crops keep a fifth, some solarization.
    "vicreg-small": (replace(_BYOL, scale=(0.2, 1.0), solarize_prob=0.1),),
    # Caron et al. 2021 (DINO): BYOL's pair for the full views, and a third kind for up to eight small ones.
    "dino": (*_BYOL_PAIR, *[replace(_BYOL, gaussian_blur_prob=0.5)] * 8),
    # solo-learn's CIFAR recipes of SimSiam and MoCo-v2+ (symmetric_weak.yaml): SimCLR's small set, with blur.
    "solo-weak": (replace(_HALF_STRENGTH, gaussian_blur_prob=0.5),),
    # The augmentation of supervised ImageNet training.
    "crop": (_CROP,),
    # No augmentation: every view is the image.
    "none": (replace(_CROP, scale=(1.0, 1.0), hflip_prob=0.0),),
}
"""One policy for each view in turn; a single one holds for every view."""


@dataclass(frozen=True)
class ViewSpec:
    """How many views of each image a method wants.

    Local crops are tight crops of three sevenths of the side, 96 of 224 pixels (multi-crop, Caron et al. 2020).
    """

    global_crops: int = 2
    local_crops: int = 0
    global_scale: tuple[float, float] | None = None
    """Least and greatest share of the area in a global crop; None: the policy's."""
    local_scale: tuple[float, float] = (0.05, 0.14)

    @staticmethod
    def local_size(side: int) -> int:
        """Pixels on a side of a local crop, for global crops of `side`."""
        return round(side * 3 / 7)


AS_POLICY = -1.0
"""A parameter of `[augmentation]` that is left to the policy; an empty list for those that are pairs."""


def _parameter(name: str) -> Any:
    """A parameter of `Policy` as a setting of a run, which by default is the policy's own."""
    rules = Policy.__dataclass_fields__[name].metadata
    if isinstance(Policy.__dataclass_fields__[name].default, tuple):
        return setting((), f"{rules['doc']}; []: the policy's", above=rules["above"], high=rules["high"])
    return setting(AS_POLICY, f"{rules['doc']}; -1: the policy's", low=AS_POLICY, high=rules["high"])


@dataclass(frozen=True, kw_only=True)
class AugmentationSettings:
    """Everything that decides how views are made."""

    policy: str = setting(
        "auto",
        f"how views differ from their image; auto: simclr, or simclr-small up to {SMALL} pixels",
        choices=("auto", *POLICIES),
        flag="--augmentation",
    )
    scale: tuple[float, ...] = _parameter("scale")
    ratio: tuple[float, ...] = _parameter("ratio")
    hflip_prob: float = _parameter("hflip_prob")
    color_jitter_prob: float = _parameter("color_jitter_prob")
    brightness: float = _parameter("brightness")
    contrast: float = _parameter("contrast")
    saturation: float = _parameter("saturation")
    hue: float = _parameter("hue")
    grayscale_prob: float = _parameter("grayscale_prob")
    gaussian_blur_prob: float = _parameter("gaussian_blur_prob")
    sigma: tuple[float, ...] = _parameter("sigma")
    solarize_prob: float = _parameter("solarize_prob")

    def __post_init__(self) -> None:
        """Refuse what no policy could have."""
        Policy(**self._given())

    def _given(self) -> dict[str, Any]:
        own = {field.name: getattr(self, field.name) for field in fields(Policy)}
        given = {name: value for name, value in own.items() if value not in ((), AS_POLICY)}
        for name, value in given.items():
            if isinstance(value, float) and value < 0:
                raise ValueError(f"{name} is {value:g}, it must be at least 0")
        return given

    def policies(self) -> tuple[Policy, ...]:
        """The policy of each view in turn, with the parameters that were given in the place of its own.

        >>> [p.scale for p in AugmentationSettings(policy="byol", scale=(0.3, 1.0)).policies()]
        [(0.3, 1.0), (0.3, 1.0)]
        """
        return tuple(replace(policy, **self._given()) for policy in POLICIES[self.policy])


COLOR = ("color_jitter_prob", "grayscale_prob")
"""Chances of operators that know red, green and blue."""


def resolve_views(settings: AugmentationSettings, image_size: int, channels: int = 3) -> AugmentationSettings:
    """The settings with `auto` replaced by the policy that suits views of this side and with these channels.

    >>> resolve_views(AugmentationSettings(), 32).policy, resolve_views(AugmentationSettings(), 224).policy
    ('simclr-small', 'simclr')

    Raises:
        UserError: there is no such policy, or it changes colors of images that have none.
    """
    if channels != 3:
        return _without_color(settings, channels)
    if settings.policy == "auto":
        return replace(settings, policy="simclr-small" if image_size <= SMALL else "simclr")
    if settings.policy not in POLICIES:
        do = did_you_mean(settings.policy, ("auto", *POLICIES))
        raise UserError(f"no policy is called {settings.policy!r}", where="augmentation.policy", do=do)
    return settings


def _without_color(settings: AugmentationSettings, channels: int) -> AugmentationSettings:
    chosen = replace(settings, policy="crop") if settings.policy == "auto" else settings
    wrong = [name for name in COLOR if any(getattr(policy, name) > 0 for policy in chosen.policies())]
    if wrong:
        raise UserError(
            f"{' and '.join(wrong)} of {chosen.policy} need red, green and blue, the images have {channels} channels",
            where="augmentation.policy",
            do=f"use --augmentation crop, or set {' and '.join(f'augmentation.{name}=0' for name in wrong)}",
        )
    return chosen


def plain_share(image_size: int) -> float:
    """Share of an image's shorter side that evaluation looks at: 0.875 (224 of 256), or all of a small image."""
    return 1.0 if image_size <= SMALL else 0.875
