"""Logistic regression by scikit-learn's L-BFGS: the optimum that a probe trained with SGD should come near."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from iecl.evaluation.features import Features
from iecl.evaluation.linear_heads import ClassificationMetrics, LinearHeads

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Values of scikit-learn's C, the inverse of the penalty on squared weights."""
_ITERATIONS, _TOLERANCE = 1000, 1e-5


@dataclass(frozen=True)
class Optimum:
    """The best of several penalties, chosen without the test images."""

    metrics: ClassificationMetrics
    """On the test images."""
    strength: float
    """The C that was chosen."""
    held_out: dict[str, float]
    """Accuracy on the held-out images by C."""
    is_converged: bool
    """Whether L-BFGS came to its end before its last iteration."""


def optimum(
    train: Features,
    test: Features,
    parts: tuple[Int64[Tensor, " fit"], Int64[Tensor, " choose"]],
    classes: int,
    strengths: Sequence[float] = STRENGTHS,
) -> Optimum:
    """Fit on a part, choose the penalty by the loss of the held-out rows, fit on all rows with that one, test once."""
    part, rest = (train.rows(rows) for rows in parts)
    held = [logistic(part, classes, strength).head.evaluate(rest)[0] for strength in strengths]
    best = min(range(len(strengths)), key=lambda number: held[number].loss)
    final = logistic(train, classes, strengths[best])
    by_strength = {f"{strength:g}": metrics.top1 for strength, metrics in zip(strengths, held, strict=True)}
    return Optimum(final.head.evaluate(test)[0], strengths[best], by_strength, final.is_converged)


@dataclass(frozen=True)
class Fitted:
    """A classifier that scikit-learn found."""

    head: LinearHeads
    """One head, with minus infinity as the bias of classes that it never saw."""
    is_converged: bool


def logistic(train: Features, classes: int, strength: float) -> Fitted:
    """The minimum of the summed cross-entropy plus |weights|^2 / (2 strength); the bias is free."""
    from sklearn.exceptions import ConvergenceWarning  # takes a second, and few need it
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=_ITERATIONS, tol=_TOLERANCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said in the result
        model.fit(train.values.double().numpy(), train.labels.numpy())
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(model.classes_) == 2:  # one row of weights, for the second class against the first
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    whole = LinearHeads(torch.zeros(1, classes, train.values.shape[1]), torch.full((1, classes), -torch.inf))
    seen = torch.from_numpy(model.classes_)
    whole.weight[0, seen], whole.bias[0, seen] = weight.float(), bias.float()
    return Fitted(whole, bool((model.n_iter_ < _ITERATIONS).all()))
