"""timm's models without their head (extra `timm`), and the vision transformers of the table, which are among them."""

from functools import partial
from typing import Any

from torch import nn

from iecl.backbones.catalog import VITS, timm_options, unknown
from iecl.errors import lacking


def headless_timm(name: str, **options: Any) -> nn.Module:
    """A model of timm by its name, freshly initialized, without its head."""
    try:
        import timm
    except ImportError as problem:
        raise lacking(f"backbone timm/{name}", "timm", extra="timm", where="--backbone") from problem
    if not timm.is_model(name):
        raise unknown(f"timm/{name}")
    made: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **timm_options(name), **options)
    return made


def _vit(name: str) -> nn.Module:
    model, options = VITS[name]
    return headless_timm(model, **options)


vit_ti_16, vit_s_16 = partial(_vit, "vit_ti_16"), partial(_vit, "vit_s_16")
vit_ti_4, vit_s_4 = partial(_vit, "vit_ti_4"), partial(_vit, "vit_s_4")
