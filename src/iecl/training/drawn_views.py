"""The exact views of a training image, drawn again: every draw is a function of seed, epoch and position."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from iecl import counter
from iecl.data.batch import Batch
from iecl.data.factory import open_source
from iecl.errors import UserError
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, read_config
from iecl.training.factory import build_method
from iecl.training.view_sheet import write_png
from iecl.views.pipeline import draw_views, make_plain, make_views

LEAST_SIDE = 128
"""Smaller views are enlarged, pixel by pixel, so that a person can see them."""


@dataclass(frozen=True)
class Seen:
    """One image as training saw it in one epoch."""

    path: str
    index: int
    """Which sample of the data."""
    step: int
    """The optimizer step that it took part in."""
    row: int
    """Its place in that step's images."""
    epoch: int
    position: int
    """Its place in the epoch, which decides every draw."""
    plain: Float[Tensor, "3 size size"]
    views: tuple[Float[Tensor, "3 side side"], ...]
    """Normalized, as the encoder or the input block gets them."""
    draws: tuple[dict[str, Any], ...]
    """What was done to the image, one table for each view."""


def look(folder: Path | str, step: int, *, index: int | None = None, row: int | None = None) -> Seen:
    """The views of one image in the epoch of an optimizer step.

    Args:
        folder: the run directory.
        step: an optimizer step of the run, from 1 on.
        index: which sample of the data: its views in the epoch of that step.
        row: which of the step's own images; exactly one of the two is given.

    Raises:
        UserError: the run has no such step, or that epoch left the image out.
    """
    config = read_config(RunDirectory.existing(folder))
    source = open_source(config.data, "pretrain")
    images = config.training.batch_size * config.training.grad_accumulation
    steps = len(source) // config.training.batch_size // config.training.grad_accumulation
    if not 1 <= step <= steps * config.training.epochs:
        raise UserError(f"the run has steps 1 to {steps * config.training.epochs:,}", where="--step")
    epoch = (step - 1) // steps
    order = counter.permutation(counter.key(config.training.seed, "order", epoch), len(source))
    position = _position(order, index, row, first=(step - 1) % steps * images, images=images)
    if position >= steps * images:
        raise UserError(
            f"epoch {epoch + 1} left image {index} out: {len(source):,} images do not fill whole steps of {images}",
            where="--index",
            do="choose a step of another epoch",
        )
    sample = int(order[position])
    pixels = source.read(np.array([sample]))
    if pixels.bad:
        raise UserError(f"{source.path(sample)}: {pixels.bad[0][1]}", where="--index", do="another image was used")
    one = torch.tensor([sample])
    batch = Batch(pixels.images, pixels.sizes, torch.tensor([-1]), one, torch.tensor([position]))
    plain, views, draws = _drawn(config, batch, epoch)
    place, seen_at = position % images, epoch * steps + position // images + 1
    return Seen(source.path(sample), sample, seen_at, place, epoch, position, plain, views, draws)


def _position(order: Tensor, index: int | None, row: int | None, *, first: int, images: int) -> int:
    """Where in the epoch the image stands."""
    if (index is None) == (row is None):
        raise UserError("which image?", where="iecl views", do="give --index (of the data) or --row (of the step)")
    if row is not None:
        if not 0 <= row < images:
            raise UserError(f"a step has rows 0 to {images - 1}", where="--row")
        return first + row
    assert index is not None
    if not 0 <= index < len(order):
        raise UserError(f"the data have images 0 to {len(order) - 1:,}", where="--index")
    return int((order == index).nonzero())


def _drawn(
    config: RunConfig, batch: Batch, epoch: int
) -> tuple[Tensor, tuple[Tensor, ...], tuple[dict[str, Any], ...]]:
    wanted = build_method(config, samples=1, classes=1).views
    data, seed, policies = config.data, config.training.seed, config.augmentation.policies(wanted)
    look_of: dict[str, Any] = {"size": data.image_size, "mean": data.mean, "std": data.std}
    views = make_views(batch, policies, wanted, seed=seed, epoch=epoch, **look_of)
    plain = make_plain(batch.images, batch.sizes, data.image_size, data.mean, data.std, 1.0)
    draws = tuple(drawn.row(0) for drawn in draw_views(batch, policies, wanted, seed=seed, epoch=epoch))
    return plain[0], tuple(x[0] for x in (*views.global_crops, *views.local_crops)), draws


def save_image(seen: Seen, mean: tuple[float, ...], std: tuple[float, ...], out: Path) -> None:
    """One PNG: the plain image, then its views from left to right."""
    tiles = [_pixels(x, mean, std) for x in (seen.plain, *seen.views)]
    side = max(LEAST_SIDE, *(tile.shape[0] for tile in tiles))
    sheet = Image.new("RGB", (len(tiles) * (side + 4) - 4, side), "white")
    for number, tile in enumerate(tiles):
        times = max(1, side // tile.shape[0])
        image = Image.fromarray(tile.numpy())
        large = image.resize((tile.shape[1] * times, tile.shape[0] * times), Image.Resampling.NEAREST)
        sheet.paste(large, (number * (side + 4), 0))
    write_png(sheet, out)


def _pixels(x: Float[Tensor, "3 h w"], mean: tuple[float, ...], std: tuple[float, ...]) -> UInt8[Tensor, "h w 3"]:
    undone = x * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    shown = undone if len(undone) == 3 else undone.mean(0).expand(3, -1, -1)  # other channels have no colors to show
    return (shown.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous()
