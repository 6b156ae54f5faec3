"""What a run's network makes of its images: a map, nearest neighbors, what it confuses; as plain values for a page."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from iecl import counter
from iecl.console import ProgressLine
from iecl.data.listing import one_walk
from iecl.errors import UserError
from iecl.evaluation.compute import device_called
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.model import load_model
from iecl.parts.kmeans import kmeans
from iecl.reporting.columns import ColumnTable
from iecl.reporting.confusion import confused
from iecl.reporting.gallery import Gallery
from iecl.reporting.projection import MapLayout, lay_out, reduced
from iecl.reporting.sample import Sampled, take_sample
from iecl.reporting.sheets import front_coded, packed, sheets, tile_side
from iecl.reporting.sight_settings import SightSettings
from iecl.reporting.training_sights import layers_of, views_of
from iecl.runs.directory import RunDirectory

MOST_THUMBNAILS, MOST_OUTLIERS = 3000, 300
CLUSTERS, ROUNDS = 10, 15
QUERIES, NEIGHBORS = 8, 7
MOST_CLASSES = 2**16 - 1
NUMBER_STEPS = 255


@one_walk()
def look(run: RunDirectory, asked: SightSettings, line: ProgressLine) -> dict[str, Any]:
    """Everything on the page that takes a network.

    Raises:
        UserError: there are no weights, or no images.
    """
    model = load_model(run.path, asked.checkpoint)
    context = EvaluationContext(model, run.path, asked.data, line, part="test", device=device_called(asked.device))
    sample = take_sample(context, asked.images)
    line.show("laying out the map")
    gallery, notes = Gallery(), list[str]()
    found: dict[str, Any] = {"checkpoint": model.checkpoint, "shown": len(sample), "total": sample.total}
    found |= look_at_sample(sample, asked, gallery, notes)
    line.show("looking at views and layers")
    for name, words, part in (("views", "What training saw", views_of), ("layers", "Entropy by layer", layers_of)):
        found[name] = _or_note(partial(part, run, asked, gallery, line), notes, f"{words} is not shown: ")
    return found | {"gallery": gallery.packed(), "notes": notes}


def look_at_sample(sample: Sampled, asked: SightSettings, gallery: Gallery, notes: list[str]) -> dict[str, Any]:
    """What the features alone say, and pictures of the images concerned; a map that cannot be had is a note."""
    rows, share = reduced(sample.features)
    tried = [_or_note(partial(lay_out, name, rows, share), notes) for name in asked.maps]
    layouts = [layout for layout in tried if layout] or [lay_out("pca", rows, share)]
    cluster, distance = _clusters(rows)
    columns = [_class_column("cluster", cluster, [f"cluster {i + 1}" for i in range(int(cluster.max()) + 1)])]
    if sample.classes and (sample.labels >= 0).any():
        columns.insert(0, _class_column("label", sample.labels, list(sample.classes)))
    if len(sample.splits) > 1:
        columns.append(_class_column("split", sample.split, list(sample.splits)))
    columns.append(_number_column("distance from its cluster", distance))
    if asked.columns:
        further = _or_note(partial(ColumnTable.read(asked.columns).of, sample.paths), notes) or {}
        columns += [_column(name, values) for name, values in further.items()]
    chosen = thumbnails(layouts[0].points.numpy(), distance)
    tiles = sample.tiles(chosen, tile_side(len(chosen), sample.side))
    plane = {
        "layouts": [_layout(layout) for layout in layouts],
        "names": front_coded(sample.paths),
        "columns": columns,
        "tiles": sheets(tiles) | {"of": packed(chosen.astype(np.uint32))},
    }
    near = _neighbors(sample, cluster, distance, gallery)
    return {"map": plane, "neighbors": near, "confusion": confused(sample, gallery)}


def _or_note(part: Callable[[], Any], notes: list[str], before: str = "") -> Any:
    try:
        return part()
    except UserError as problem:
        notes.append(f"{before}{problem.what}.")
        return None


def _layout(layout: MapLayout) -> dict[str, Any]:
    """Points on a grid of 65,536 steps, the longer side of the picture filling it."""
    points = layout.points.double()
    low, high = points.min(0).values, points.max(0).values
    middle, half = (low + high) / 2, ((high - low).max() / 2).clamp_min(1e-12)
    steps = ((points - middle) / half * 32767 + 32768).round().clamp(0, 65535)
    return {"title": layout.title, "note": layout.note, "xy": packed(steps.numpy().astype(np.uint16))}


def _clusters(rows: Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The cluster of each row, the largest first, and how far it is from the middle of it."""
    count = max(1, min(CLUSTERS, len(rows) // 4))
    centroids, labels = kmeans(rows, count, key=counter.key(0, "report/clusters"), iterations=ROUNDS)
    order = torch.bincount(labels, minlength=count).argsort(descending=True, stable=True)
    distance = (rows - centroids[labels]).norm(dim=1)
    return order.argsort()[labels].numpy(), distance.double().numpy()


def _class_column(name: str, values: npt.NDArray[np.int64], classes: list[str]) -> dict[str, Any]:
    """A column of names; a row without one has the last number."""
    numbers = np.where(values < 0, len(classes), values).astype(np.uint8 if len(classes) < 255 else np.uint16)
    return {"name": name, "classes": classes, "values": packed(numbers), "bytes": numbers.dtype.itemsize}


def _number_column(name: str, values: npt.NDArray[np.float64]) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    steps = ((values - low) / (high - low or 1.0) * NUMBER_STEPS).round().astype(np.uint8)
    return {"name": name, "low": low, "high": high, "values": packed(steps), "bytes": 1}


def _column(name: str, words: list[str]) -> dict[str, Any]:
    """A column of a table: numbers if all of it are, else names."""
    try:
        values = np.array([float(word) for word in words])
        if np.isfinite(values).all():
            return _number_column(name, values)
    except ValueError:
        pass
    classes = sorted(set(words) - {""})[:MOST_CLASSES]
    numbers: Mapping[str, int] = {word: number for number, word in enumerate(classes)}
    return _class_column(name, np.array([numbers.get(word, -1) for word in words], np.int64), classes)


def thumbnails(points: npt.NDArray[Any], distance: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Rows that get a thumbnail: all, or those farthest from their clusters and the middle one of each place."""
    count = len(points)
    if count <= MOST_THUMBNAILS:
        return np.arange(count)
    outliers = np.argsort(-distance, kind="stable")[:MOST_OUTLIERS]
    low, high = points.min(0), points.max(0)
    cells, chosen = 64, outliers
    while len(chosen) < MOST_THUMBNAILS and cells <= 4096:  # ever finer squares, the nearest to each one's middle
        places = (points - low) / np.maximum(high - low, 1e-12) * cells
        square = np.minimum(places.astype(np.int64), cells - 1)
        off = ((places - square - 0.5) ** 2).sum(1)
        order = np.lexsort((off, square[:, 0] * cells + square[:, 1]))
        _, first = np.unique((square[:, 0] * cells + square[:, 1])[order], return_index=True)
        fresh = np.setdiff1d(order[first], chosen)
        room = MOST_THUMBNAILS - len(chosen)
        chosen = np.union1d(chosen, fresh[:: max(1, -(-len(fresh) // room))][:room])
        cells *= 2
    return np.sort(chosen)


def _neighbors(
    sample: Sampled, cluster: npt.NDArray[np.int64], distance: npt.NDArray[np.float64], gallery: Gallery
) -> list[dict[str, Any]]:
    """For the middle image of each cluster, the nearest others by the network."""
    unit = normalize(sample.features, dim=1)
    middles = [int(np.flatnonzero(cluster == one)[distance[cluster == one].argmin()]) for one in np.unique(cluster)]
    few = list(dict.fromkeys([*middles, *range(len(sample))]))[: min(QUERIES, len(sample))]
    cosine = unit[few] @ unit.T
    cosine[torch.arange(len(few)), torch.tensor(few)] = -torch.inf
    near = cosine.topk(min(NEIGHBORS, len(sample) - 1), dim=1)
    found = []
    for query, values, others in zip(few, near.values.tolist(), near.indices.tolist(), strict=True):
        first, *tiles = gallery.add(sample, np.array([query, *others]))
        beside = [
            _named(sample, row) | {"tile": tile, "cosine": round(value, 3), "is_same": _is_same(sample, query, row)}
            for tile, value, row in zip(tiles, values, others, strict=True)
        ]
        found.append({"query": _named(sample, query) | {"tile": first}, "near": beside})
    return found


def _is_same(sample: Sampled, row: int, other: int) -> bool | None:
    """Whether two images have the same label; None where one has none."""
    labels = sample.labels[[row, other]]
    return bool(labels[0] == labels[1]) if (labels >= 0).all() else None


def _named(sample: Sampled, row: int) -> dict[str, Any]:
    label = int(sample.labels[row])
    known = sample.classes[label] if 0 <= label < len(sample.classes) else ""
    return {"name": sample.paths[row], "label": known}
