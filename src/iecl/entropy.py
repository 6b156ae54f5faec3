"""Meters of entropy: what a map adds to images, what an encoder keeps, how spread embeddings are.

Everything a user needs under one name, `iecl.entropy`. Natural logarithms throughout. Three groups:

- maps of images: `entropy_gain`, `log_abs_det`, `stochastic_log_abs_det`, `singular_values`, `singular_range`;
- encoders: `log_volume`;
- embeddings: the entropies and divergences of `iecl.estimators`, each by the name of its function (`coding_rate`,
  `softmax_kl`, ...), and `streamed`, which accumulates and merges them.
"""

from typing import Any

from iecl.errors import UserError
from iecl.estimators import DIVERGENCES, ENTROPIES
from iecl.estimators.divergence import gaussian_kl, isotropic_kl, printed_isotropic_kl
from iecl.estimators.gaussian import covariance, gaussian_entropy, log_det_bias
from iecl.estimators.log_det import LogDet, dual_log_det, stochastic_log_det
from iecl.estimators.spectrum import effective_rank, spectrum, von_neumann_entropy
from iecl.estimators.sphere import log_vmf_constant, uniformity
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

_TABLED = {entry.target.partition(":")[2]: entry for table in (ENTROPIES, DIVERGENCES) for entry in table.values()}
"""The estimators of the tables, by the names of their functions."""

__all__ = [  # names from a table
    *_TABLED,
    "Certificate",
    "EntropyGain",
    "Linearised",
    "LogDet",
    "LogVolume",
    "SingularRange",
    "StreamedMoments",
    "StreamedSample",
    "covariance",
    "dual_log_det",
    "effective_rank",
    "entropy_gain",
    "gaussian_entropy",
    "gaussian_kl",
    "isotropic_kl",
    "jacobian",
    "log_abs_det",
    "log_det_bias",
    "log_vmf_constant",
    "log_volume",
    "power_law",
    "printed_isotropic_kl",
    "rank_me",
    "singular_range",
    "singular_values",
    "spectrum",
    "stochastic_log_abs_det",
    "stochastic_log_det",
    "streamed",
    "uniformity",
    "von_neumann_entropy",
]


def __getattr__(name: str) -> Any:
    if name not in _TABLED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _TABLED[name].load()


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
