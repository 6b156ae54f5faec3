"""Where a block stands: on which views, how strongly, with which noise, and what the host's loss does to it."""

import logging
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from iecl import counter, parallel
from iecl.errors import UserError
from iecl.parts.gradient_reversal import scale_gradient
from iecl.saib.contract import InputBlock
from iecl.saib.settings import SAIBSettings
from iecl.saib.strength import AdaptiveStrength
from iecl.schedule import Clock
from iecl.views.pipeline import Mixture, Views

log = logging.getLogger("iecl.saib")

SIGNS = {"reversed": -1.0, "cooperative": 1.0, "none": 0.0}
"""By what the gradient of the host's loss is multiplied on its way to the block."""
VIEWS = ("anchor", "query")


@dataclass(frozen=True)
class Shaped:
    """Two views behind the block."""

    views: Views
    """What the host gets."""
    images: tuple[Tensor, Tensor]
    """Anchor and query with a plain way back to the block: what our own terms are to be read on."""


class Placement:
    """A block, or none, before the views of a host."""

    def __init__(self, block: InputBlock | None, settings: SAIBSettings, side: str, host_gradient: str) -> None:
        self.block, self.settings, self.side = block, settings, side
        self.sign = SIGNS[host_gradient] if settings.weights == "learned" else 1.0
        self.adaptive = AdaptiveStrength(settings.confusion) if block and settings.strength == "auto" else None

    def covers(self, number: int) -> bool:
        """Whether view 0 (the anchor) or 1 (the query) passes a block."""
        return self.block is not None and self.side in (VIEWS[number], "both", "target")

    def shape(self, views: Views, clock: Clock) -> Shaped:
        """Views with some of the first two behind the block."""
        if self.block is not None and self.settings.weights == "redrawn":
            self.block.redraw(counter.key(clock.seed, "saib/weights", clock.step))
        pair = views.global_crops[:2]
        made = [self._one(x, views, clock, number) if self.covers(number) else x for number, x in enumerate(pair)]
        if self.side == "target":
            return Shaped(replace(views, target_crops=tuple(made)), (made[0], made[1]))
        if self.settings.mix:
            mixture = self._mixture(views.positions, clock)
            views = replace(views, target_crops=tuple(made), mixture=mixture)
            made[1] = _mixed(made[1], mixture)
        seen = [scale_gradient(x, self.sign) if self._is_gated(x) else x for x in made]
        return Shaped(views.with_global_crops(*seen, *views.global_crops[2:]), (made[0], made[1]))

    def _mixture(self, positions: Tensor, clock: Clock) -> Mixture:
        """Two by two: both of a pair show the other with the same weight, at most a half.

        Neighbors make a pair: the order of an epoch is random, and the same pairs are made by one process or several.
        """
        draws = counter.uniform(counter.key(clock.seed, "saib/mixture", clock.epoch), positions, 2)
        rows = torch.arange(len(positions), device=positions.device)
        partner, first = rows ^ 1, rows & ~1
        partner[-1] = rows[-1] if len(rows) % 2 else partner[-1]
        chance, weight = draws[first].unbind(1)
        is_mixed = (chance < self.settings.mix) & (partner != rows)
        return Mixture(partner, torch.where(is_mixed, 0.5 + weight / 2, 1.0))

    def _is_gated(self, x: Tensor) -> bool:
        return self.sign != 1 and x.requires_grad

    def _one(self, x: Tensor, views: Views, clock: Clock, number: int) -> Float[Tensor, "n 3 h w"]:
        assert self.block is not None
        shaped: Tensor = self.block(x, self.stream(views.positions, clock, number))
        share = self._strength(views.positions, clock, number)
        return shaped if share is None else x + share * (shaped - x)

    def stream(self, positions: Tensor, clock: Clock, number: int) -> counter.Stream:
        """The block's noise for a view of the images at these positions."""
        return counter.Stream(counter.key(clock.seed, "saib/noise", clock.epoch, number), positions)

    def _strength(self, positions: Tensor, clock: Clock, number: int) -> Float[Tensor, "n 1 1 1"] | None:
        """The share of the change that each image gets; it does not depend on the image."""
        settings = self.settings
        if settings.probability == 1 and settings.strength == "constant":
            return None
        draws = counter.uniform(counter.key(clock.seed, "saib/strength", clock.epoch, number), positions, 2)
        share = (draws[:, 0] < settings.probability).float()
        if settings.strength != "constant":
            share = share * draws[:, 1]
        if self.adaptive is not None:
            share = share * self.adaptive.share
        return share[:, None, None, None]

    def first(self, views: Views, clock: Clock, number: int, most: int | None) -> tuple[Tensor, counter.Stream]:
        """A view of the first images of the whole batch, the same on every process, and the block's noise for them.

        Every process then has the value and the gradient of one with the whole batch. None: all images of this process.
        """
        images, positions = views.global_crops[number], views.positions
        if most is not None:
            images, positions = (parallel.gather(rows[:most])[:most] for rows in (images, positions))
        return images, self.stream(positions, clock, number)

    def correction(self, term: Float[Tensor, ""], shaped: Shaped) -> Float[Tensor, ""] | float:
        """What to add to a term of ours so that the block gets its gradient; its value is 0.

        Where a term is read on what the host made of a view, its gradient passes the gate that is meant for the host's
        loss, and is reversed or stopped there. What is missing is the gradient at the view: one more backward pass
        through the encoder.
        """
        if self.side == "target":  # our terms have a projection of their own there, with a plain way back
            return 0.0
        seen = shaped.views.global_crops[:2]
        gated = [(x, y) for x, y in zip(shaped.images, seen, strict=True) if x is not y]
        if not gated:
            return 0.0
        slopes = torch.autograd.grad(term, [y for _, y in gated], retain_graph=True, allow_unused=True)
        pairs = [(x, slope) for (x, _), slope in zip(gated, slopes, strict=True) if slope is not None]
        return sum(((1 - self.sign) * slope.detach() * (x - x.detach())).sum() for x, slope in pairs)


