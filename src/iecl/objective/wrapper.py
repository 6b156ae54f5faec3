"""IE-CL: any method behind a learnable input block, with entropy and divergence terms added to its losses.

One step: views -> block on the query view -> the host's own loss -> the extra terms on online projections ->
(optimizer) -> spectral norm follows, the host's momentum copy follows, the block returns to its budget.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from iecl import counter, parallel
from iecl.errors import UserError
from iecl.estimators import DIVERGENCES, ENTROPIES
from iecl.losses.orthogonality import orthogonality, restricted_isometry, sigma_min_hinge
from iecl.methods.contract import Method, MethodSettings, ParamGroup, Step, Survey
from iecl.objective.expansion import block_gain, check_expansion, expansion, images_to_read, mean_of, readings_between
from iecl.objective.settings import ObjectiveSettings
from iecl.parts.gradient_reversal import reverse_gradient
from iecl.parts.spectral_norm import follow_kernels, input_sizes, normalize_convolutions
from iecl.saib.certified import CertifiedSAIB
from iecl.saib.printed import SAIB
from iecl.schedule import Clock
from iecl.views.pipeline import Views

GROWS_WITH_WIDTH = frozenset({"coding-rate", "gaussian-logdet", "knn"})
"""Entropies that are sums over dimensions: divided by the root of the width, so that one weight serves every width."""

PENALTIES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "orthogonality": orthogonality,
    "sigma-min": lambda kernels: sigma_min_hinge(kernels, 1.0),
    "srip": restricted_isometry,
}


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
    """

    Settings = MethodSettings

    def __init__(
        self,
        host: Method,
        saib: SAIB | CertifiedSAIB | None = None,
        settings: ObjectiveSettings | None = None,
        *,
        side: str = "auto",
        image_size: int = 0,
    ) -> None:
        """Wrap `host`; spectral norm, if asked for, goes on every convolution of its encoder and momentum copy.

        The block goes on the query view. `auto` puts it on the anchor where it is to learn from the host's loss and
        that loss sends no gradient to the query (one-sided MoCo). The operator norm of a convolution depends on
        `image_size`, the side of the images.
        """
        super().__init__()
        self.host, self.saib = host, saib
        self._last: tuple[Views, Clock] | None = None  # what `meters` reads: views of the step that was taken last
        self.settings = settings = settings or ObjectiveSettings()
        is_deaf = "query" not in host.online and settings.saib_gradient in ("cooperative", "adversarial")
        self.side = ("anchor" if is_deaf else "query") if side == "auto" else side
        self.views, self.min_batch, self.online = host.views, host.min_batch, host.online
        if settings.encoder == "spectral-norm":
            normalize_convolutions(host, self._input_sizes(image_size))
        check_expansion(saib, settings)
        if saib is not None and settings.saib_gradient == "frozen":
            saib.requires_grad_(False)
        self.entropy = None if settings.entropy == "none" else ENTROPIES[settings.entropy].load()
        self.divergence = None if settings.kl == "none" else DIVERGENCES[settings.kl].load()

    def _input_sizes(self, image_size: int) -> dict[str, tuple[int, int]] | None:
        """What the convolutions of the encoder read, if their norm depends on it."""
        if self.settings.encoder_norm == "kernel":
            return None
        if image_size < 1:
            raise UserError(
                "the operator norm of a convolution depends on the size of the images",
                where="objective.encoder_norm = operator",
                do="give image_size=, their side, or use encoder_norm = kernel",
            )
        return input_sizes(self.host.encoder(), image_size)

    def step(self, views: Views, clock: Clock) -> Step:
        """The host's losses on the shaped views, and ours."""
        self._last = (views, clock) if self.saib is not None else None
        with parametrize.cached():  # a normalized kernel is made once and serves every forward pass of the step
            shaped = [self._shape(x, views, clock, number) for number, x in enumerate(views.global_crops[:2])]
            seen = [x.detach() if self.settings.saib_gradient == "entropy" else x for x in shaped]
            inner = self.host.step(views.with_global_crops(*seen, *views.global_crops[2:]), clock)
            made = replace(inner, **self.terms(inner, shaped, seen))
        return self._with_expansion(made, views, clock) if self.settings.expansion != "none" else made

    def _with_expansion(self, made: Step, views: Views, clock: Clock) -> Step:
        """The step with the block's own entropy gain; the block climbs it whatever the host's loss asks of it."""
        assert isinstance(self.saib, CertifiedSAIB)
        most = self.settings.expansion_images
        gains = [
            expansion(self.saib, *self._first(views, clock, number, most), clock)
            for number in range(2)
            if self._is_on(number)
        ]
        readings = {f"iecl/expansion_{part}": mean_of(gains, part) for part in ("total", "rest")}
        loss = -self.settings.expansion_weight * readings[f"iecl/expansion_{self.settings.expansion}"]
        fixed = {name: value.detach() for name, value in readings.items()}
        return replace(made, losses=made.losses | {"iecl/expansion": loss}, readings=made.readings | fixed)

    def _shape(self, x: Tensor, views: Views, clock: Clock, number: int) -> Tensor:
        """View `number` (0: anchor, 1: query) after the block, if the block is on its side."""
        if self.saib is None or not self._is_on(number):
            return x
        shaped: Tensor = self.saib(x, self._stream(views.positions, clock, number))
        return reverse_gradient(shaped) if self.settings.saib_gradient == "adversarial" else shaped

    def _is_on(self, number: int) -> bool:
        """Whether the block is on this view."""
        return self.side in (("anchor", "query")[number], "both")

    def _stream(self, positions: Tensor, clock: Clock, number: int) -> counter.Stream:
        """The block's noise for a view of the images at these positions."""
        return counter.Stream(counter.key(clock.seed, "saib/noise", clock.epoch, number), positions)

    def _first(self, views: Views, clock: Clock, number: int, most: int | None) -> tuple[Tensor, counter.Stream]:
        """A view of the first images of the whole batch, the same on every process, and the block's noise for them.

        Every process then has the value and the gradient of one with the whole batch. None: all images of this process.
        """
        images, positions = views.global_crops[number], views.positions
        if most is not None:
            images, positions = (parallel.gather(rows[:most])[:most] for rows in (images, positions))
        return images, self._stream(positions, clock, number)

    def terms(self, inner: Step, shaped: list[Tensor], seen: list[Tensor]) -> dict[str, Any]:
        """The fields of the host's step that change; `shaped` and `seen` are its first two views."""
        losses, readings, projections = dict(inner.losses), dict(inner.readings), dict(inner.projections)
        settings = self.settings
        measured = dict[str, Tensor]()
        for number, name in enumerate(("anchor", "query")):
            if self._is_measured(name):  # on a one-sided host the query's is a forward and a backward pass more
                projections[name] = self._projection(name, inner, shaped[number], seen[number])
                measured[name] = self._measured(projections[name])
        if self.entropy is not None:
            chosen = [z for name, z in measured.items() if settings.entropy_on in (name, "both")]
            readings["iecl/entropy"] = value = self._entropy(chosen)
            losses["iecl/entropy"] = -settings.entropy_weight * value
        if self.divergence is not None:
            query, anchor = measured["query"], measured["anchor"]
            held_query = query.detach() if settings.kl_gradient == "anchor" else query
            held_anchor = anchor.detach() if settings.kl_gradient == "query" else anchor
            readings["iecl/kl"] = value = self.divergence(held_query, held_anchor)
            losses["iecl/kl"] = settings.kl_weight * value
        if settings.encoder in PENALTIES:
            kernels = [part.weight for part in self.host.encoder().modules() if isinstance(part, nn.Conv2d)]
            losses["iecl/encoder"] = settings.encoder_weight * PENALTIES[settings.encoder](kernels)
        fixed = {name: value.detach() for name, value in readings.items()}
        return {"losses": losses, "readings": fixed, "projections": projections}

    def _is_measured(self, name: str) -> bool:
        """Whether a term of ours needs the projection of this view."""
        is_spread = self.entropy is not None and self.settings.entropy_on in (name, "both")
        return is_spread or self.divergence is not None

    def _projection(self, name: str, inner: Step, shaped: Tensor, seen: Tensor) -> Float[Tensor, "n out"]:
        """The online projection of a view: the host's own when it has the gradient we need."""
        made = inner.projections.get(name)
        is_cut = shaped is not seen and shaped.requires_grad  # the host's projection has no way back to the block
        return self.host.project(shaped) if made is None or is_cut else made

    def _measured(self, z: Float[Tensor, "n out"]) -> Float[Tensor, "all out"]:
        """Projections of every process, on the unit sphere unless they are to be measured as they are."""
        return parallel.gather(z.float() if self.settings.raw else normalize(z.float(), dim=1))

    def _entropy(self, chosen: list[Tensor]) -> Float[Tensor, ""]:
        """Mean entropy of the views that the setting names."""
        assert self.entropy is not None
        total = torch.stack([self.entropy(z) for z in chosen]).mean()
        return total / chosen[0].shape[1] ** 0.5 if self.settings.entropy in GROWS_WITH_WIDTH else total

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

    def meters(self, number: int = 0) -> dict[str, Float[Tensor, ""]]:
        """The host's, and what the block adds to the entropy of an image, in nats per dimension."""
        nothing = next(self.host.parameters()).new_zeros(())  # what no block adds
        parts = dict.fromkeys(("total", "rest"), nothing)
        if self.saib is not None and self._last is not None:
            if number % readings_between(self.saib):
                return self.host.meters(number)
            views, clock = self._last
            most, seed = images_to_read(self.saib), counter.key(clock.seed, "gain", clock.step)
            gains = [
                block_gain(self.saib, *self._first(views, clock, view, most), seed)
                for view in range(2)
                if self._is_on(view)
            ]
            parts = {part: mean_of(gains, part) for part in parts}
        return {**self.host.meters(number), **{f"iecl/gain_{part}": value for part, value in parts.items()}}

    def param_groups(self) -> Iterable[ParamGroup]:
        """The host's groups, and the block with a weight decay of its own."""
        block = [p for p in self.saib.parameters() if p.requires_grad] if self.saib is not None else []
        own = [ParamGroup("saib", block, self.settings.saib_weight_decay)] if block else []
        return [*self.host.param_groups(), *own]
