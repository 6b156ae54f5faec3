"""What came out of a run: its backbone beside an untrained one and raw pixels, and a picture of nearest neighbors.

It looks at some of the run's own images, with labels or without, and takes seconds.
"""

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from iecl.backbones.factory import make_backbone
from iecl.backbones.pixels import RawPixels
from iecl.data.batch import Batch
from iecl.files import write_atomically
from iecl.meters.embedding import neighbor_accuracy
from iecl.meters.label_free import SCORES
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig
from iecl.training.online_eval import NEIGHBORS, STATISTICS_BATCHES, FixedSample
from iecl.views.pipeline import make_plain, make_views
from iecl.views.policies import ViewSpec
from iecl.weights.file import load_into, load_weights

MOST_IMAGES, FEW_IMAGES = 1000, 256
SHARE = 0.03
"""Of the images that a run has trained on: more are not looked at, unless they are few anyway."""
BATCH = 64
QUERIES, SHOWN, TILE, GAP, LINE = 8, 6, 64, 4, 16
"""Rows and neighbors of the picture, and its measures in pixels."""


@torch.no_grad()
def what_came_out(config: RunConfig, run: RunDirectory, sample: FixedSample, trained: nn.Module, seen: int) -> Any:
    """Scores of the trained backbone and of what it is held against; also draws the neighbors.

    Args:
        config: of the run.
        run: its directory, for the picture and the weights that it began with, if any.
        sample: its images.
        trained: its backbone.
        seen: images that it has trained on, each as often as it was met.
    """
    began, device = time.monotonic(), sample.device
    count = min(MOST_IMAGES, len(sample.index), max(FEW_IMAGES, int(SHARE * seen)))
    models = _models(config, run, trained)
    for model in models.values():
        model.to(device).to(memory_format=torch.channels_last).eval()
    _estimate_statistics(models["untrained"], config, sample, count)
    made: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in models}
    labels, tiles = [], []
    for batch in _batches(sample, count):
        views = _views(config, batch, sample.share)
        for name, model in models.items():
            made[name].append(tuple(model(view).float().cpu() for view in views))
        labels.append(batch.labels.cpu())
        tiles.append(_tiles(views[0], config))
    rows = {name: [torch.cat(part) for part in zip(*parts, strict=True)] for name, parts in made.items()}
    rows["pixels"] = [part - rows["pixels"][0].mean(0) for part in rows["pixels"]]
    known = torch.cat(labels) if sample.has_classes else None
    scores = {name: _scores(parts, known) for name, parts in rows.items()}
    write_atomically(run.neighbors, _picture(torch.cat(tiles), rows))
    seconds = round(time.monotonic() - began, 1)
    return {"images": len(rows["trained"][0]), "scores": scores, "picture": run.neighbors.name, "seconds": seconds}


def _models(config: RunConfig, run: RunDirectory, trained: nn.Module) -> dict[str, nn.Module]:
    name, channels = config.backbone.name, config.data.channels
    untrained = make_backbone(name, config.training.seed, channels)
    models = {"trained": trained, "untrained": untrained, "pixels": RawPixels(config.data.image_size, channels)}
    if run.start.exists():
        models["start"] = make_backbone(name, channels=channels)
        load_into(models["start"], load_weights(run.start)[0], str(run.start))
    return models


def _estimate_statistics(model: nn.Module, config: RunConfig, sample: FixedSample, count: int) -> None:
    """Let the batch norms of an untrained network see some images: their first statistics are those of none."""
    model.train()
    for number, batch in enumerate(_batches(sample, count, size=2 * BATCH)):
        if number == STATISTICS_BATCHES:
            break
        model(_views(config, batch, sample.share)[0])
    model.eval()


def _batches(sample: FixedSample, count: int, size: int = BATCH) -> Iterator[Batch]:
    """The readable ones of the sample's first images."""
    places = torch.arange(count)
    for index, positions in zip(*(torch.split(part, size) for part in (sample.index[:count], places)), strict=True):
        pixels = sample.source.read(index.numpy())
        good = torch.ones(len(index), dtype=torch.bool)
        good[[row for row, _ in pixels.bad]] = False
        if good.any():
            labels = sample.labels(index)[good]
            batch = Batch(pixels.images[good], pixels.sizes[good], labels, index[good], positions[good])
            yield batch.to(sample.device)


def _views(config: RunConfig, batch: Batch, share: float) -> tuple[Tensor, ...]:
    """Each image plain, and twice as in training, in an epoch that the run has not seen."""
    data, layout = config.data, torch.channels_last
    plain = make_plain(batch.images, batch.sizes, data.image_size, data.mean, data.std, share, layout)
    pair = ViewSpec(global_crops=2)
    drawn = make_views(
        batch,
        config.augmentation.policies(pair),
        pair,
        size=data.image_size,
        mean=data.mean,
        std=data.std,
        seed=config.training.seed,
        epoch=config.training.epochs,
        layout=layout,
    )
    return plain, *drawn.global_crops


def _scores(parts: Sequence[Tensor], labels: Tensor | None) -> dict[str, float]:
    plain, first, second = parts
    near = normalize(first, dim=1) @ normalize(second, dim=1).T
    own = (near.argmax(dim=1) == torch.arange(len(near))).float().mean().item()
    found = {"own_view": own} | {name: score(plain).item() for name, score in SCORES.items()}
    if labels is not None and int((labels >= 0).sum()) > NEIGHBORS:
        found["knn"] = neighbor_accuracy(plain, labels, k=NEIGHBORS).item()
    return found


def _tiles(plain: Tensor, config: RunConfig) -> Tensor:
    """Plain views as small images; what is not red, green and blue is shown as the gray of all channels."""
    mean, std = (torch.tensor(part)[:, None, None] for part in (config.data.mean, config.data.std))
    small = interpolate(plain.float().cpu() * std + mean, (TILE, TILE), mode="bilinear", antialias=True)
    small = small if small.shape[1] == 3 else small.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return (small.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous()


def _picture(tiles: Tensor, rows: Mapping[str, list[Tensor]]) -> bytes:
    """A PNG: some images, each with its nearest ones by the trained backbone and by the untrained one."""
    queries, shown = min(QUERIES, len(tiles)), min(SHOWN, len(tiles) - 1)
    step = TILE + GAP
    starts = {"trained": step + 3 * GAP, "untrained": (1 + shown) * step + 6 * GAP}
    sheet = Image.new("RGB", ((1 + 2 * shown) * step + 6 * GAP, LINE + queries * step), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((0, 2), "image", fill="black")
    for name, left in starts.items():
        pen.text((left, 2), f"nearest, {name}", fill="black")
        unit = normalize(rows[name][0], dim=1)
        near = unit[:queries] @ unit.T
        near[torch.arange(queries), torch.arange(queries)] = -torch.inf
        for row, order in enumerate(near.topk(shown, dim=1).indices.tolist()):
            for column, other in enumerate(order):
                sheet.paste(Image.fromarray(tiles[other].numpy()), (left + column * step, LINE + row * step))
    for row in range(queries):
        sheet.paste(Image.fromarray(tiles[row].numpy()), (0, LINE + row * step))
    made = io.BytesIO()
    sheet.save(made, "PNG")
    return made.getvalue()
