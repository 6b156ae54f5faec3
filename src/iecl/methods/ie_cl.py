"""IE-CL: any method behind a learnable input block, with entropy and divergence terms added to its losses.

One step: views -> block on the query view -> the host's own loss -> the extra terms on online projections ->
(optimizer) -> spectral norm follows, the host's momentum copy follows, the block returns to its budget.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from iecl.methods.contract import Method, MethodSettings, ParamGroup, Step, Survey
from iecl.objective.settings import ObjectiveSettings
from iecl.objective.terms import Terms, block_gain, check_expansion, expansion
from iecl.parts.spectral_norm import follow_kernels, input_sizes, kernels_made_once, normalize_convolutions
from iecl.saib.contract import InputBlock
from iecl.saib.placement import VIEWS, place
from iecl.saib.settings import SAIBSettings
from iecl.schedule import Clock
from iecl.views.pipeline import Views


@final
class IECL(Method):
    """A host method with an input block (or none) and the terms of the objective.

    formula:
        query' = block(query)
        loss = host's loss(anchor, query')
             - entropy_weight * H(online projections)
             + kl_weight * KL(query' || anchor)
             + encoder_weight * penalty(convolutions), or spectral norm by construction
             - expansion_weight * log|det block'| per dimension
        block: climbs or descends the host's loss (saib.host_gradient), climbs H and log|det|, descends KL
    """

    Settings = MethodSettings

    def __init__(
        self,
        host: Method,
        block: InputBlock | None = None,
        objective: ObjectiveSettings | None = None,
        saib: SAIBSettings | None = None,
        *,
        image_size: int = 0,
    ) -> None:
        """Put `block` before `host`; spectral norm, if asked for, goes on every convolution of its encoder and copies.

        `image_size`, the side of the images, decides the operator norm of a convolution.
        """
        super().__init__()
        self.host, self.saib = host, block
        self.settings = objective = objective or ObjectiveSettings()
        self.terms = Terms(objective)
        self.views, self.min_batch, self.online = host.views, host.min_batch, host.online
        self.small_batch = host.small_batch
        if objective.encoder == "spectral-norm":
            is_operator = objective.encoder_norm == "operator"
            sizes = input_sizes(host.encoder(), image_size) if is_operator else None
            for encoder in host.encoders():
                normalize_convolutions(encoder, sizes)
        check_expansion(block, objective)
        self.placement = place(
            block,
            saib or SAIBSettings(),
            online=host.online,
            has_target=host.has_target,
            takes_mixtures=host.takes_mixtures,
            moved=frozenset(filter(objective.moves, VIEWS)),
            is_expanded=objective.expansion != "none",
        )
        self.strength = self.placement.adaptive  # a part of the method: its share is kept in checkpoints
        self._last: tuple[Views, Clock] | None = None  # what `meters` reads: views of the step that was taken last

    def step(self, views: Views, clock: Clock) -> Step:
        """The host's losses on the shaped views, and ours."""
        self._last = views, clock
        with kernels_made_once(*self.host.encoders()):
            shaped = self.placement.shape(views, clock)
            made = self.host.step(shaped.views, clock)
            projections = made.projections | {
                name: self._projection(name, made, x)
                for name, x in zip(VIEWS, shaped.images, strict=True)
                if self.settings.measures(name)
            }
            found = self.terms.of_projections(projections)
            losses = {f"iecl/{name}": self.terms.loss(name, value) for name, value in found.items()}
            losses = {name: loss + self.placement.correction(loss, shaped) for name, loss in losses.items()}
            losses |= self.terms.penalty(self.host.encoder())
        if self.settings.expansion != "none":
            found |= expansion(self.placement, views, clock, self.settings.expansion_images)
            part = found[f"expansion_{self.settings.expansion}"]
            losses["iecl/expansion"] = -self.settings.expansion_weight * part
        if self.strength is not None:
            found["strength"] = self.strength.share.clone()
            found["confusion"] = self.strength.see(projections)
        readings = made.readings | {f"iecl/{name}": value.detach() for name, value in found.items()}
        return replace(made, losses=made.losses | losses, readings=readings, projections=projections)

    def _projection(self, name: str, made: Step, x: Tensor) -> Float[Tensor, "n out"]:
        """The online projection of a view: the host's own where it made one of this very view."""
        own = None if self.placement.side == "target" else made.projections.get(name)
        return self.host.project(x) if own is None else own

    def encoder(self) -> nn.Module:
        """The host's backbone: the block shapes training views only."""
        return self.host.encoder()

    def project(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n out"]:
        """The host's online projection."""
        return self.host.project(x)

    def before_epoch(self, survey: Survey, clock: Clock) -> Iterable[nn.Parameter]:
        """The host's."""
        return self.host.before_epoch(survey, clock)

    def after_backward(self, clock: Clock) -> None:
        """The host's."""
        self.host.after_backward(clock)

    def after_step(self, clock: Clock) -> None:
        """Spectral norm first: the momentum copy takes over its vectors."""
        if self.settings.encoder == "spectral-norm":
            follow_kernels(self.host.encoder())
        self.host.after_step(clock)
        if self.saib is not None:
            self.saib.after_step()
        if self.strength is not None:
            self.strength.after_step()

    def meters(self, number: int = 0) -> dict[str, Float[Tensor, ""]]:
        """The host's, and what the block adds to the entropy of an image, in nats per dimension."""
        found = self.host.meters(number)
        if self.saib is None:
            nothing = next(self.host.parameters()).new_zeros(())  # what no block adds
            return found | {"iecl/gain_total": nothing, "iecl/gain_rest": nothing}
        if self._last is None or number % self.saib.gain_interval:
            return found
        return found | {f"iecl/{name}": value for name, value in block_gain(self.placement, *self._last).items()}

    def param_groups(self) -> Iterable[ParamGroup]:
        """The host's groups, and the block with a weight decay of its own."""
        block = [p for p in self.saib.parameters() if p.requires_grad] if self.saib is not None else []
        own = [ParamGroup("saib", block, self.placement.settings.weight_decay)] if block else []
        return [*self.host.param_groups(), *own]
