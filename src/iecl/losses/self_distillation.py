"""DINO's loss: the student's softmax matches the teacher's centered and sharpened one (Caron et al. 2021)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import log_softmax

from iecl.estimators.precision import full_precision


@full_precision
def self_distillation(
    students: Float[Tensor, "views n count"],
    teachers: Float[Tensor, "full n count"],
    center: Float[Tensor, " count"],
    temperature: float,
    teacher_temperature: float,
) -> Float[Tensor, ""]:
    """Mean over teacher views g and student views v other than g of -sum softmax((T_g - c) / tt) log softmax(S_v / t).

    The teacher's views are the first of the student's, in order, and carry no gradient. Dividing by a small `tt`
    sharpens, subtracting the center keeps one direction from winning everywhere.

    Collapse: log(count) where all outputs are flat, 0 where one direction always wins. Cost: full views n count.

    >>> flat = torch.zeros(2, 4, 5)
    >>> round(self_distillation(flat, flat, torch.zeros(5), 0.1, 0.04).item(), 6)     # log 5
    1.609438
    """
    targets = ((teachers.detach() - center) / teacher_temperature).softmax(2)
    log_guesses = log_softmax(students / temperature, dim=2)
    terms = [
        -(targets[full] * log_guesses[view]).sum(1).mean()
        for full in range(len(targets))
        for view in range(len(students))
        if view != full
    ]
    return torch.stack(terms).mean()
