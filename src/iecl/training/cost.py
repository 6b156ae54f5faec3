"""What a step of a method costs: weights by part, arithmetic, and memory that the backward pass waits for.

A step is taken forward with random images, once with a few images and once with twice as many. What grows is the cost
of an image; what does not (a copy of a queue, matrices between features) is the cost of a step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode

from iecl import counter
from iecl.methods.contract import Encode, Method, Step
from iecl.schedule import Clock
from iecl.training.config import make_config, with_data
from iecl.training.factory import build_method
from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec

IMAGES = 2
"""In the smaller of the two steps, unless the method needs more."""
SAMPLES, CLASSES = 2048, 10
"""What a method knows of the data."""
START = Clock(seed=0, step=0, steps=1, epoch=0, epochs=1)


@dataclass(frozen=True)
class PartCost:
    """One child of a method, in numbers."""

    weights: int
    trained: int
    """How many of the weights receive a gradient."""
    stored: int
    """Numbers kept beside the weights: queues, running statistics."""


@dataclass(frozen=True)
class Load:
    """What a forward pass takes."""

    flops: int
    """Two for each multiply-add of a convolution or a matrix product; nothing else is counted."""
    saved: int
    """Bytes kept for the backward pass, without the weights; tensors that share their memory count once."""


@dataclass(frozen=True)
class Cost:
    """What a method's step takes, with one backbone and image size."""

    backbone: str
    image_size: int
    images: tuple[int, int]
    """In the two steps that were measured."""
    parts: dict[str, PartCost]
    per_image: Load
    per_step: Load


def cost_of(name: str, backbone: str = "auto", image_size: int = 32) -> Cost:
    """Measure a method as its default recipe builds it."""
    config = make_config(method=name, flags={"data": {"name": "shapes"}, "backbone": {"name": backbone}})
    data = replace(config.data, image_size=image_size, decode_size=image_size, mean=(0.5,) * 3, std=(0.25,) * 3)
    config = with_data(config, data)
    method = build_method(config, samples=SAMPLES, classes=CLASSES)
    few = max(IMAGES, method.min_batch)
    parts = parts_of(method)
    method.before_epoch(partial(_survey, views_of(method.views, few, image_size)), START)
    first, second = (
        load_of(partial(method.step, views_of(method.views, images, image_size), START), method)
        for images in (few, 2 * few)
    )
    per_image, per_step = _share_out(first, second, few)
    return Cost(config.backbone.name, image_size, (few, 2 * few), parts, per_image, per_step)


def parts_of(method: Method) -> dict[str, PartCost]:
    """The children of a method, those of its host in the place of the host, and its own parameters.

    A weight that several children hold counts for the first.
    """
    found: dict[str, PartCost] = {}
    seen: set[int] = set()
    for name, tensors in _tensors_by_child(method):
        fresh = [t for t in tensors if id(t) not in seen]
        seen |= {id(t) for t in fresh}
        weights = [t for t in fresh if isinstance(t, nn.Parameter)]
        trained = sum(t.numel() for t in weights if t.requires_grad)
        count = sum(t.numel() for t in weights)
        found[name] = PartCost(count, trained, sum(t.numel() for t in fresh) - count)
    return found


def _tensors_by_child(method: Method, prefix: str = "") -> Iterator[tuple[str, list[Tensor]]]:
    for name, child in method.named_children():
        if isinstance(child, Method):
            yield from _tensors_by_child(child, f"{prefix}{name}.")
        else:
            yield prefix + name, [*child.parameters(), *child.buffers()]
    for name, tensor in (*method.named_parameters(recurse=False), *method.named_buffers(recurse=False)):
        yield prefix + name, [tensor]


def load_of(forward: Callable[[], Step | Tensor], module: nn.Module) -> Load:
    """What one call takes; `module` holds the weights, which are there anyway.

    Saved tensors are let go at once, since no backward pass follows. Their memory is told apart by weak references:
    while one lives, its address is not given to another.
    """
    weights = {_reference(t).cdata for t in (*module.parameters(), *module.buffers())}
    saved: dict[int, tuple[StorageWeakRef, int]] = {}

    def note(tensor: Tensor) -> None:
        reference = _reference(tensor)
        if reference.cdata not in weights:
            saved.setdefault(reference.cdata, (reference, tensor.untyped_storage().nbytes()))

    with FlopCounterMode(display=False) as counted, torch.autograd.graph.saved_tensors_hooks(note, _not_kept):
        forward()
    return Load(counted.get_total_flops(), sum(size for _, size in saved.values()))


def _reference(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch has not typed it


def _not_kept(_: None) -> Tensor:
    raise RuntimeError("a measured step has no backward pass")


def _share_out(first: Load, second: Load, images: int) -> tuple[Load, Load]:
    """Per image, and per step; products between images grow with their square, so that the rest may be below zero."""
    flops, saved = ((b - a) // images for a, b in ((first.flops, second.flops), (first.saved, second.saved)))
    rest = Load(max(0, first.flops - images * flops), max(0, first.saved - images * saved))
    return Load(flops, saved), rest


def views_of(spec: ViewSpec, images: int, side: int) -> Views:
    """Random images in the number and the sizes that a method asks for."""
    drawn = torch.Generator().manual_seed(0)

    def view(side: int) -> Float[Tensor, "n 3 side side"]:
        return (torch.rand(images, 3, side, side, generator=drawn) - 0.5) / 0.25

    full = tuple(view(side) for _ in range(spec.global_crops))
    small = tuple(view(spec.local_size(side)) for _ in range(spec.local_crops))
    number = torch.arange(images)
    return Views(full, number, number % CLASSES, number, small)


def _survey(views: Views, encode: Encode) -> Float[Tensor, "samples width"]:
    """Random rows instead of every sample's: the survey between two epochs is no part of a step."""
    with torch.no_grad():
        width = encode(views.global_crops[0]).shape[1]
    return counter.normal(counter.key(0, "costing"), torch.arange(SAMPLES), width)
