"""Images that a Python program brings: arrays, a map-style dataset, paths; each with labels or without."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from iecl.brought import PREFIX, find, is_brought
from iecl.data.bands import eight_bit, image_bands
from iecl.data.batch import Pixels
from iecl.data.decoder import ImageArray, rgb
from iecl.data.places import is_image, listing_of
from iecl.data.skipped_files import nothing_readable
from iecl.data.source import Numbers
from iecl.errors import UserError, lacking

log = logging.getLogger("iecl.data")
IMAGE_KEYS = ("image", "img", "pixel_values", "pixels")
LABEL_KEYS = ("label", "labels", "fine_label", "target")
_SAMPLE = 16
_WANTED = "give a folder, paths, arrays of images, or a dataset with __len__ and __getitem__; labels as (data, labels)"


@dataclass(frozen=True)
class BroughtImages:
    """What somebody gave as `data`, with a fingerprint of it."""

    kind: str
    items: Any
    """Images by number, or the listing of their files."""
    labels: Numbers = field(repr=False)
    classes: tuple[str, ...]
    fingerprint: str

    @property
    def name(self) -> str:
        """What settings call it."""
        return f"{PREFIX}{self.kind}-{self.fingerprint}"

    def __len__(self) -> int:
        return len(self.items)

    def short_side(self) -> float:
        """The usual shorter side of an image that is no file, by some of them."""
        sides, reasons = [], Counter[str]()
        for i in np.linspace(0, len(self) - 1, min(_SAMPLE, len(self))).astype(int).tolist():
            try:
                sides.append(min(pixels_of(self.items[i]).shape[1:]))
            except Exception as problem:  # somebody else's code
                reasons[_reason(problem)] += 1
        if not sides:
            raise nothing_readable(self.name, reasons)
        return float(median(sides))


def bring(data: Any) -> BroughtImages:
    """What somebody gave as `data` and is no name.

    Raises:
        UserError: no image can be had from it by number.
    """
    labels: Any = None
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Path):
        data, labels = data
    if isinstance(data, list | tuple):
        return _paths(data, labels)
    if isinstance(data, np.ndarray | Tensor):
        return _array(torch.as_tensor(data), labels)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(f"a {type(data).__name__} does not give images by number", where="data=", do=_WANTED)
    if not len(data):
        raise UserError(f"this {type(data).__name__} is empty", where="data=")
    labels, classes = _labels_of(data) if labels is None else (labels, ())
    numbers, names = _numbered(labels, len(data), classes)
    return BroughtImages(type(data).__name__, data, numbers, names, _fingerprint(data, numbers))


def _paths(data: Sequence[Any], labels: Any) -> BroughtImages:
    pairs = [item if isinstance(item, tuple) else (item, "") for item in data]
    wrong = next((p for p in pairs if len(p) != 2 or not isinstance(p[0], str | os.PathLike)), None)
    if not data or wrong is not None:
        what = "an empty list" if not data else f"{wrong!r} in a list"
        raise UserError(f"{what} is no image", where="data=", do="a list holds paths, or pairs of a path and a label")
    if labels is not None:
        _check_length(labels, len(data))
        pairs = [(path, label) for (path, _), label in zip(pairs, labels, strict=True)]
    strange = next((path for path, _ in pairs if not is_image(path)), None)
    if strange is not None:
        raise UserError(
            f"{strange} is not called as an image is", where="data=", do="give images only, or folders only"
        )
    listing = listing_of(
        [os.fsencode(Path(path).expanduser().absolute()) for path, _ in pairs], [str(label) for _, label in pairs]
    )
    digest = blake2b(bytes(listing.names), digest_size=6)
    digest.update(repr((listing.root, listing.owners)).encode())
    assert listing.owner is not None
    digest.update(listing.owner.tobytes())
    return BroughtImages("paths", listing, listing.owner, (), digest.hexdigest())


def _array(images: Tensor, labels: Any) -> BroughtImages:
    """Arrays as (n, height, width), (n, height, width, channels) or (n, channels, height, width)."""
    shape = tuple(images.shape)
    if images.ndim not in (3, 4) or not images.numel():
        raise UserError(f"an array of {shape} holds no images", where="data=", do="give (n, height, width, channels)")
    if images.ndim == 3:
        images = images.unsqueeze(1)
    elif _is_last(shape[1:]):
        images = images.permute(0, 3, 1, 2)
    numbers, classes = _numbered(labels, len(images), ())
    rows = images[np.linspace(0, len(images) - 1, min(256, len(images))).astype(int)]
    digest = blake2b(rows.contiguous().numpy().tobytes(), digest_size=6)
    digest.update(f"{shape} {images.dtype}".encode() + numbers.tobytes())
    return BroughtImages("array", images, numbers, classes, digest.hexdigest())


def _is_last(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image of three dimensions come last: the shortest of the two ends."""
    first, last = shape[0], shape[-1]
    if first == last:
        raise UserError(f"where are the channels in {shape}?", where="data=", do="give (height, width, channels)")
    return last < first


