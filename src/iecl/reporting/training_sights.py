"""What training saw (images, views, views behind the block at each moment that was kept), and entropy by layer."""

import math
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from iecl.console import ProgressLine
from iecl.inspection.findings import findings
from iecl.inspection.report import examine
from iecl.inspection.subject import LEAST_IMAGES, Subject, load_subject
from iecl.reporting.gallery import Gallery
from iecl.reporting.sight_settings import SightSettings
from iecl.runs.directory import RunDirectory
from iecl.training.config import read_config
from iecl.training.trained_block import load_block

SHOWN, FOR_LAYERS, MOST_MOMENTS = 8, 128, 8
"""Images in a row; images that layers are measured with; kept checkpoints that are shown."""
GAINS = (1, 2, 4, 8, 16, 32)
"""By how much a difference may be enlarged."""


def views_of(run: RunDirectory, asked: SightSettings, gallery: Gallery, line: ProgressLine) -> dict[str, Any]:
    """Rows of pictures: images, two views, and for each moment the second view behind the block and its change."""
    subject = load_subject(run.path, asked.data, line, LEAST_IMAGES, asked.checkpoint)
    rows = [_row("image", "as the network sees it when it is used", _shown(subject, subject.plain), gallery)]
    for number, view in enumerate(subject.views, 1):
        rows.append(_row(f"view {number}", "as augmentation draws it", _shown(subject, view), gallery))
    if subject.block is None:
        return {"rows": rows, "note": _without_block(run)}
    kept = _spread(run.kept_epochs(), MOST_MOMENTS)
    moments = [(f"epoch {epoch}", replace(subject, block=load_block(run.path, epoch))) for epoch in kept]
    moments.append(("newest checkpoint", subject))
    view = _shown(subject, subject.views[1])
    made = [(name, _shown(subject, moment.shaped(subject.views[1]))) for name, moment in moments]
    largest = max(float((images - view).abs().quantile(0.99)) for _, images in made)
    gain = max(one for one in GAINS if one == 1 or one * largest <= 1)
    for name, images in made:
        rows.append(_row(f"{name}: behind the block", "view 2 as the network gets it", images, gallery))
        change = (gain * (images - view) / 2 + 0.5).clamp(0, 1)
        rows.append(_row(f"{name}: difference × {gain}", "gray: no change", change, gallery))
    return {"rows": rows, "note": "", "weights": read_config(run).saib.weights}


def _spread(epochs: list[int], most: int) -> list[int]:
    """At most so many of them, the first and the last among them.

    >>> _spread([1, 2, 3, 4, 5], 3), _spread([2, 4], 3)
    ([1, 3, 5], [2, 4])
    """
    if len(epochs) <= most:
        return epochs
    return [epochs[round(place * (len(epochs) - 1) / (most - 1))] for place in range(most)]


def _without_block(run: RunDirectory) -> str:
    if read_config(run).saib.form == "none":
        return "There is no input block: both views reach the network as they are."
    return "The input block is not shown: no checkpoint of it was kept."


def _shown(subject: Subject, images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (subject.model.mean, subject.model.std))
    return (images[:SHOWN] * std + mean).clamp(0, 1)


def _row(name: str, note: str, images: Tensor, gallery: Gallery) -> dict[str, Any]:
    return {"name": name, "note": note, "tiles": gallery.add_images(images)}


def layers_of(run: RunDirectory, asked: SightSettings, gallery: Gallery, line: ProgressLine) -> dict[str, Any]:
    """Entropy from stage to stage, and what it says, as `iecl inspect` measures it."""
    subject = load_subject(run.path, asked.data, line, FOR_LAYERS, asked.checkpoint)
    block, stages, embedding = examine(subject, subject.shaped(subject.views[1]))
    images = len(subject.plain)
    return {
        "images": images,
        "most": math.log(images - 1),
        "layers": [asdict(stage) for stage in stages],
        "findings": findings(block, stages, embedding, images),
    }
