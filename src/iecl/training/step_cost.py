"""What a step of a run takes, counted on torch's meta device: shapes are followed, nothing is computed.

Everything counted is a polynomial in the images of a process, n, and of all processes, m: some parts of a loss compare
own rows with all (n m), some all with all (m m). Five steps tell its five numbers, with processes that are pretended.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from iecl import parallel
from iecl.methods.contract import Method
from iecl.parts.queue import equal_buffers
from iecl.training.config import RunConfig
from iecl.training.cost import START
from iecl.training.factory import assemble_method
from iecl.training.optimizers import make_optimizer, moment_bytes
from iecl.training.recomputation import blocks_in_rows
from iecl.training.scale import Counted, Growth
from iecl.views.pipeline import Views

META = torch.device("meta")
TRIED = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4))
"""Images of a process, in units, and processes, of the five steps."""
SAMPLES, CLASSES = 2048, 10


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has not typed it
    """Counts as torch's own counter does, which breaks where a step takes gradients on the way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        made = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=made)
        return made


def count_step(config: RunConfig) -> Counted:
    """The cost of a step of a configuration whose data are resolved; nothing is read and nothing trained."""
    made = _built(config, config.training.batch_size)
    optimizer = make_optimizer(made.param_groups(), config.optimizer, 1.0)
    weights, trained = list(made.parameters()), [p for p in made.parameters() if p.requires_grad]
    held, more = (
        _buffers(made),
        _buffers(_built(config, made.min_batch, samples=2 * SAMPLES)) if made.needs_facts else _buffers(made),
    )
    per_sample = (more - held) // SAMPLES
    unit = max(2, made.min_batch)
    steps = [_counts(config, unit * images, world) for images, world in TRIED]
    points = [(unit * images, unit * images * world) for images, world in TRIED]
    columns = list(zip(*steps, strict=True))
    flops, saved, back, forth, summed = (Growth.through(points, column) for column in columns)
    dropped, again, views = Growth(0, 0, 0, 0, 0), 0.0, 0.0
    if config.training.grad_cache or config.training.gradient_checkpointing:
        kept = [_counts(_keeping(config), unit * images, world)[1] for images, world in TRIED]
        dropped = Growth.through(points, [all_of_it - some for all_of_it, some in zip(kept, columns[1], strict=True)])
        again, views = _again(config, unit)
    return Counted(
        least=unit,
        flops=flops,
        saved=saved,
        gathered=forth,
        gathered_with_gradient=back,
        summed=summed,
        weights=_bytes(weights) + held - per_sample * SAMPLES,
        trained=_bytes(trained),
        moments=moment_bytes(optimizer),
        broadcast=broadcast_bytes(made) - per_sample * SAMPLES,
        per_sample=per_sample,
        dropped=dropped,
        again=again,
        pass_views=views,
        chunk=config.training.grad_cache,
    )


def _keeping(config: RunConfig) -> RunConfig:
    """The same run with nothing computed again."""
    return replace(config, training=replace(config.training, grad_cache=0, gradient_checkpointing=False))


def _again(config: RunConfig, images: int) -> tuple[float, float]:
    """Bytes for a view of the largest part that is computed again at a time, and the views of a pass for an image."""
    method, kept = _built(_keeping(config), images), dict[int, Tensor]()
    sizes, begun, found = [0], list[int](), [(0.0, 0.0)]

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in kept:
            kept[storage._cdata] = tensor
            sizes[0] += storage.nbytes()
        return tensor

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        begun.append(sizes[0])

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        count = len(inputs[0])
        found.append(((sizes[0] - begun.pop()) / count, count / images))

    is_by_blocks = config.training.gradient_checkpointing
    for encoder in method.encoders():
        for part in blocks_in_rows(encoder) if is_by_blocks else (encoder,):
            part.register_forward_pre_hook(before)
            part.register_forward_hook(after)
    kept |= {t.untyped_storage()._cdata: t for t in (*method.parameters(), *method.buffers())}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        method.step(_views(config, method, images), START)
    return max(found)


def broadcast_bytes(method: nn.Module) -> int:
    """Bytes of buffers that the first process sends to the others before a step: all but `equal_buffers`."""
    equal = set(equal_buffers(method))
    return _bytes([tensor for name, tensor in method.named_buffers() if name not in equal])


def _built(config: RunConfig, images: int, world: int = 1, samples: int = SAMPLES) -> Method:
    alone = replace(config, training=replace(config.training, batch_size=images * world, compile=False))
    with parallel.pretended(world):
        return assemble_method(alone, world, samples=samples, classes=CLASSES).to(META)


def _counts(config: RunConfig, images: int, world: int) -> tuple[float, float, float, float, float]:
    """Operations, bytes for the backward pass, and bytes to other processes of one step."""
    method, kept = _built(config, images, world), dict[int, Tensor]()
    weights = {t.untyped_storage()._cdata for t in (*method.parameters(), *method.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept[tensor.untyped_storage()._cdata] = tensor  # it lives, so that its number stays its own
        return tensor

    with parallel.pretended(world) as talk, Flops() as counted:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            made = method.step(_views(config, method, images), START)
        torch.autograd.backward(torch.stack([value.float() for value in made.losses.values()]).sum())
    saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    back = sum(size for size, has_gradient in talk.gathered if has_gradient)
    forth = sum(size for size, has_gradient in talk.gathered if not has_gradient)
    return counted.total, saved, back, forth, sum(talk.summed)


def _views(config: RunConfig, method: Method, images: int) -> Views:
    spec, channels, side = method.views, config.data.channels, config.data.image_size

    def crops(count: int, side: int) -> tuple[Tensor, ...]:
        shape = (images, channels, side, side)
        return tuple(torch.empty(shape, device=META) for _ in range(count))

    number = torch.arange(images, device=META)
    full = crops(spec.global_crops, side)
    return Views(full, number, number, number, crops(spec.local_crops, spec.local_size(side)))


def _buffers(method: nn.Module) -> int:
    return _bytes(list(method.buffers()))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
