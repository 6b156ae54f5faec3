"""Views of two sizes through one backbone."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec

FULL_SCALE = (0.14, 1.0)
"""Share of the area in a full view beside small ones, which cover less: the scripts of facebookresearch/swav."""


def multi_crop(local_crops: int) -> ViewSpec:
    """Two full views and so many small ones; without any, full views are the policy's own."""
    return ViewSpec(local_crops=local_crops, global_scale=FULL_SCALE if local_crops else None)


def encode_views(backbone: nn.Module, views: Views) -> Float[Tensor, "rows width"]:
    """Features of all full views, then of all small ones, one view after the other.

    One pass for each size, as in the code of SwAV and DINO: batch norm sees the views of a size together.
    """
    sizes = [torch.cat(some) for some in (views.global_crops, views.local_crops) if some]
    return torch.cat([backbone(x) for x in sizes])
