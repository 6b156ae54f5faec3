"""From a name to a backbone: the table, `torchvision/NAME` for its other models, `timm/NAME` with the timm extra."""

from torch import nn

from iecl import counter
from iecl.backbones import BACKBONES
from iecl.errors import UserError, lacking
from iecl.registry import resolve

LAST_NORM = {"BasicBlock": "bn2", "Bottleneck": "bn3"}
"""The blocks of ResNets, which torchvision and timm call alike, and the norm before each sum."""


def make_backbone(name: str, seed: int = 0, *, zero_init_residual: bool = False) -> nn.Module:
    """A freshly initialized backbone that maps images to features, with its width as `num_features`.

    The same name and seed give the same weights; torch's own generator is left as it was. With `zero_init_residual`
    every residual block starts as the identity.
    """
    made = _make(name, seed)
    if zero_init_residual and not zero_last_norms(made):
        raise UserError(
            f"{name} has no residual blocks that end with a norm",
            where="backbone.zero_init_residual",
            do="use a ResNet, or leave it off",
        )
    return made


def _make(name: str, seed: int) -> nn.Module:
    with counter.seeded(counter.key(seed, "weights/backbone")):
        if name.startswith("timm/"):
            return _from_timm(name.removeprefix("timm/"))
        if name.startswith("torchvision/"):
            from iecl.backbones.from_torchvision import headless

            return headless(name.removeprefix("torchvision/"))
        made: nn.Module = resolve(name, BACKBONES, "backbone", "--backbone").load()()
        return made


def zero_last_norms(backbone: nn.Module) -> int:
    """Let the last norm of each block of a ResNet start at zero; returns how many there are."""
    blocks = [part for part in backbone.modules() if type(part).__name__ in LAST_NORM]
    for block in blocks:
        nn.init.zeros_(block.get_submodule(LAST_NORM[type(block).__name__]).weight)  # type: ignore[arg-type]
    return len(blocks)


def _from_timm(name: str) -> nn.Module:
    try:
        import timm
    except ImportError as problem:
        raise lacking(f"backbone timm/{name}", "timm", extra="timm", where="--backbone") from problem
    if not timm.is_model(name):
        raise UserError(f"timm has no model {name!r}", where="--backbone", do="see timm.list_models()")
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return model


def stem_of(backbone: nn.Module) -> str:
    """What the first layers do to the resolution, as in `7x7, stride 2, max-pool`."""
    first = next((part for part in backbone.modules() if isinstance(part, nn.Conv2d)), None)
    if first is None:
        return "no convolution"
    pooled = isinstance(getattr(backbone, "maxpool", None), nn.MaxPool2d)
    height, width = first.kernel_size
    return f"{height}x{width}, stride {first.stride[0]}" + (", max-pool" if pooled else "")


def width_of(backbone: nn.Module) -> int:
    """The length of a feature."""
    width = getattr(backbone, "num_features", None)
    if not isinstance(width, int):
        raise UserError(
            f"{type(backbone).__name__} does not say how long its features are", do="set its attribute num_features"
        )
    return width
