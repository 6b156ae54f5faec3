"""torchvision's classifiers without their last layer; every other key keeps torchvision's name."""

from functools import partial

from torch import nn
from torchvision import models

from iecl.errors import UserError, did_you_mean


def without_head(model: nn.Module) -> nn.Module:
    """The same module with its last linear layer turned into the identity and its width in `num_features`."""
    name, head = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)][-1]
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    model.num_features = head.in_features  # type: ignore[assignment]  # the name that timm uses too
    return model


def headless(name: str) -> nn.Module:
    """A torchvision classifier by its builder's name, freshly initialized, without its head."""
    known = models.list_models(module=models)
    if name not in known:
        raise UserError(f"torchvision has no classifier {name!r}", where="--backbone", do=did_you_mean(name, known))
    return without_head(models.get_model(name, weights=None))


resnet18 = partial(headless, "resnet18")
resnet34 = partial(headless, "resnet34")
resnet50 = partial(headless, "resnet50")
resnet101 = partial(headless, "resnet101")
convnext_tiny = partial(headless, "convnext_tiny")
vit_b_16 = partial(headless, "vit_b_16")
