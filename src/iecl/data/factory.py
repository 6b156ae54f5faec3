"""From the settings to a source of images."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iecl import counter
from iecl.data.brought_source import BroughtImages, ItemsSource, brought_images
from iecl.data.datasets import DATASETS
from iecl.data.defaults import files_of, has_test, kind_of, resolve_data, shards_of, training_files
from iecl.data.folder import FolderSource
from iecl.data.labels import class_folders, numbered
from iecl.data.listing import Listing, one_walk, printable
from iecl.data.memory_cache import load_into_memory
from iecl.data.pack_format import open_packed
from iecl.data.packed_source import PackedSource
from iecl.data.planted_source import PlantedSource
from iecl.data.settings import DataSettings
from iecl.data.shard_source import ShardSource
from iecl.data.shortcuts import parse_shortcut
from iecl.data.skipped_files import Skipping, refuse_too_many
from iecl.data.source import ArraySource, ChosenSource, Decoding, Numbers, OnBad, Progress, Source, name_in
from iecl.errors import UserError, did_you_mean

SPLITS = ("pretrain", "train", "test", "train-part")


@one_walk()
def open_source(
    settings: DataSettings,
    split: str = "train",
    on_bad: OnBad | None = None,
    progress: Progress | None = None,
    *,
    is_shared: bool = False,
    listed: str = "",
) -> Source:
    """The images of one split of a folder, a packed file, shards or a named dataset.

    A folder without `train` and `test` inside is all there is to train on. To measure on it nevertheless, `test` is a
    fixed fifth of it (of each class, where there are classes), and `train-part` the other four fifths; with splits of
    its own `train-part` is the same as `train`. `pretrain` is `train`, with images without labels where a named data
    set has some. With `settings.validation` a tenth of all these is missing, and `test` is that tenth of `train-part`.

    Args:
        settings: what to open; what is `auto`, 0 or empty is chosen as by `resolve_data`.
        split: `train`, `test`, `train-part`, or `pretrain`: all there is to train on without labels.
        on_bad: is told each file or folder that is left out now; a source that decodes later tells its loader.
            Without it, the log is told.
        progress: is told how many files are decoded, when all are decoded now.
        is_shared: every process of a run opens the same at the same time: on one machine they hold one copy.
        listed: where `on_bad` lists the files, for messages.

    Raises:
        UserError: there is no such data, or nothing in it can be read, or too little of it.
    """
    settings = resolve_data(settings)
    source = _open(settings, split, on_bad or Skipping(), progress, is_shared=is_shared, listed=listed)
    return PlantedSource(source, parse_shortcut(settings.plant)) if settings.plant else source


def _open(
    settings: DataSettings, split: str, on_bad: OnBad, progress: Progress | None, *, is_shared: bool, listed: str
) -> Source:
    source = list_source(settings, split, on_bad)
    if not isinstance(source, Decoding) or not fits_in_memory(source, settings):
        return source
    whole, skipped = load_into_memory(source, settings.num_workers, progress, is_shared=is_shared)
    for path, reason in skipped:
        on_bad(path, reason)
    reasons = Counter(reason for _, reason in skipped)
    refuse_too_many(source.name, reasons, len(source), settings.max_unreadable, listed)
    return whole


def list_source(settings: DataSettings, split: str, on_bad: OnBad) -> Source:
    """What `open_source` opens, with no image of a folder decoded yet; the settings are resolved already."""
    if not settings.validation:
        return _whole_source(settings, split, on_bad)
    # A folder that has no test images of its own keeps its fixed fifth for the end: nothing here may touch it.
    is_fixed = split == "test" or kind_of(settings) != "named"
    source = _whole_source(settings, "train-part" if is_fixed else split, on_bad)
    (index,) = np.nonzero(is_validation(source) == (split == "test"))
    if not len(index):
        raise UserError(f"{source.name} has too few images to keep a tenth of them", where="data.validation")
    return source.select(index) if isinstance(source, Decoding) else ChosenSource(source, index)


def is_validation(source: Source) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which images are the tenth to choose settings by: a hash of its name decides for each image alone.

    Not a tenth of each class: a run that ignores classes and an evaluation that needs them must keep the same images
    apart. Nor does it depend on a seed or on other images, so that all runs ever made on these data share one tenth.
    """
    return np.array([counter.key(0, f"validation {name_in(source, i)}") % 10 == 0 for i in range(len(source))])


