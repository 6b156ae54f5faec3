"""Named augmentation policies as data: how a view may differ from its image."""

from dataclasses import dataclass, replace

from iecl.errors import UserError, did_you_mean
from iecl.settings import setting

SMALL = 64
"""Views up to this side are small: blur would remove what little they show, and evaluation sees all of the image."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The chances and ranges one view is drawn from."""

    crop_low: float = setting(0.08, "least share of the image's area in a crop; 1: the whole image", above=0, high=1)
    crop_high: float = setting(1.0, "greatest share of the image's area in a crop", above=0, high=1)
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "least and greatest width / height of a crop", above=0)
    flip: float = setting(0.5, "chance of a mirror image", low=0, high=1)
    jitter: float = setting(0.8, "chance of color jitter", low=0, high=1)
    brightness: float = setting(0.4, "brightness is multiplied by 1 ± this at most", low=0)
    contrast: float = setting(0.4, "contrast is multiplied by 1 ± this at most", low=0)
    saturation: float = setting(0.4, "saturation is multiplied by 1 ± this at most", low=0)
    hue: float = setting(0.1, "hue is turned by this share of the color circle at most", low=0, high=0.5)
    gray: float = setting(0.2, "chance of losing all color", low=0, high=1)
    blur: float = setting(0.0, "chance of a Gaussian blur", low=0, high=1)
    blur_low: float = setting(0.1, "least deviation of the blur in pixels of the view", above=0)
    blur_high: float = setting(2.0, "greatest deviation of the blur in pixels of the view", above=0)
    solarize: float = setting(0.0, "chance of inverting the brighter half of the tones", low=0, high=1)

    def __post_init__(self) -> None:
        if len(self.ratio) != 2:
            raise ValueError("ratio needs two numbers, the least and the greatest")
        pairs = {"crop": (self.crop_low, self.crop_high), "ratio": self.ratio, "blur": (self.blur_low, self.blur_high)}
        for name, (low, high) in pairs.items():
            if low > high:
                raise ValueError(f"{name} goes from {low:g} to {high:g}: the first must not be the greater")


_HALF_STRENGTH = Policy()
_FULL_STRENGTH = Policy(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
_CROP = Policy(jitter=0.0, gray=0.0)
# Grill et al. 2020, table 6: the views share the colors and differ in blur and solarization.
_BYOL = Policy(saturation=0.2)
_BYOL_PAIR = (replace(_BYOL, blur=1.0), replace(_BYOL, blur=0.1, solarize=0.2))

POLICIES: dict[str, tuple[Policy, ...]] = {
    # Chen et al. 2020, appendix A: color strength 1, blur for every second view.
    "simclr": (replace(_FULL_STRENGTH, blur=0.5),),
    # The same authors on CIFAR-10, appendix B.9: color strength 0.5, no blur.
    "simclr-small": (_HALF_STRENGTH,),
    # Chen et al. 2020 (MoCo v2), as their training script has it: crops keep a fifth of the image at least.
    "moco-v2": (replace(_HALF_STRENGTH, crop_low=0.2, blur=0.5),),
    # The CIFAR-10 notebook of the same repository: no blur, and crops down to 0.08. That is SimCLR's small set.
    "moco-small": (_HALF_STRENGTH,),
    # Chen et al. 2021 (MoCo v3) with a ResNet: BYOL's views with less tight crops. Their ViT uses `byol`.
    "moco-v3": tuple(replace(policy, crop_low=0.2) for policy in _BYOL_PAIR),
    # Grill et al. 2020, table 6.
    "byol": _BYOL_PAIR,
    # solo-learn's CIFAR recipes of BYOL: no blur, solarization stays.
    "byol-small": (_BYOL, replace(_BYOL, solarize=0.2)),
    # Ermolov et al. 2021 (W-MSE), as their training script has it: less gray, no blur. There colors come before crops.
    "w-mse": (replace(_HALF_STRENGTH, crop_low=0.2, gray=0.1),),
    # solo-learn's CIFAR recipe of VICReg: both views alike, crops keep a fifth, some solarization.
    "vicreg-small": (replace(_BYOL, crop_low=0.2, solarize=0.1),),
    # Caron et al. 2021 (DINO): BYOL's pair for the full views, and a third kind for up to eight small ones.
    "dino": (*_BYOL_PAIR, *[replace(_BYOL, blur=0.5)] * 8),
    # solo-learn's CIFAR recipes of SimSiam and MoCo-v2+ (symmetric_weak.yaml): SimCLR's small set, with blur.
    "solo-weak": (replace(_HALF_STRENGTH, blur=0.5),),
    # The augmentation of supervised ImageNet training.
    "crop": (_CROP,),
    # No augmentation: every view is the image.
    "none": (replace(_CROP, crop_low=1.0, flip=0.0),),
}
"""One policy for each view in turn; a single one holds for every view."""


@dataclass(frozen=True)
class ViewPlan:
    """How many views of each image a method wants.

    Small views are tight crops of three sevenths of the side, 96 of 224 pixels (multi-crop, Caron et al. 2020).
    """

    full: int = 2
    small: int = 0
    full_crop: tuple[float, float] | None = None
    """Least and greatest share of the area in a full view; None: the policy's."""
    small_crop: tuple[float, float] = (0.05, 0.14)

    @staticmethod
    def small_side(side: int) -> int:
        """Pixels on a side of a small view, for full views of `side`."""
        return round(side * 3 / 7)


@dataclass(frozen=True, kw_only=True)
class AugmentationSettings:
    """Everything that decides how views are made."""

    policy: str = setting(
        "auto",
        f"how views differ from their image; auto: simclr, or simclr-small up to {SMALL} pixels",
        choices=("auto", *POLICIES),
    )


def resolve_views(settings: AugmentationSettings, image_size: int) -> AugmentationSettings:
    """The settings with `auto` replaced by the policy that suits views of this side.

    >>> resolve_views(AugmentationSettings(), 32).policy, resolve_views(AugmentationSettings(), 224).policy
    ('simclr-small', 'simclr')
    """
    if settings.policy == "auto":
        return replace(settings, policy="simclr-small" if image_size <= SMALL else "simclr")
    if settings.policy not in POLICIES:
        do = did_you_mean(settings.policy, ("auto", *POLICIES))
        raise UserError(f"no policy is called {settings.policy!r}", where="augmentation.policy", do=do)
    return settings


def plain_share(image_size: int) -> float:
    """Share of an image's shorter side that evaluation looks at: 0.875 (224 of 256), or all of a small image."""
    return 1.0 if image_size <= SMALL else 0.875
