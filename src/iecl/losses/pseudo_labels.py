"""Cross-entropy with labels that a clustering made (DeepCluster, Caron et al. 2018; DeepCluster-v2, 2020)."""

from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from iecl.estimators.precision import full_precision

NO_LABEL = -100
"""The label of a sample that was not clustered; it costs nothing."""


@full_precision
def pseudo_label_loss(
    logits: Float[Tensor, "n count"], labels: Int64[Tensor, " n"], weights: Float[Tensor, " n"] | None = None
) -> Float[Tensor, ""]:
    """Mean over the rows that have a label of weight times -log softmax at the label; 0 where no row has one.

    The mean is over rows, not over weights: a batch of heavy rows weighs more, as drawing them more often would.

    Collapse: log(count) for flat logits. Cost: n count.

    >>> import torch
    >>> labels = torch.tensor([0, 1, NO_LABEL])
    >>> round(pseudo_label_loss(torch.eye(3) / 0.1, labels).item(), 6)     # log(1 + 2 e^-10)
    9.1e-05
    """
    costs = cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)
    if weights is not None:
        costs = costs * weights
    return costs.sum() / (labels != NO_LABEL).sum().clamp_min(1)