def _mixed(x: Float[Tensor, "n 3 h w"], mixture: Mixture) -> Float[Tensor, "n 3 h w"]:
    share = mixture.share.to(x.dtype)[:, None, None, None]
    return share * x + (1 - share) * x[mixture.partner]


def place(
    block: InputBlock | None,
    settings: SAIBSettings,
    *,
    online: frozenset[str],
    has_target: bool,
    takes_mixtures: bool,
    moved: frozenset[str],
    is_expanded: bool,
) -> Placement:
    """Put a block before a host, where the settings say or where it can learn.

    Args:
        block: the block.
        settings: where it is to stand, and what trains it.
        online: the views that the host's loss sends gradient to.
        has_target: whether the host has a branch without gradient.
        takes_mixtures: whether the host's loss has answers for mixed queries.
        moved: the views that a term of the objective sends gradient to.
        is_expanded: whether the block's own expansion is a term.

    Raises:
        UserError: the host has no such side, nothing would train the block, or it cannot be drawn again.
    """
    if settings.side == "target" and not has_target:
        raise UserError("this host has no target branch", where="saib.side = target", do="use query, anchor or both")
    if settings.side == "target" and settings.strength == "auto":
        do = "use saib.strength=uniform, or another saib.side"
        raise UserError("the online views tell nothing of the block", where="saib.strength = auto", do=do)
    if settings.mix and (settings.side == "target" or not takes_mixtures):
        raise UserError(
            "this host has no answers for mixed queries",
            where="saib.mix",
            do="use moco-v2 with method.symmetric=true and another saib.side than target, or saib.mix=0",
        )
    if block is None:
        return Placement(None, settings, "query", "none")
    if settings.weights == "redrawn":
        block.redraw(0)  # now, and not in the first step: a block that cannot says so
    is_learned, gradient = settings.weights == "learned", settings.host_gradient
    side = settings.side
    if side == "auto":  # a printed block stands where it is printed
        is_deaf = is_learned and block.is_certified and gradient != "none" and "query" not in online
        side = "anchor" if is_deaf else "query"
    if gradient == "auto":
        gradient = "reversed" if block.is_certified else "cooperative" if not moved and not is_expanded else "none"
    placed = Placement(block, settings, side, gradient)
    if not is_learned:
        block.requires_grad_(False)
        return placed
    covered = {name for number, name in enumerate(VIEWS) if placed.covers(number)}
    by_host = gradient != "none" and side != "target" and covered & online
    if not (by_host or covered & moved or is_expanded):
        do = "add a term that moves it (objective.entropy=coding-rate), or use another saib.side or saib.weights=frozen"
        raise UserError(f"nothing trains the block on the {side} side", where=f"saib.host_gradient = {gradient}", do=do)
    if settings.host_gradient in ("reversed", "cooperative") and not by_host:
        log.warning("has no effect: saib.host_gradient: the host's loss does not reach the block on the %s side", side)
    return placed
