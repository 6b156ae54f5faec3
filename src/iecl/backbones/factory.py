"""From a name to a backbone: the table, every model of torchvision and timm, and networks of your own.

`torchvision/NAME`, `timm/NAME` with the timm extra, `package.module:factory`, or what a Python program brought.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from iecl import counter
from iecl.backbones import BACKBONES
from iecl.backbones.catalog import unknown
from iecl.brought import find, is_brought
from iecl.errors import UserError
from iecl.registry import imported, is_import

LAST_NORM = {"BasicBlock": "bn2", "Bottleneck": "bn3"}
"""The blocks of ResNets, which torchvision and timm call alike, and the norm before each sum."""


def make_backbone(name: str, seed: int = 0, channels: int = 3, *, zero_init_residual: bool = False) -> nn.Module:
    """A freshly initialized backbone that maps images to features, with its width as `num_features`.

    The same name and seed give the same weights; torch's own generator is left as it was. For another number of
    channels the first convolution is a new one; a network of the user's takes them as it is. With `zero_init_residual`
    every residual block starts as the identity.
    """
    made = _make(name, seed, channels)
    if zero_init_residual and not zero_last_norms(made):
        raise UserError(
            f"{name} has no residual blocks that end with a norm",
            where="backbone.zero_init_residual",
            do="use a ResNet, or leave it off",
        )
    return made


def _make(name: str, seed: int, channels: int) -> nn.Module:
    if is_brought(name) or is_import(name):
        with counter.seeded(counter.key(seed, "weights/backbone")):
            return _own(name, channels)
    made = _of_packages(name, seed)
    if channels != 3:
        with counter.seeded(counter.key(seed, f"weights/{channels} channels")):
            _take_channels(made, name, channels)
    return made


def _take_channels(backbone: nn.Module, name: str, channels: int) -> None:
    for place, part in backbone.named_modules():
        if isinstance(part, nn.Conv2d) and part.in_channels == 3:
            kernel: Any = part.kernel_size
            how: Any = {"stride": part.stride, "padding": part.padding, "bias": part.bias is not None}
            backbone.set_submodule(place, nn.Conv2d(channels, part.out_channels, kernel, **how))
            return
    raise UserError(f"{name} begins with no convolution", where="data.channels", do="choose another backbone")


def _of_packages(name: str, seed: int) -> nn.Module:
    with counter.seeded(counter.key(seed, "weights/backbone")):
        if name.startswith("timm/"):
            from iecl.backbones.from_timm import headless_timm

            return headless_timm(name.removeprefix("timm/"))
        if name.startswith("torchvision/"):
            from iecl.backbones.from_torchvision import headless

            return headless(name.removeprefix("torchvision/"))
        if name not in BACKBONES:
            raise unknown(name)
        made: nn.Module = BACKBONES[name].load()()
        return made


def zero_last_norms(backbone: nn.Module) -> int:
    """Let the last norm of each block of a ResNet start at zero; returns how many there are."""
    blocks = [part for part in backbone.modules() if type(part).__name__ in LAST_NORM]
    for block in blocks:
        nn.init.zeros_(block.get_submodule(LAST_NORM[type(block).__name__]).weight)  # type: ignore[arg-type]
    return len(blocks)


def _own(name: str, channels: int) -> nn.Module:
    """A network of the user's: a module as it is, weights included, or what a function or class gives when called."""
    thing: Any = find(name, "backbone") if is_brought(name) else imported(name, "factory", "--backbone")
    made = deepcopy(thing) if isinstance(thing, nn.Module) else thing()
    if not isinstance(made, nn.Module):
        raise UserError(f"{name} gives a {type(made).__name__}, not an nn.Module", where="--backbone")
    if not isinstance(getattr(made, "num_features", None), int):
        made.num_features = _measured_width(made, name, channels)  # type: ignore[assignment]  # a number, as timm has it
    return made


@torch.no_grad()
def _measured_width(module: nn.Module, name: str, channels: int) -> int:
    """The length of a feature of a module that does not say it, by images of usual sizes."""
    was_training, problem, shape = module.training, None, None
    module.eval()
    for side in (224, 64, 32):
        try:
            shape = tuple(module(torch.zeros(1, channels, side, side)).shape)
            break
        except Exception as raised:  # somebody else's code
            problem = raised
    module.train(was_training)
    if shape is None or len(shape) != 2:
        what = f"gives {shape} for one image" if shape else f"takes no image of 224, 64 or 32 px: {problem}"
        do = "let it return (images, features), or say how long a feature is in its attribute num_features"
        raise UserError(f"{name} {what}", where="--backbone", do=do)
    return int(shape[1])


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
