"""InfoNCE times 2t, so that the size of its gradient hardly depends on the temperature (MoCo-v3, Chen et al. 2021)."""

from jaxtyping import Float
from torch import Tensor

from iecl.losses.info_nce import info_nce


def scaled_info_nce(
    predictions: Float[Tensor, "batch dim"], keys: Float[Tensor, "all dim"], temperature: float, first: int = 0
) -> Float[Tensor, ""]:
    """2t times the mean over images of -log softmax(p_i.k / t) at the key of i: one direction of MoCo-v3.

    The key of prediction i is row `first` + i. MoCo-v3 adds the two directions.

    Collapse: 2t log(keys). With one anchor for each key it is at least 2t log(keys) - 2: with t = 1 and 4096 keys a
    healthy run stays between 14.6 and 16.6, and a lower value means missing keys. Cost: batch keys dim.

    >>> import torch
    >>> round(scaled_info_nce(torch.ones(4, 8), torch.ones(4, 8), temperature=0.2).item(), 6)     # 0.4 log 4
    0.554518
    """
    return 2 * temperature * info_nce(predictions, keys, temperature, first=first)
