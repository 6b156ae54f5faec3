"""What the block of a run does to images: each augmentation alone, then the block at the moments that were kept."""

from pathlib import Path
from typing import Any

import torch

from iecl import counter
from iecl.console import counted
from iecl.data.batch import Batch
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, read_config
from iecl.training.factory import sketch_method
from iecl.training.trained_block import load_block
from iecl.training.view_sheet import Line, draw_sheet, save_sheet, some_images
from iecl.views.pipeline import make_views

IMAGES = 6
MOST = 0.99
"""Share of the differences that are shown unclipped."""


def draw_gallery(run: Path, out: Path) -> dict[str, Any]:
    """Write the sheet of a run with `training.keep_epochs`; returns its name and the words of each row."""
    config = read_config(RunDirectory(run))
    lines = [line for line in draw_sheet(config, IMAGES) if not line.name.startswith("view ")]
    batch = some_images(config, IMAGES, config.training.batch_size)
    views, plain = _query(config, batch)
    lines.append(Line("query view", "all of them together", _seen(plain[:IMAGES], config)))
    std = torch.tensor(config.data.std)[:, None, None]
    key = counter.key(config.training.seed, "saib/noise", 0, 1)
    shaped = {}
    for epoch in RunDirectory(run).kept_epochs():
        with torch.no_grad():
            shaped[epoch] = load_block(run, epoch)(plain, counter.Stream(key, views.positions))[:IMAGES]
    changes = {epoch: (made - plain[:IMAGES]) * std for epoch, made in shaped.items()}
    times = _factor(torch.cat(list(changes.values())))
    for epoch, made in shaped.items():
        share = f"{100 * epoch / config.training.epochs:.0f} % of training, {counted(epoch, 'epoch')}"
        lines.append(Line("behind the block", share, _seen(made, config)))
        lines.append(Line("difference", f"{times:g} times, gray: none", (changes[epoch] * times / 2 + 0.5).clamp(0, 1)))
    save_sheet(lines, out)
    return {"file": out.name, "rows": [{"name": line.name, "note": line.note} for line in lines]}


def _factor(changes: torch.Tensor) -> float:
    """By how much all differences are enlarged, so that most of them use the whole range and none is lost."""
    most = float(changes.abs().flatten().double().quantile(MOST))
    return float(f"{1 / most:.1g}") if most > 0 else 1.0


def _query(config: RunConfig, batch: Batch) -> Any:
    """The views of the first epoch, and the query among them."""
    spec = sketch_method(config).views
    data = config.data
    policies = config.augmentation.policies(spec)
    look: dict[str, Any] = {"size": data.image_size, "mean": data.mean, "std": data.std, "seed": config.training.seed}
    views = make_views(batch, policies, spec, epoch=0, **look)
    return views, views.global_crops[1]


def _seen(views: torch.Tensor, config: RunConfig) -> torch.Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (config.data.mean, config.data.std))
    return (views * std + mean).clamp(0, 1)