def _whole_source(settings: DataSettings, split: str, on_bad: OnBad) -> Source:
    kind = kind_of(settings)
    if kind == "named":
        named: Source = DATASETS[settings.name].load()(settings, "train" if split == "train-part" else split)
        return named
    if split not in SPLITS:
        raise UserError(f"a folder has no split {split!r}", where="split", do=did_you_mean(split, SPLITS))
    if kind == "shards":
        return _shard_source(settings, split, on_bad)
    if kind == "packed":
        return _packed_source(settings, Path(settings.name), split, on_bad)
    if kind == "brought":
        images = brought_images(settings.name)
        if not isinstance(images.items, Listing):
            return _brought_source(images, settings, split)
    source = _files_source(settings, split)
    for failure in source.listing.unreadable:
        on_bad(*failure)
    return source


def _packed_source(settings: DataSettings, path: Path, split: str, on_bad: OnBad) -> Source:
    file = open_packed(path)
    part = file.part_for(split)
    source = PackedSource(file, part, with_labels=settings.labels != "none")
    for name, reason in part.skipped:
        on_bad(f"{source.name}/{name}", reason)
    if part.name != "all" or split in ("pretrain", "train"):
        return source
    (index,) = np.nonzero(part.tables["held_out"] == (split == "test"))
    return ChosenSource(source, index)


def _shard_source(settings: DataSettings, split: str, on_bad: OnBad) -> Source:
    found = shards_of(settings)
    for shard, reason in found.skipped:
        on_bad(printable(os.fsencode(shard)), reason)
    part = found.part_for(split)
    how: dict[str, Any] = {"side": settings.decode_size, "max_pixels": settings.max_pixels}
    how |= {"channels": settings.channels, "skips": settings.bad_shards == "skip"}
    source = ShardSource(part, **how, with_labels=settings.labels != "none")
    if part.name != "all" or split in ("pretrain", "train"):
        return source
    labels = source.labels if len(part.classes) < 2 else part.labels()
    (index,) = np.nonzero(is_test_fifth(source.listing, labels) == (split == "test"))
    return source.select(index)


def _brought_source(images: BroughtImages, settings: DataSettings, split: str) -> Source:
    index = np.arange(len(images))
    if split not in ("pretrain", "train"):
        names = (str(i).encode() for i in range(len(images)))
        (index,) = np.nonzero(is_held_out(names, images.labels) == (split == "test"))
    with_labels = settings.labels != "none"
    source = ItemsSource(images, index, side=settings.decode_size, with_labels=with_labels, channels=settings.channels)
    side = settings.decode_size
    if (
        isinstance(images.items, Tensor)
        and images.items.dtype == torch.uint8
        and images.items.shape[1:] == (settings.channels, side, side)
    ):
        rows = images.items if len(index) == len(images) else images.items[index]  # as it is: no second copy
        return ArraySource(source.name, rows, source.labels, source.classes, path=source.path)
    return source


def fits_in_memory(source: Decoding, settings: DataSettings) -> bool:
    """Whether images are decoded when their source is opened, and kept in `data.cache_megabytes`."""
    is_named = kind_of(settings) == "named"
    return (
        not is_named and len(source) * settings.channels * settings.decode_size**2 <= settings.cache_megabytes * 2**20
    )


def _files_source(settings: DataSettings, split: str) -> FolderSource:
    listing = training_files(settings)
    classes = class_folders(listing, settings.labels)
    labels = numbered(listing, classes)
    is_split = has_test(settings)
    if split == "test" and is_split:
        listing = files_of(settings, "test")
        labels = numbered(listing, classes)  # the numbers of the training classes, found by name
    elif not is_split and split not in ("pretrain", "train"):
        (index,) = np.nonzero(is_test_fifth(listing, labels) == (split == "test"))
        listing, labels = listing.select(index), labels[index]
    names = tuple(map(printable, classes))
    how = {"side": settings.decode_size, "max_pixels": settings.max_pixels, "channels": settings.channels}
    return FolderSource(listing, labels, names, **how)


def is_test_fifth(listing: Listing, labels: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which images make up the fixed fifth, by their paths."""
    return is_held_out((listing.relative(i) for i in range(len(listing))), labels)


def is_held_out(names: Iterable[bytes], labels: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the images called `names` make up the fixed fifth: of every class those whose hashed names are lowest.

    A hash of the path decides and not its place in the list, so that one more image moves hardly any other from one
    part to the other. A class of two or more gives at least one.
    """
    hashes = np.fromiter((counter.key(0, f"held out {name.hex()}") for name in names), np.int64, len(labels))
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        (members,) = np.nonzero(labels == label)
        count = max(len(members) // 5, min(1, len(members) - 1))
        chosen[members[hashes[members].argsort(kind="stable")[:count]]] = True
    return chosen
