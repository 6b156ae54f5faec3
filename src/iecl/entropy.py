"""Meters of entropy: what a map adds to images, what an encoder keeps, how spread embeddings are.

Everything a user needs under one name, `iecl.entropy`. Natural logarithms throughout. Three groups:

- maps of images: `entropy_gain`, `log_abs_det`, `stochastic_log_abs_det`, `singular_values`, `singular_range`;
- encoders: `log_volume`;
- embeddings: the entropies and divergences of `iecl.estimators`, and `streamed`, which accumulates and merges them.
"""

from iecl.errors import UserError
from iecl.estimators.coding_rate import coding_rate
from iecl.estimators.discrepancy import mmd_squared
from iecl.estimators.divergence import (
    gaussian_diagonal_kl,
    gaussian_full_kl,
    gaussian_kl,
    isotropic_kl,
    printed_isotropic_kl,
    printed_kl,
    softmax_kl,
)
from iecl.estimators.gaussian import covariance, gaussian_entropy, log_det_bias, log_det_entropy
from iecl.estimators.log_det import LogDet, dual_log_det, stochastic_log_det
from iecl.estimators.nearest import nearest_divergence, nearest_entropy
from iecl.estimators.spectrum import effective_rank, renyi_entropy, spectrum, von_neumann_entropy
from iecl.estimators.sphere import log_vmf_constant, uniformity, uniformity_entropy, vmf_entropy
from iecl.meters.entropy_gain import EntropyGain, entropy_gain
from iecl.meters.jacobian import (
    Linearised,
    LogVolume,
    SingularRange,
    jacobian,
    log_abs_det,
    log_volume,
    singular_range,
    singular_values,
    stochastic_log_abs_det,
)
from iecl.meters.label_free import power_law, rank_me
from iecl.meters.streaming import MOMENTS, SAMPLED, StreamedMoments, StreamedSample
from iecl.saib.certificate import Certificate

__all__ = [
    "Certificate",
    "EntropyGain",
    "Linearised",
    "LogDet",
    "LogVolume",
    "SingularRange",
    "StreamedMoments",
    "StreamedSample",
    "coding_rate",
    "covariance",
    "dual_log_det",
    "effective_rank",
    "entropy_gain",
    "gaussian_diagonal_kl",
    "gaussian_entropy",
    "gaussian_full_kl",
    "gaussian_kl",
    "isotropic_kl",
    "jacobian",
    "log_abs_det",
    "log_det_bias",
    "log_det_entropy",
    "log_vmf_constant",
    "log_volume",
    "mmd_squared",
    "nearest_divergence",
    "nearest_entropy",
    "power_law",
    "printed_isotropic_kl",
    "printed_kl",
    "rank_me",
    "renyi_entropy",
    "singular_range",
    "singular_values",
    "softmax_kl",
    "spectrum",
    "stochastic_log_abs_det",
    "stochastic_log_det",
    "streamed",
    "uniformity",
    "uniformity_entropy",
    "vmf_entropy",
    "von_neumann_entropy",
]


def streamed(name: str, dim: int, *, capacity: int = 4096, seed: int = 0) -> StreamedMoments | StreamedSample:
    """The meter that accumulates the entropy `name`, with the estimator's defaults.

    >>> type(streamed("coding-rate", 8)).__name__, type(streamed("knn", 8)).__name__
    ('StreamedMoments', 'StreamedSample')

    Raises:
        UserError: for a name that no meter has.
    """
    if name in MOMENTS:
        return StreamedMoments(name, dim)
    if name in SAMPLED:
        return StreamedSample(name, capacity=capacity, seed=seed)
    raise UserError(f"no meter is called {name!r}", where="name", do=f"one of: {', '.join((*MOMENTS, *SAMPLED))}")
