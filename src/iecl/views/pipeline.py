"""From a batch of images to the views a method sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from iecl import parallel
from iecl.views.operators import Policy
from iecl.views.params import ViewParams, center, draw
from iecl.views.policies import ViewSpec
from iecl.views.transform import apply


class ImageBatch(Protocol):
    """What views need to know of a batch; `iecl.data.batch.Batch` is one."""

    @property
    def images(self) -> UInt8[Tensor, "n 3 height width"]:
        """Pixels, all of one shape."""

    @property
    def sizes(self) -> Int64[Tensor, "n 2"]:
        """Height and width of each original."""

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        """Class numbers, or -1 where there is none."""

    @property
    def index(self) -> Int64[Tensor, " n"]:
        """Which sample of the source each row is."""

    @property
    def positions(self) -> Int64[Tensor, " n"]:
        """Where in the epoch each row stands."""

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""


@dataclass(frozen=True)
class Mixture:
    """Images that show two: each its own with weight `share`, and that of row `partner` with the rest."""

    partner: Int64[Tensor, " n"]
    share: Float[Tensor, " n"]


@dataclass(frozen=True)
class Views:
    """Several views of the same images; row i is the same image in all of them."""

    global_crops: tuple[Float[Tensor, "n 3 size size"], ...]
    """Anchor first, then query, then any others."""
    positions: Int64[Tensor, " n"]
    labels: Int64[Tensor, " n"]
    index: Int64[Tensor, " n"]
    local_crops: tuple[Float[Tensor, "n 3 part part"], ...] = ()
    """Tight crops at a smaller size, where the method asks for them."""
    target_crops: tuple[Float[Tensor, "n 3 size size"], ...] = ()
    """What a branch without gradient sees instead of the global crops; empty: those themselves."""
    mixture: Mixture | None = None
    """How the query is mixed, if it is; the target crops never are."""

    @property
    def targets(self) -> tuple[Float[Tensor, "n 3 size size"], ...]:
        """The views of a branch without gradient: of a momentum copy, or held still."""
        return self.target_crops or self.global_crops

    def with_global_crops(self, *crops: Float[Tensor, "n 3 size size"]) -> "Views":
        """The same images seen differently."""
        return replace(self, global_crops=crops)


def make_views(
    batch: ImageBatch,
    policies: tuple[Policy, ...],
    spec: ViewSpec,
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int,
    epoch: int,
    layout: torch.memory_format = torch.contiguous_format,
    device: torch.device | None = None,
) -> Views:
    """Draw and make the views that `spec` asks for; view i follows the i-th policy, which are taken in turn.

    `device` is where they are made; None: where the batch is. Draws are made where the batch is, so that one that is in
    the process's own memory keeps nobody waiting for a GPU.
    """
    here = batch if device is None else batch.to(device)
    made = [
        apply(here.images, drawn, size if number < spec.global_crops else spec.local_size(size), mean, std, layout)
        for number, drawn in enumerate(draw_views(batch, policies, spec, seed=seed, epoch=epoch))
    ]
    return Views(
        global_crops=tuple(made[: spec.global_crops]),
        positions=here.positions,
        labels=here.labels,
        index=here.index,
        local_crops=tuple(made[spec.global_crops :]),
    )


def draw_views(
    batch: ImageBatch, policies: tuple[Policy, ...], spec: ViewSpec, *, seed: int, epoch: int
) -> Iterator[ViewParams]:
    """What happens to each image in the global crops, then in the local ones."""
    for number in range(spec.global_crops + spec.local_crops):
        policy = policies[number % len(policies)]
        scale = spec.global_scale if number < spec.global_crops else spec.local_scale
        if scale is not None:
            policy = replace(policy, scale=scale)
        # Torch shares out a few thousand numbers too, which saves nothing, and waits for long if a core is taken.
        with parallel.threads(1):
            drawn = draw(policy, batch.sizes, batch.positions, seed=seed, epoch=epoch, view=number)
        yield drawn


def make_plain(
    images: UInt8[Tensor, "n 3 height width"],
    sizes: Int64[Tensor, "n 2"],
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    share: float,
    layout: torch.memory_format = torch.contiguous_format,
) -> Float[Tensor, "n 3 size size"]:
    """The view evaluation looks at: the middle square of each image, `share` of its shorter side, not augmented."""
    return apply(images, center(sizes, share), size, mean, std, layout)
