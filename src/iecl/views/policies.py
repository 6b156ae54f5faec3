"""Named augmentation policies as data: how a view may differ from its image."""

from dataclasses import Field, dataclass, fields, make_dataclass, replace
from typing import Any

from iecl.errors import UserError, did_you_mean
from iecl.settings import setting
from iecl.views.operators import Policy

SMALL = 64
"""Views up to this side are small: blur would remove what little they show, and evaluation sees all of the image."""


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


AS_POLICY = -1
"""A parameter of `[augmentation]` that is left to the policy; an empty list for those that are pairs."""


def _parameter(declared: Field[Any]) -> tuple[str, Any, Any]:
    """A parameter of `Policy` as a setting of a run, which by default is the policy's own."""
    rules, default = declared.metadata, declared.default
    if isinstance(default, tuple):
        limits = {name: rules[name] for name in ("low", "high", "above")}
        return declared.name, tuple[float, ...], setting((), f"{rules['doc']}; []: the policy's", **limits)
    kind: Any = type(default)
    unsaid = setting(kind(AS_POLICY), f"{rules['doc']}; -1: the policy's", low=AS_POLICY, high=rules["high"])
    return declared.name, kind, unsaid


_Parameters: Any = make_dataclass("_Parameters", map(_parameter, fields(Policy)), frozen=True, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Overrides(_Parameters):  # type: ignore[misc]  # its fields are those of Policy
    """Parameters in the place of a policy's own."""

    def __post_init__(self) -> None:
        """Refuse what no policy could have."""
        Policy(**self.given())

    def given(self) -> dict[str, Any]:
        """Those that are not left to the policy."""
        given = {}
        for declared in fields(Policy):
            value, low = getattr(self, declared.name), declared.metadata["low"]
            if value in ((), AS_POLICY):
                continue
            if not isinstance(value, tuple) and value < low:
                raise ValueError(f"{declared.name} is {value:g}, it must be at least {low:g}")
            given[declared.name] = value
        return given


@dataclass(frozen=True, kw_only=True)
class _Named:
    policy: str = setting(
        "auto",
        f"how views differ from their image; auto: simclr, or simclr-small up to {SMALL} pixels",
        choices=("auto", *POLICIES),
        flag="--augmentation",
    )


@dataclass(frozen=True, kw_only=True)
class AugmentationSettings(Overrides, _Named):  # fields of the last base come first
    """Everything that decides how views are made."""

    anchor: Overrides = setting(Overrides(), "any of these for the first view alone, as in augmentation.anchor.hue=0")
    query: Overrides = setting(Overrides(), "any of these for the second view alone, as in augmentation.query.hue=0")

    def policies(self, spec: ViewSpec) -> tuple[Policy, ...]:
        """The policy of each view, with the parameters that were given in the place of its own.

        >>> given = AugmentationSettings(policy="byol", hue=0.0, query=Overrides(hue=0.2))
        >>> [p.hue for p in given.policies(ViewSpec(global_crops=3))]
        [0.0, 0.2, 0.0]
        """
        row, common = POLICIES[self.policy], self.given()
        alone = [self.anchor.given(), self.query.given()]
        return tuple(
            replace(row[number % len(row)], **common | (alone[number] if number < len(alone) else {}))
            for number in range(spec.global_crops + spec.local_crops)
        )


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
    wrong = [name for name in COLOR if any(getattr(policy, name) > 0 for policy in chosen.policies(ViewSpec()))]
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
