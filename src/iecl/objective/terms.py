"""What IE-CL adds to its host's loss: entropy, divergence, a penalty on the encoder, the expansion of the block."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl import counter, parallel
from iecl.errors import UserError
from iecl.estimators import DIVERGENCES, ENTROPIES
from iecl.estimators.precision import full_precision
from iecl.losses.orthogonality import orthogonality, restricted_isometry, sigma_min_hinge
from iecl.meters.entropy_gain import EntropyGain
from iecl.objective.settings import ObjectiveSettings
from iecl.parts.other_norm import alone
from iecl.saib.contract import InputBlock
from iecl.saib.placement import VIEWS, Placement
from iecl.schedule import Clock
from iecl.views.pipeline import Views

PENALTIES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "orthogonality": orthogonality,
    "sigma-min": lambda kernels: sigma_min_hinge(kernels, 1.0),
    "srip": restricted_isometry,
}
Values = dict[str, Float[Tensor, ""]]


class Terms:
    """The terms that the settings ask for, as values: their weights and signs are put on by `loss`."""

    def __init__(self, settings: ObjectiveSettings) -> None:
        self.settings = settings
        self.entropy = None if settings.entropy == "none" else ENTROPIES[settings.entropy].load()
        self.divergence = None if settings.kl == "none" else DIVERGENCES[settings.kl].load()

    def of_projections(self, projections: dict[str, Float[Tensor, "n out"]]) -> Values:
        """Entropy and divergence of what the host made of the views that `settings.measures` names."""
        settings, found = self.settings, Values()
        measured = {name: self._measured(projections[name]) for name in VIEWS if settings.measures(name)}
        if self.entropy is not None:
            chosen = [z for name, z in measured.items() if settings.entropy_on in (name, "both")]
            total = torch.stack([self.entropy(z) for z in chosen]).mean()
            is_divided = ENTROPIES[settings.entropy].grows_with_dim and settings.entropy_norm == "sqrt-dim"
            found["entropy"] = total / chosen[0].shape[1] ** 0.5 if is_divided else total
        if self.divergence is not None:
            query, anchor = measured["query"], measured["anchor"]
            query = query.detach() if settings.kl_gradient == "anchor" else query
            anchor = anchor.detach() if settings.kl_gradient == "query" else anchor
            found["kl"] = self.divergence(query, anchor)
        return found

    def loss(self, name: str, value: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """A term as it stands in the loss: entropy is to grow, divergence to shrink."""
        return -self.settings.entropy_weight * value if name == "entropy" else self.settings.kl_weight * value

    def _measured(self, z: Float[Tensor, "n out"]) -> Float[Tensor, "all out"]:
        """Projections of every process, on the unit sphere unless they are to be measured as they are."""
        return parallel.gather(z.float() if self.settings.raw else normalize(z.float(), dim=1))

    def penalty(self, encoder: nn.Module) -> Values:
        """The constraint on the encoder's convolutions, where it is a penalty."""
        name, settings = self.settings.encoder, self.settings
        if name not in PENALTIES:
            return {}
        kernels = [part.weight for part in encoder.modules() if isinstance(part, nn.Conv2d)]
        return {"iecl/encoder": settings.encoder_weight * PENALTIES[name](kernels)}


def check_expansion(block: InputBlock | None, settings: ObjectiveSettings) -> None:
    """Raise a `UserError` where the expansion is to be maximized and there is no block whose expansion is known."""
    if settings.expansion != "none" and (block is None or not block.has_expansion):
        raise UserError(
            "only a certified block has an expansion that can be maximized, and not one with a budget for each image",
            where=f"objective.expansion = {settings.expansion}",
            do="saib.form = certified and saib.budget_kind = rms, or objective.expansion = none",
        )


def expansion(placement: Placement, views: Views, clock: Clock, images: int) -> Values:
    """The gain of the block at some images of the batch, with gradient; new random signs at every step.

    One probe for each image: the estimate is unbiased up to the truncation of Lanczos, and steps average its noise.
    The block's budget counts as fixed: it is spent anew after each optimizer step.
    """
    seed = counter.key(clock.seed, "expansion", clock.step)
    return _mean(_gains(placement, views, clock, images, seed), "expansion")


@torch.no_grad()
def block_gain(placement: Placement, views: Views, clock: Clock) -> Values:
    """The same of any block, for the log: one probe, few images."""
    seed = counter.key(clock.seed, "gain", clock.step)
    images = None if placement.block is None else placement.block.gain_images
    return _mean(_gains(placement, views, clock, images, seed), "gain")


def _gains(placement: Placement, views: Views, clock: Clock, images: int | None, seed: int) -> list[EntropyGain]:
    assert placement.block is not None  # `check_expansion` has looked
    seen = [placement.first(views, clock, view, images) for view in range(2) if placement.covers(view)]
    gain, steps = full_precision(placement.block.entropy_gain), placement.block.gain_steps
    with alone(placement.block):  # every process has these images
        return [gain(x, stream, probes=1, steps=steps, seed=seed) for x, stream in seen]


def _mean(gains: Sequence[EntropyGain], name: str) -> Values:
    """Both parts of the gain, mean over the views."""
    return {f"{name}_{part}": torch.stack([getattr(gain, part) for gain in gains]).mean() for part in ("total", "rest")}
