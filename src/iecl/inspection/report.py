"""An inspection as a whole: measure, judge in words, draw, write down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from iecl.console import ProgressLine
from iecl.errors import UserError
from iecl.estimators import ENTROPIES
from iecl.inspection.block_report import BlockReport, report_block
from iecl.inspection.figures import draw_block, draw_layers, draw_training, require_matplotlib
from iecl.inspection.findings import findings
from iecl.inspection.layer_report import Stage, report_layers
from iecl.inspection.subject import Subject, load_subject
from iecl.meters.embedding import read_embedding
from iecl.meters.label_free import power_law, rank_me
from iecl.runs.directory import RunDirectory, write_json


def inspect(
    target: Path | str,
    data: str | None = None,
    *,
    exclude: str = "",
    images: int = 256,
    checkpoint: str = "final",
    out: Path | str | None = None,
    quiet: bool = True,
    **foreign: Any,
) -> dict[str, Any]:
    """Follow entropy from the images through the block and the encoder to the embeddings.

    Args:
        target: a run directory, or any file of weights that `iecl evaluate` reads.
        data: images; None: those of the run.
        exclude: a list of images to leave out, as `iecl doctor` writes it.
        images: how many to look at; the printed block in its batch form has a number of its own.
        checkpoint: of a run: `final`, `last` or `best`.
        out: folder for the report and its plots; None: `inspection` in the run directory.
        quiet: show no progress.
        **foreign: what `load_model` takes for weights from elsewhere: backbone, image_size, layout, allow.

    Returns:
        Everything that was measured, findings in words, and the files that were written.
    """
    folder = _folder(target, out)
    require_matplotlib()
    with ProgressLine(quiet) as line:
        subject = load_subject(target, data, line, images, checkpoint, exclude, **foreign)
        line.show("following entropy through block and layers")
        shaped = subject.shaped(subject.views[1])
        block, stages, embedding = examine(subject, shaped)
    run = RunDirectory(target)
    metrics = list(run.read_metrics()) if Path(target).is_dir() else []
    summary = run.read_summary() if Path(target).is_dir() else {}
    result: dict[str, Any] = {
        "model": str(target),
        "weights": subject.model.proof,
        "checkpoint": subject.model.checkpoint,
        "data": subject.data_name,
        "images": len(subject.plain),
        "block": None if block is None else asdict(block),
        "layers": [asdict(stage) for stage in stages],
        "embedding": embedding,
        "findings": findings(block, stages, embedding, len(subject.plain)),
        "verdict": summary.get("verdict", "not a run"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = _drawn(folder, subject, shaped, stages, metrics)
    write_json(folder / "inspection.json", result)
    return result | {"files": [str(folder / "inspection.json"), *files]}


def examine(subject: Subject, shaped: Tensor) -> tuple[BlockReport | None, list[Stage], dict[str, float]]:
    """Measure block, stages and embeddings; `shaped` are the second views behind the block."""
    behind = None if subject.block is None else shaped
    stages = report_layers(subject.model.backbone, subject.plain, subject.views, behind)
    return report_block(subject), stages, _embedding(subject, shaped)


def _folder(target: Path | str, out: Path | str | None) -> Path:
    if out is None and Path(target).is_file():
        raise UserError(f"where is the report on {target} to go?", where="--out", do="name a folder")
    folder = RunDirectory(target).path / "inspection" if out is None else Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", where="--out", do="name a folder")
    return folder


@torch.no_grad()
def _embedding(subject: Subject, shaped: Tensor) -> dict[str, float]:
    """Readings of the features of plain images and of the projections (or features) of two views."""
    encoder = subject.model.backbone
    project = subject.project or encoder
    features, anchor, query = encoder(subject.plain), project(subject.views[0]), project(shaped)
    readings = read_embedding(features, anchor, query)
    found = {name.removeprefix("meter/"): value.item() for name, value in readings.items()}
    found |= {"rank_me": rank_me(features).item(), "power_law": power_law(features).item()}
    unit = normalize(anchor.float(), dim=1)
    return found | {f"H {name}": entry.load()(unit).item() for name, entry in ENTROPIES.items()}


def _drawn(
    folder: Path, subject: Subject, shaped: Tensor, stages: Sequence[Stage], metrics: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Save the plots; returns their names."""
    files = [folder / "layers.svg"]
    draw_layers(stages, math.log(len(subject.plain) - 1), files[0])
    if metrics and draw_training(metrics, folder / "training.svg"):
        files.append(folder / "training.svg")
    if subject.block is not None:
        files.append(folder / "block.png")
        draw_block(subject.views[1], shaped, (subject.model.mean, subject.model.std), files[-1])
    return [str(file) for file in files]
