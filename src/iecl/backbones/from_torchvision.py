"""torchvision's classifiers without their last layer; every other key keeps torchvision's name."""

from functools import partial

from torch import nn
from torchvision import models

from iecl.backbones.catalog import AUXILIARY, unknown


def without_head(model: nn.Module) -> nn.Module:
    """The same module with its last linear layer turned into the identity and its width in `num_features`.

    SqueezeNet has none: its last convolution maps features to classes, before the pooling.
    """
    kinds = nn.Conv2d if isinstance(model, models.SqueezeNet) else nn.Linear
    *_, (name, head) = ((name, part) for name, part in model.named_modules() if isinstance(part, kinds))
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    width = head.in_channels if isinstance(head, nn.Conv2d) else head.in_features
    model.num_features = width  # type: ignore[assignment]  # the name that timm uses too
    return model


def headless(name: str) -> nn.Module:
    """A torchvision classifier by its builder's name, freshly initialized, without its head."""
    if name not in models.list_models(module=models):
        raise unknown(f"torchvision/{name}")
    return without_head(models.get_model(name, weights=None, **AUXILIARY.get(name, {})))


resnet18 = partial(headless, "resnet18")
resnet34 = partial(headless, "resnet34")
resnet50 = partial(headless, "resnet50")
resnet101 = partial(headless, "resnet101")
convnext_tiny = partial(headless, "convnext_tiny")
vit_b_16 = partial(headless, "vit_b_16")
