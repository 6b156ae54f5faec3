"""Every term, weight and stop-gradient of the IE-CL objective."""

from dataclasses import dataclass

from iecl.estimators import DIVERGENCES, ENTROPIES
from iecl.settings import setting


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is added to the host's loss."""

    entropy: str = setting("none", "estimator of the entropy that is maximized", choices=("none", *ENTROPIES))
    entropy_weight: float = setting(0.2, "weight λ of the entropy", low=0, needs="objective.entropy")
    entropy_on: str = setting(
        "query",
        "whose projections the entropy is measured on",
        choices=("query", "anchor", "both"),
        needs="objective.entropy",
    )
    entropy_norm: str = setting(
        "sqrt-dim",
        "what an entropy that is a sum over dimensions (coding-rate, gaussian-logdet, knn) is divided by: the root of "
        "their number, so that one weight serves every width, or nothing",
        choices=("sqrt-dim", "none"),
        needs="objective.entropy",
    )
    raw: bool = setting(False, "entropy and divergence of projections as they are; the default is on the unit sphere")
    kl: str = setting("none", "divergence that keeps the query near the anchor", choices=("none", *DIVERGENCES))
    kl_weight: float = setting(0.09, "weight β of the divergence", low=0, needs="objective.kl")
    kl_gradient: str = setting(
        "anchor",
        "which view the divergence moves; the other is held still",
        choices=("anchor", "query", "both"),
        needs="objective.kl",
    )
    encoder: str = setting(
        "none",
        "constraint on every convolution of the encoder",
        choices=("none", "spectral-norm", "orthogonality", "sigma-min", "srip"),
    )
    encoder_weight: float = setting(
        1.0, "weight η of the penalty on the encoder; spectral norm is built in", low=0, needs="objective.encoder"
    )
    encoder_norm: str = setting(
        "kernel",
        "what spectral norm makes 1: the kernel as a matrix (printed), or the convolution at its input's size",
        choices=("kernel", "operator"),
        needs="objective.encoder",
    )
    expansion: str = setting(
        "none",
        "certified block: maximize what it adds to the entropy of an image, in total or beyond rescaling",
        choices=("none", "total", "rest"),
    )
    expansion_weight: float = setting(
        1.0, "weight of the expansion, in nats per dimension", low=0, needs="objective.expansion"
    )
    expansion_images: int = setting(
        8, "how many images of a batch the expansion is measured on", low=1, needs="objective.expansion"
    )

    @property
    def is_plain(self) -> bool:
        """Whether nothing is added to the host's loss."""
        return self.entropy == self.kl == self.encoder == self.expansion == "none"

    def measures(self, view: str) -> bool:
        """Whether a term of ours needs the projection of this view, `anchor` or `query`."""
        return self.kl != "none" or (self.entropy != "none" and self.entropy_on in (view, "both"))

    def moves(self, view: str) -> bool:
        """Whether a term of ours sends gradient to this view, and so to a block on it."""
        by_kl = self.kl != "none" and self.kl_gradient in (view, "both")
        return by_kl or (self.entropy != "none" and self.entropy_on in (view, "both"))