def pixels_of(item: Any, channels: int = 0) -> ImageArray:
    """What a dataset gives for a number, as (channels, height, width) of 8 bits; 0 channels: as many as it has.

    >>> pixels_of((np.zeros((4, 5), np.uint8), "label"), 3).shape, int(pixels_of(torch.ones(3, 2, 4))[0, 0, 0])
    ((3, 4, 5), 255)
    """
    if isinstance(item, Mapping):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise ValueError(f"no image in it, only {', '.join(map(str, item))}")
        item = item[key]
    if isinstance(item, tuple | list) and item:
        item = item[0]
    if isinstance(item, Image.Image) and channels not in (0, 3):
        item = image_bands(item, channels)
    if isinstance(item, Image.Image):
        return np.ascontiguousarray(np.asarray(rgb(item)).transpose(2, 0, 1))
    values = item.numpy(force=True) if isinstance(item, Tensor) else item
    if not isinstance(values, np.ndarray) or values.ndim not in (2, 3) or not values.size:
        raise TypeError(f"{type(item).__name__} is no image")
    if values.dtype != np.uint8:
        if values.dtype.kind == "f" and values.min() < 0:
            raise ValueError("values below 0: give images that are not normalized")
        values = eight_bit(values)
    if values.ndim == 3 and _is_last(values.shape):
        values = values.transpose(2, 0, 1)
    values = values[None] if values.ndim == 2 else values
    if channels == 3 and len(values) == 1:
        return np.broadcast_to(values, (3, *values.shape[1:]))
    if channels not in (0, len(values)):
        raise ValueError(f"{len(values)} channels, {channels} are wanted: data.channels")
    return values


class ItemsSource:
    """Images that somebody's object gives by number, brought to a square; an item that fails is a bad image."""

    is_decoded = False

    def __init__(
        self, brought: BroughtImages, index: Numbers, *, side: int, with_labels: bool, channels: int = 3
    ) -> None:
        self.channels = channels
        self.name, self.side, self._brought, self._index = brought.name, side, brought, index
        self._with_labels = with_labels
        self.labels = brought.labels[index] if with_labels else np.full(len(index), -1, np.int64)
        self.classes = brought.classes if with_labels else ()

    def __len__(self) -> int:
        return len(self._index)

    def select(self, index: Numbers) -> "ItemsSource":
        """Some of the images, in the order given."""
        index, how = self._index[index], {"side": self.side, "channels": self.channels}
        return ItemsSource(self._brought, index, with_labels=self._with_labels, **how)

    def read(self, index: Numbers) -> Pixels:
        """The images with these numbers; one that cannot be had gives a black row and a line in `bad`."""
        images = torch.zeros((len(index), self.channels, self.side, self.side), dtype=torch.uint8)
        sizes, bad = torch.full((len(index), 2), self.side), []
        for row, i in enumerate(self._index[index].tolist()):
            try:
                pixels = torch.from_numpy(np.ascontiguousarray(pixels_of(self._brought.items[i], self.channels)))
            except Exception as problem:  # somebody else's code
                bad.append((row, _reason(problem)))
                continue
            sizes[row] = torch.tensor(pixels.shape[1:])
            if pixels.shape[1:] != images.shape[2:]:
                square = (self.side, self.side)
                pixels = interpolate(pixels.unsqueeze(0), square, mode="bicubic", antialias=True)[0]
            images[row] = pixels
        return Pixels(images, sizes, tuple(bad))

    def path(self, index: int) -> str:
        """The number of an image, as somebody's object has it."""
        return f"{self.name}[{self._index[index]}]"


