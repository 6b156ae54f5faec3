"""What a map adds to the entropy of images, split into plain rescaling and the rest.

The change of entropy is the mean of log|det J|. Doubling an image adds log 2 per dimension and no information, and an
encoder that starts with a convolution and batch norm undoes it: every gain is therefore reported in two parts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.log_det import LogDet, random_signs
from iecl.estimators.precision import full_precision
from iecl.meters.jacobian import Linearised, Map, check_square, log_det_of

RULERS = ("images", "singular-values")


@dataclass(frozen=True)
class EntropyGain:
    """Nats per dimension, mean over the images: total = rescaling + rest."""

    total: Float[Tensor, ""]
    rescaling: Float[Tensor, ""]
    """What multiplying by the gain alone would add."""
    rest: Float[Tensor, ""]
    """0 for a map that only scales."""
    standard_error: Float[Tensor, ""]
    """Of the total, from the random probes; 0 when it is exact."""


@torch.no_grad()
def entropy_gain(
    f: Map,
    x: Float[Tensor, "n ..."],
    *,
    ruler: str = "images",
    probes: int = 0,
    steps: int = 30,
    seed: int = 0,
    is_mixing: bool = False,
) -> EntropyGain:
    """Change of entropy by `f` per dimension, with rescaling set apart.

    `ruler` says what the gain of a rescaling is measured by:

    - `images`: RMS of f(x) over RMS of x, each about the mean of its channel. The rest is the entropy that is added
      at equal power: positive when the map strengthens what is weak in the images (it whitens), negative when it
      strengthens what is strong, or contracts.
    - `singular-values`: root of the mean squared singular value of J. By Jensen's inequality the rest is then never
      positive: it is minus the unevenness of the singular values, 0 only where all directions are scaled alike.

    With `probes` = 0 the determinant is exact (small images only), else estimated as `stochastic_log_abs_det` does.

    Scale: c f has log c more in `rescaling`, and the same `rest`. Bias and cost: those of the determinant.

    >>> x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> found = entropy_gain(lambda x: 2 * x + 1, x)
    >>> round(found.total.item(), 6), round(found.rescaling.item(), 6), abs(round(found.rest.item(), 6))     # log 2
    (0.693147, 0.693147, 0.0)
    """
    if ruler not in RULERS:
        raise UserError(f"no ruler is called {ruler!r}", where="ruler", do=f"one of: {', '.join(RULERS)}")
    seen = Linearised(f, x, is_mixing=is_mixing)
    if probes:
        log_det = log_det_of(seen, probes, steps, seed)
        signs = [random_signs(seed, probe, x.reshape(seen.points, -1)) for probe in range(probes)]
        squares = torch.stack([seen.push(sign).square().mean(1) for sign in signs]).mean(0)  # E |Jz|² = |J|²
    else:
        check_square(seen.outputs, seen.inputs)
        matrix = seen.rows()
        log_det = exactly(torch.linalg.slogdet(matrix).logabsdet)
        squares = matrix.square().sum((1, 2)) / seen.inputs
    if ruler == "images":
        return gain_of(x, seen.y.detach(), log_det, seen.inputs)
    return split(log_det, squares.log().mean() / 2, seen.inputs)


def gain_of(x: Float[Tensor, "n ..."], y: Float[Tensor, "n ..."], log_det: LogDet, inputs: int) -> EntropyGain:
    """The gain of a map from `x` to `y` whose log-determinants are known; differentiable where they are."""
    return split(log_det, rms(y).log() - rms(x).log(), inputs)


def split(log_det: LogDet, rescaling: Float[Tensor, ""], inputs: int) -> EntropyGain:
    """Total and rest per dimension, given what rescaling adds."""
    total = log_det.value.mean() / inputs
    # Probes of different images are independent: their variances add up.
    error = log_det.standard_error.square().sum().sqrt() / (len(log_det.value) * inputs)
    return EntropyGain(total, rescaling, total - rescaling, error)


def exactly(value: Float[Tensor, " points"]) -> LogDet:
    """A log-determinant that is no estimate."""
    return LogDet(value, torch.zeros_like(value), torch.zeros_like(value))


@full_precision
def rms(x: Float[Tensor, "n channels ..."]) -> Float[Tensor, ""]:
    """Root mean square of images about the mean of each channel.

    >>> rms(torch.tensor([[[1.0, 3.0], [5.0, 5.0]]]))     # root of (1 + 1 + 0 + 0) / 4
    tensor(0.7071)
    """
    others = [axis for axis in range(x.ndim) if axis != 1]
    return (x - x.mean(others, keepdim=True)).square().mean().sqrt()
