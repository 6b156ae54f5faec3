"""Views of two sizes through one backbone."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl.views.pipeline import Views


def encode_views(backbone: nn.Module, views: Views) -> Float[Tensor, "rows width"]:
    """Features of all full views, then of all small ones, one view after the other.

    One pass for each size, as in the code of SwAV and DINO: batch norm sees the views of a size together.
    """
    sizes = [torch.cat(some) for some in (views.global_crops, views.local_crops) if some]
    return torch.cat([backbone(x) for x in sizes])
