"""From a configuration to a method: backbone, host, input block, objective."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from iecl import counter, parallel
from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.methods import WRAPPER, load_method
from iecl.methods.contract import DataFacts, Method
from iecl.methods.ie_cl import IECL
from iecl.parts.sync_norm import sync_norms
from iecl.runs.directory import RunDirectory
from iecl.saib.factory import make_saib
from iecl.training.block_weights import block_weights
from iecl.training.config import RunConfig, with_norms
from iecl.training.recomputation import cache_gradients, recompute_blocks
from iecl.weights.file import load_into

MANY = 100_000
"""Images that there seem to be where a method is looked at only: of few, methods with clusters would complain."""


def build_method(
    config: RunConfig,
    world: int = 1,
    *,
    samples: int = 0,
    classes: int = 0,
    unlabeled: int = 0,
    start: Mapping[str, Tensor] | None = None,
) -> Method:
    """The method of a resolved configuration, freshly initialized: the same one gives the same weights.

    `start` are the backbone's first weights, in the place of random ones; momentum copies begin with them too.
    """
    batch = batch_per_process(config, world)
    method = assemble_method(config, world, samples=samples, classes=classes, unlabeled=unlabeled, start=start)
    if batch < method.min_batch:
        raise UserError(
            f"{config.method_name} needs at least {method.min_batch} images in each process, this run has {batch}",
            where="training.batch_size",
        )
    return method


def sketch_method(config: RunConfig, world: int = 1) -> Method:
    """A method to look at, not to train: as if for many images of two classes."""
    return assemble_method(config, world, samples=MANY, classes=2)


def assemble_method(
    config: RunConfig,
    world: int = 1,
    *,
    samples: int = 0,
    classes: int = 0,
    unlabeled: int = 0,
    start: Mapping[str, Tensor] | None = None,
) -> Method:
    """As `build_method`, without a look at whether the batch is large enough for the method."""
    host_class, chosen = load_method(config.host_name), config.backbone
    backbone = make_backbone(
        chosen.name, config.training.seed, config.data.channels, zero_init_residual=chosen.zero_init_residual
    )
    if start is not None:
        load_into(backbone, start, "--init-from")
    check_size(backbone, config.backbone.name, config.data.image_size, config.data.channels)
    with counter.seeded(counter.key(config.training.seed, "weights/method")):
        facts = DataFacts(samples, classes, config.data.image_size, config.data.mean, config.data.std, unlabeled)
        build: Callable[..., Method] = host_class  # each has a constructor of its own
        host = build(backbone, config.method_settings(), *([facts] if host_class.needs_facts else []))
        batch = batch_per_process(config, world)
        size = config.data.image_size
        block = make_saib(config.saib, image_size=size, batch=batch, channels=config.data.channels)
        if block is not None and config.saib.init_from:
            other = RunDirectory.existing(config.saib.init_from, "saib.init_from")
            load_into(block, block_weights(other), "saib.init_from")
        is_wrapped = config.method_name == WRAPPER
        method: Method = IECL(host, block, config.objective, config.saib, image_size=size) if is_wrapped else host
    if parallel.has_others() and with_norms(config).training.sync_batch_norm == "on":
        sync_norms(host if config.saib.form == "batch" else method)  # the channels of that block are slots of the batch
    if config.training.gradient_checkpointing:
        recompute_blocks(backbone, config.backbone.name)  # momentum copies keep nothing anyway
    for encoder in method.encoders():
        if config.training.compile:
            encoder.compile()
        if config.training.grad_cache:
            cache_gradients(encoder, config.training.grad_cache)
    return method


@torch.no_grad()
def check_size(backbone: nn.Module, name: str, image_size: int, channels: int = 3) -> None:
    """Raise a `UserError` if the backbone does not take images of this size; nothing in it changes."""
    was_training = backbone.training
    try:
        backbone.eval()(torch.zeros(1, channels, image_size, image_size))
    except (AssertionError, RuntimeError) as problem:  # how torchvision's networks refuse a size
        raise UserError(
            f"{name} does not take images of {image_size} px: {problem}",
            where="--backbone, data.image_size",
            do="choose another backbone, or --set data.image_size=224",
        ) from problem
    backbone.train(was_training)


def batch_per_process(config: RunConfig, world: int) -> int:
    """Images in a loss that one process brings."""
    if config.training.batch_size % world:
        raise UserError(
            f"a batch of {config.training.batch_size} cannot be shared by {world} processes",
            where="training.batch_size",
            do=f"give --batch-size {max(1, config.training.batch_size // world) * world}, or fewer --devices",
        )
    return config.training.batch_size // world
