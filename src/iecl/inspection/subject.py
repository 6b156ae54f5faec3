"""What is looked at: a backbone with its weights proven, the views it gets, and for a run also its block and head."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iecl import counter
from iecl.console import ProgressLine
from iecl.data.batch import Batch
from iecl.data.factory import open_source
from iecl.data.listing import one_walk
from iecl.data.source import Source
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.model import load_model
from iecl.methods import load_method
from iecl.methods.contract import Method
from iecl.methods.ie_cl import IECL
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint, weights_in
from iecl.runs.directory import RunDirectory
from iecl.saib.contract import InputBlock
from iecl.training.config import RunConfig, read_config
from iecl.training.factory import assemble_method
from iecl.views.pipeline import make_plain, make_views
from iecl.views.policies import AugmentationSettings, ViewSpec, plain_share, resolve_views
from iecl.weights.file import load_into
from iecl.weights.model import LoadedModel

LEAST_IMAGES = 8


@dataclass(frozen=True)
class Subject:
    """A model and images, ready to be measured; everything is in evaluation mode but the block."""

    model: LoadedModel
    block: InputBlock | None
    project: Callable[[Tensor], Tensor] | None
    """The online projection of views; None where only a backbone is known."""
    data_name: str
    plain: Float[Tensor, "n 3 side side"]
    views: tuple[Float[Tensor, "n 3 side side"], Float[Tensor, "n 3 side side"]]
    """Anchor and query as the policy of training draws them, before any block."""
    stream: counter.Stream
    """The block's noise for these images."""

    @torch.no_grad()
    def shaped(self, x: Float[Tensor, "n 3 side side"]) -> Float[Tensor, "n 3 side side"]:
        """Views behind the block as in training, with no buffer changed; the views themselves without a block."""
        if self.block is None:
            return x
        buffers = {name: value.clone() for name, value in self.block.named_buffers()}
        made: Tensor = torch.func.functional_call(self.block, buffers, (x, self.stream))
        return made


@one_walk()
def load_subject(
    target: Path | str,
    data: str | None,
    line: ProgressLine,
    images: int,
    checkpoint: str,
    exclude: str = "",
    **foreign: Any,
) -> Subject:
    """A run with its block and head, or any file of weights with its backbone alone."""
    model = load_model(target, checkpoint, **foreign)
    context = EvaluationContext(model, target, data, line, exclude=exclude)
    context.device = torch.device("cpu")  # Jacobians and spectra in full precision, of few images
    model.backbone.to(context.device)
    source = context.open("pretrain")
    config = read_config(RunDirectory(target)) if Path(target).is_dir() else None
    method = None if config is None else _method_of(RunDirectory(target), config, checkpoint)
    block = method.saib if isinstance(method, IECL) else None
    batch = _batch(source, _count(images, len(source), block))
    plain = make_plain(
        batch.images, batch.sizes, model.image_size, model.mean, model.std, plain_share(model.image_size)
    )
    views = AugmentationSettings() if config is None else config.augmentation
    drawn = make_views(
        batch,
        resolve_views(views, model.image_size).policies(ViewSpec()),
        ViewSpec(),
        size=model.image_size,
        mean=model.mean,
        std=model.std,
        seed=0,
        epoch=0,
    )
    stream = counter.Stream(counter.key(0, "inspect/noise"), batch.positions)
    project = None if method is None else method.eval().project
    if block is not None:
        block.train()
    return Subject(
        model, block, project, context.data_name, plain, (drawn.global_crops[0], drawn.global_crops[1]), stream
    )


def _count(images: int, there: int, block: InputBlock | None) -> int:
    """How many images to look at: the batch form of the printed block takes its own number and no other."""
    wanted = block.batch if block is not None and block.batch else min(images, there)
    if wanted < LEAST_IMAGES or wanted > there:
        few = min(wanted, there)
        raise UserError(
            f"{few} images are too few: it takes {max(wanted, LEAST_IMAGES)}",
            where="--images" if images < LEAST_IMAGES else "--data",
        )
    return wanted


def _batch(source: Source, count: int) -> Batch:
    """The first readable images of a fixed order."""
    order = counter.permutation(counter.key(0, "inspect/order"), len(source))
    some = order[: min(len(source), count + count // 4 + 8)]  # a few more: some may be unreadable
    pixels = source.read(some.numpy())
    good = torch.ones(len(some), dtype=torch.bool)
    good[[row for row, _ in pixels.bad]] = False
    if int(good.sum()) < count:
        raise UserError(f"of {len(some)} images only {int(good.sum())} can be read", where="--data")
    kept = good.nonzero().squeeze(1)[:count]
    unknown = torch.full((count,), -1)
    return Batch(pixels.images[kept], pixels.sizes[kept], unknown, some[kept], torch.arange(count))


def _method_of(run: RunDirectory, config: RunConfig, checkpoint: str) -> Method | None:
    """The whole method of a run as its checkpoint holds it; None where there is no checkpoint any more."""
    best = run.checkpoints / "best.ckpt"
    state = load_checkpoint(best) if checkpoint == "best" else latest_checkpoint(run.checkpoints)
    if state is None:
        return None
    samples = classes = 0
    if load_method(config.host_name).needs_facts:
        source = open_source(replace(config.data, cache_megabytes=0), "pretrain")
        samples, classes = len(source), len(source.classes)
    world = max(1, config.training.devices) * config.training.nodes
    method = assemble_method(config, world, samples=samples, classes=classes)
    load_into(method, weights_in(state, str(run.checkpoints)), str(run.checkpoints))
    return method.requires_grad_(False)
