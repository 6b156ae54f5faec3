"""Entropy through the layers of an encoder: how many directions images differ in, after each stage.

Layers differ in their number of units, and an entropy of their activations would depend on it. The spectrum of the Gram
matrix of n images does not: its entropy lies between 0 and log(n - 1) at every layer, and can be followed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl.meters.embedding import effective_rank

CHUNK = 64
"""Images in one forward pass; the activations of all are kept, in 16 bits."""


@dataclass(frozen=True)
class Stage:
    """One stage of the encoder, from its input (`images`) to its output (`features`)."""

    name: str
    units: int
    """Numbers that it holds of an image."""
    entropy: float
    """Log of the effective rank of n plain images, in nats."""
    view_entropy: float
    """The same of n query views, as training shows them."""
    block_entropy: float | None
    """The same of these views behind the block; None without one."""
    view_distance: float
    """Squared distance of two views of an image over that of views of different images: 0 invariant, 1 unrelated."""
    pooled_entropy: float | None = None
    """`entropy` of the means of its channels, where it holds maps: what a pooled output may be compared with."""


def report_layers(
    encoder: nn.Module,
    plain: Float[Tensor, "n 3 h w"],
    views: tuple[Float[Tensor, "n 3 h w"], Float[Tensor, "n 3 h w"]],
    shaped: Float[Tensor, "n 3 h w"] | None,
) -> list[Stage]:
    """Measure every stage on plain images, on two views of each, and on the second view behind the block."""
    pooled: dict[str, list[Tensor]] = {}
    of_plain = _activations(encoder, plain, pooled)
    of_anchor, of_query = (_activations(encoder, x) for x in views)
    of_shaped = None if shaped is None else _activations(encoder, shaped)
    return [
        Stage(
            name,
            of_plain[name].shape[1],
            _entropy(of_plain[name]),
            _entropy(of_query[name]),
            None if of_shaped is None else _entropy(of_shaped[name]),
            _view_distance(of_anchor[name], of_query[name] if of_shaped is None else of_shaped[name]),
            _entropy(torch.cat(pooled[name])) if name in pooled else None,
        )
        for name in of_plain
    ]


def stages_of(encoder: nn.Module) -> dict[str, nn.Module]:
    """The children that compute something, in order: those with a weight that is more than a scale or a shift."""
    return {
        name: child for name, child in encoder.named_children() if any(weight.ndim > 1 for weight in child.parameters())
    }


@torch.no_grad()
def _activations(
    encoder: nn.Module, x: Float[Tensor, "n 3 h w"], pooled: dict[str, list[Tensor]] | None = None
) -> dict[str, Float[Tensor, "n units"]]:
    """What each stage makes of the images, in the order of the network: the images first, the output last.

    The means of maps are put into `pooled`.
    """
    parts: dict[str, list[Tensor]] = {"images": []}
    for some in torch.split(x, CHUNK):
        parts["images"].append(_unit(some))
        with _watched(encoder, parts, {} if pooled is None else pooled):
            parts.setdefault("features", [])
            made = encoder(some)
        parts["features"].append(_unit(made))
    parts["features"] = parts.pop("features")  # last, however it was found
    return {name: torch.cat(own) for name, own in parts.items()}


@contextmanager
def _watched(encoder: nn.Module, parts: dict[str, list[Tensor]], pooled: dict[str, list[Tensor]]) -> Iterator[None]:
    def keep(name: str) -> object:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            parts.setdefault(name, []).append(_unit(output))
            if output.ndim == 4:
                pooled.setdefault(name, []).append(_unit(output.mean((2, 3))))

        return hook

    hooks = [child.register_forward_hook(keep(name)) for name, child in stages_of(encoder).items()]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _unit(x: Float[Tensor, "n ..."]) -> Float[Tensor, "n units"]:
    """Rows of length 1, in 16 bits: those of a wide layer fill the memory otherwise."""
    return normalize(x.flatten(1).float(), dim=1).half()


def _entropy(rows: Float[Tensor, "n units"]) -> float:
    return effective_rank(rows.float()).log().item()


def _view_distance(anchor: Float[Tensor, "n units"], query: Float[Tensor, "n units"]) -> float:
    """Mean squared distance of pairs over that of all others, of rows about the common mean, on the unit sphere."""
    mean = torch.cat([anchor, query]).float().mean(0)
    a, b = (normalize(rows.float() - mean, dim=1) for rows in (anchor, query))
    cosine = a @ b.T
    n = len(cosine)
    same = cosine.diagonal().mean()
    other = (cosine.sum() - cosine.diagonal().sum()) / (n * (n - 1))
    return ((1 - same) / (1 - other).clamp_min(1e-6)).item()
