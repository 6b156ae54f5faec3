"""Which models torchvision and timm have, read from their sources: to import them takes seconds, and torch with it."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from iecl.backbones import BACKBONES
from iecl.brought import is_brought
from iecl.errors import UserError, did_you_mean, lacking
from iecl.registry import is_import

PACKAGES = ("torchvision", "timm")
VITS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_ti_16": ("vit_tiny_patch16_224", {}),
    "vit_s_16": ("vit_small_patch16_224", {}),
    "vit_ti_4": ("vit_tiny_patch16_224", {"patch_size": 4, "img_size": 32}),
    "vit_s_4": ("vit_small_patch16_224", {"patch_size": 4, "img_size": 32}),
}
"""Vision transformers of the table: timm's model, and what is asked of it."""
AUXILIARY = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
"""What torchvision's models need in order to give features alone."""


@cache
def families(package: str) -> dict[str, list[str]]:
    """The models of a package by family, which is the file they are defined in; empty where it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    found = {}
    for path in sorted((Path(spec.origin).parent / "models").glob("*.py")):
        names = _registered(path.read_text(encoding="utf-8").splitlines())
        if names:
            found[path.stem] = names
    return found


def _registered(lines: list[str]) -> list[str]:
    """Names of the functions behind `@register_model`; other decorators may stand between.

    >>> _registered(["@register_model()", "@other(", "    a=1)", "def tiny(x):", "def helper():"])
    ['tiny']
    """
    names, is_next = [], False
    for line in lines:
        is_next = is_next or line.startswith("@register_model")
        if is_next and line.startswith("def "):
            names.append(line.removeprefix("def ").partition("(")[0])
            is_next = False
    return names


def model_names(package: str) -> list[str]:
    """Every model of a package, as a backbone is called."""
    return [f"{package}/{name}" for names in families(package).values() for name in names]


def described(package: str) -> str:
    """How many models a package has, and of which families, the largest ones first."""
    found = families(package)
    if not found:
        return f"not installed: pip install 'iecl[{package}]'"
    count = sum(map(len, found.values()))
    largest = sorted(found, key=lambda family: (-len(found[family]), family))
    shown = ", ".join(f"{family} {len(found[family])}" for family in largest[:8])
    rest = f" and {len(found) - 8} more families" if len(found) > 8 else ""
    return f"{count:,} models: {shown}{rest}; all: iecl list backbones {package}/"


def timm_options(name: str) -> dict[str, Any]:
    """What is asked of a model of timm: a vision transformer takes images of any size, by resampled positions.

    >>> timm_options("vit_small_patch16_224"), timm_options("resnet50")
    ({'dynamic_img_size': True, 'dynamic_img_pad': True}, {})
    """
    is_vit = name.startswith(("vit_", "deit")) and not any(word in name for word in ("relpos", "rope"))
    return {"dynamic_img_size": True, "dynamic_img_pad": True} if is_vit else {}


def unknown(name: str) -> UserError:
    """The error for a name that no backbone has, with the nearest that one has."""
    known = [*BACKBONES, *(full for package in PACKAGES for full in model_names(package))]
    own = next((full for full in known if full.partition("/")[2] == name), None)
    package = name.partition("/")[0]
    near = did_you_mean(name, [one for one in known if one.startswith(f"{package}/")] or known)
    do = f"did you mean {own}?" if own else near if near.startswith("did") else "see: iecl list backbones"
    return UserError(f"no backbone is called {name!r}", where="--backbone", do=do)


def check_backbone(name: str) -> None:
    """Raise a `UserError` for a name that cannot be a backbone's, without importing anything."""
    if name in BACKBONES or is_brought(name) or is_import(name):
        return
    package = name.partition("/")[0]
    if package in PACKAGES and find_spec(package) is None:
        raise lacking(f"backbone {name}", package, extra=package, where="--backbone")
    if package not in PACKAGES or name not in model_names(package):
        raise unknown(name)