def brought_images(name: str) -> BroughtImages:
    """What a name in settings stands for: an object, or a saved dataset."""
    if not is_brought(name):
        return _saved(name)
    found: BroughtImages = find(name, "data")
    return found


@lru_cache(maxsize=1)  # of a run's start: a dataset that is opened anew each time is read anew
def _saved(folder: str) -> BroughtImages:
    """What `save_to_disk` of a Hugging Face dataset wrote."""
    try:
        datasets = import_module("datasets")
    except ImportError as problem:
        raise lacking("a saved Hugging Face dataset", "datasets", extra="datasets", where="--data") from problem
    found = datasets.load_from_disk(folder)
    if isinstance(found, dict):
        do = f"name one of: {', '.join(f'{folder}/{split}' for split in found)}"
        raise UserError(f"{folder} has {len(found)} splits", where="--data", do=do)
    return bring(found)


def _numbered(labels: Any, count: int, classes: Sequence[str]) -> tuple[Numbers, tuple[str, ...]]:
    """Class numbers, -1 for none, and the names of the classes."""
    if labels is None:
        return np.full(count, -1, np.int64), ()
    _check_length(labels, count)
    values = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if values.ndim != 1:
        raise UserError(f"labels of {values.shape} are not one for each image", where="data=")
    if values.dtype.kind in "iu" and classes and values.max() < len(classes):
        return values.astype(np.int64), tuple(map(str, classes))
    is_none = values < 0 if values.dtype.kind in "if" else values == ""
    found = np.unique(values[~is_none])
    return np.where(is_none, -1, np.searchsorted(found, values)).astype(np.int64), tuple(map(str, found.tolist()))


def _check_length(labels: Any, count: int) -> None:
    if len(labels) != count:
        raise UserError(f"there are {count} images and {len(labels)} labels", where="data=")


def _labels_of(data: Any) -> tuple[Any, Sequence[str]]:
    """Labels that a dataset has beside its images, so that no image is read for them, and the names of its classes."""
    columns = getattr(data, "column_names", None)
    if isinstance(columns, list):  # a Hugging Face dataset
        key = next((key for key in LABEL_KEYS if key in columns), None)
        return (None, ()) if key is None else (list(data[key]), getattr(data.features[key], "names", None) or ())
    for name in ("targets", "labels"):
        found = getattr(data, name, None)
        if isinstance(found, list | np.ndarray | Tensor) and len(found) == len(data):
            return found, tuple(getattr(data, "classes", ()) or ())
    return None, ()


def _fingerprint(data: Any, labels: Numbers) -> str:
    """By its length, its labels and three of its images, read twice: a run must not be given others when it goes on."""
    digest = blake2b(f"{type(data).__name__} {len(data)}".encode() + labels.tobytes(), digest_size=6)
    for i in {0, len(data) // 2, len(data) - 1}:
        try:
            first, second = (pixels_of(data[i]) for _ in range(2))
        except Exception as problem:  # somebody else's code
            log.warning("item %d cannot be used: %s", i, _reason(problem))
            continue
        if np.array_equal(first, second):
            digest.update(first.tobytes())
        else:
            log.warning("item %d is another image each time: leave random transforms to iecl", i)
    return digest.hexdigest()


def _reason(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".partition("\n")[0]
