"""Entropy and divergence of embeddings: differentiable pure functions.

Every row of the tables can be called with its defaults: an entropy as f(z), where a larger value means more entropy,
a divergence as f(p, q), which is 0 (up to the estimator's bias) for equal laws.
"""

from dataclasses import dataclass

from iecl.registry import Entry


@dataclass(frozen=True)
class EntropyEntry(Entry):
    """An entropy of the table: what must be known of it besides its function."""

    grows_with_dim: bool = False
    """Whether it is a sum over dimensions."""
    is_of_moments: bool = False
    """Whether mean and covariance are enough to compute it, so that a stream of any length can be measured exactly."""


ENTROPIES: dict[str, EntropyEntry] = {
    "coding-rate": EntropyEntry(
        "iecl.estimators.coding_rate:coding_rate",
        "bits to code the rows up to an error; bounded",
        grows_with_dim=True,
        is_of_moments=True,
    ),
    "gaussian-logdet": EntropyEntry(
        "iecl.estimators.gaussian:log_det_entropy",
        "entropy of a Gaussian with this covariance",
        grows_with_dim=True,
        is_of_moments=True,
    ),
    "knn": EntropyEntry(
        "iecl.estimators.nearest:nearest_entropy",
        "Kozachenko-Leonenko: distances to the nearest rows",
        grows_with_dim=True,
    ),
    "renyi": EntropyEntry(
        "iecl.estimators.spectrum:renyi_entropy", "matrix Renyi entropy of order 2; ignores scale", is_of_moments=True
    ),
    "uniformity": EntropyEntry(
        "iecl.estimators.sphere:uniformity_entropy", "minus the uniformity of rows on the sphere"
    ),
    "vmf-kde": EntropyEntry(
        "iecl.estimators.sphere:vmf_entropy", "kernel density on the sphere, each row left out in turn"
    ),
}

DIVERGENCES: dict[str, Entry] = {
    "gaussian-diag": Entry("iecl.estimators.divergence:gaussian_diagonal_kl", "KL of Gaussians without correlations"),
    "gaussian-full": Entry("iecl.estimators.divergence:gaussian_full_kl", "KL of Gaussians with shrunk covariances"),
    "softmax": Entry("iecl.estimators.divergence:softmax_kl", "KL of softmax over columns, row by row"),
    "printed": Entry("iecl.estimators.divergence:printed_kl", "the paper's formula with its sign error, for study"),
    "knn": Entry("iecl.estimators.nearest:nearest_divergence", "KL from nearest distances (Wang et al. 2009)"),
    "mmd": Entry("iecl.estimators.discrepancy:mmd_squared", "squared maximum mean discrepancy, Gaussian kernel"),
}
