"""What `auto`, 0 and empty mean for the data at hand; free of torch, so that wrong --data fails at once."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from iecl.brought import is_brought
from iecl.data.datasets import DATASETS, FACTS, IMAGENET_MEAN, IMAGENET_STD
from iecl.data.decoder import Unreadable, header_size
from iecl.data.exclusion import check_exclusion, without
from iecl.data.labels import class_folders
from iecl.data.listing import Listing, printable
from iecl.data.pack_format import open_packed
from iecl.data.places import is_files, is_pattern, is_saved_dataset, list_places, parts_of
from iecl.data.settings import DataSettings
from iecl.data.shard_files import is_shards, is_url
from iecl.data.shard_set import ShardSet, open_shards
from iecl.data.skipped_files import nothing_readable
from iecl.errors import UserError, did_you_mean
from iecl.launch import usable_cores

_SAMPLE = 64
_SIZES = {40: 32, 80: 64, 112: 96, 160: 128}
"""Side of a view by the greatest median short side that it is meant for."""
_LARGEST = 224


def resolve_data(settings: DataSettings) -> DataSettings:
    """The same settings with every `auto`, 0 and empty value replaced by the one chosen; chosen values stay.

    Sizes come from the headers of up to 64 images. A named dataset brings its size and its constants; whether it has
    labels it knows itself, so that `auto` stays for it. A folder's path is made absolute, so that a run can be resumed
    from elsewhere.

    Raises:
        UserError: the data cannot be found, or no image in it can be read.
    """
    kind = kind_of(settings)
    if settings.exclude:
        settings = _with_exclusion(settings, kind)
    if settings.channels != 3 and kind in ("named", "packed"):
        raise UserError(f"{settings.name} has 3 channels", where="data.channels", do="leave it out")
    if kind == "named":
        chosen = _for_named(settings)
    else:
        name, *more = (str(folder_of(name) or name) for name in settings.names)
        count, is_color = settings.channels, settings.channels == 3
        mean = settings.mean or (IMAGENET_MEAN if is_color else (0.5,) * count)
        std = settings.std or (IMAGENET_STD if is_color else (0.25,) * count)
        chosen = _CHOOSERS[kind](replace(settings, name=name, more=tuple(more), mean=mean, std=std))
    workers = settings.num_workers if settings.num_workers >= 0 else min(8, usable_cores())
    return replace(chosen, num_workers=workers)


def _with_exclusion(settings: DataSettings, kind: str) -> DataSettings:
    """The list of what is left out under its whole path, after a look at whether it is for these images."""
    if kind != "files":
        do = "give --data a folder, a list or a pattern; iecl pack takes --exclude too"
        raise UserError(f"single images of {settings.name} cannot be left out", where="--exclude", do=do)
    exclude = str(Path(settings.exclude).expanduser().absolute())
    names = tuple(str(folder_of(name)) for name in settings.names)
    if not _is_resolved(settings) or settings.exclude != exclude:
        check_exclusion(map(list_places, parts_of(names).values()), exclude, names)
    return replace(settings, exclude=exclude)


def kind_of(settings: DataSettings) -> str:
    """What images come from: `named`, a dataset; `brought`, by a Python program; `packed`; `shards`; or `files`.

    Raises:
        UserError: there are several, and not all of them are files.
    """
    kinds = [_kind(name) for name in settings.names]
    if len(kinds) > 1 and set(kinds) not in ({"files"}, {"shards"}):
        name = next(name for name, kind in zip(settings.names, kinds, strict=True) if kind != "files")
        raise UserError(
            f"{name} cannot be joined with other images",
            where="--data",
            do="several are folders, lists of paths, patterns or images, or all of them shards; iecl pack joins files",
        )
    return kinds[0]


def _kind(name: str) -> str:
    path = folder_of(name)
    if is_url(name) or (path is not None and is_shards(str(path))):
        return "shards"
    if path is None:
        return "brought" if is_brought(name) else "named"
    if is_saved_dataset(path):
        return "brought"
    return "files" if is_files(str(path)) else "packed"


def folder_of(name: str) -> Path | None:
    """The folder, list, pattern or file that a name stands for, or None for a named dataset, an object or a URL.

    A named dataset goes first; a folder of the same name can be written `./name`.
    """
    if name in DATASETS or is_brought(name) or is_url(name):
        return None
    folder = Path(name).expanduser()
    if not folder.exists() and folder.name == name and not is_pattern(name) and not is_shards(name):
        shown = printable(os.fsencode(name))
        do = did_you_mean(name, DATASETS)
        raise UserError(f"there is no folder and no dataset called {shown!r}", where="--data", do=do)
    return folder.absolute()


def has_test(settings: DataSettings) -> bool:
    """Whether data, which are resolved, come with test images of their own."""
    kind = kind_of(settings)
    if kind == "files":
        return "test" in parts_of(settings.names)
    if kind == "shards":
        return "test" in shards_of(settings).parts
    return kind == "named" or (kind == "packed" and "test" in open_packed(Path(settings.name)).parts)


def count_images(settings: DataSettings) -> int:
    """How many images there are to train on, those included that cannot be read.

    Raises:
        UserError: there is one alone, and nothing that it could be compared with.
    """
    kind = kind_of(settings)
    if kind == "named":
        count = FACTS[settings.name].pretrain
    elif kind == "packed":
        count = len(open_packed(Path(settings.name)).part_for("pretrain").tables["labels"])
    elif kind == "shards":
        count = shards_of(settings).part_for("pretrain").count
    else:
        count = len(training_files(settings))
    if count == 1:
        raise UserError(
            f"{settings.name} holds 1 image: training compares images with each other",
            where="--data",
            do="give 2 or more, some hundred are a start",
        )
    return count * 7 // 10 if settings.validation else count  # a fifth and a tenth of the rest stay out


def usual_side(settings: DataSettings) -> float:
    """The usual shorter side of images that are no files."""
    kind = kind_of(settings)
    if kind == "brought":
        from iecl.data.brought_source import brought_images

        return brought_images(settings.name).short_side()
    if kind == "shards":
        return shards_of(settings).short_side
    return FACTS[settings.name].decode_size if kind == "named" else open_packed(Path(settings.name)).short_side


def training_files(settings: DataSettings) -> Listing:
    """The files that there are to train on."""
    if kind_of(settings) == "brought":
        from iecl.data.brought_source import brought_images

        listing: Listing = brought_images(settings.name).items
        return listing
    parts = parts_of(settings.names)
    return files_of(settings, "train" if "train" in parts else "all")


def files_of(settings: DataSettings, part: str) -> Listing:
    """The files of a part, as `parts_of` calls it, without those that are left out."""
    return without(list_places(parts_of(settings.names)[part]), settings.exclude, settings.names)


def _for_named(settings: DataSettings) -> DataSettings:
    facts = FACTS[settings.name]
    if settings.labels != "auto":
        raise UserError(
            f"{settings.name} knows its labels itself",
            where=f"data.labels = {settings.labels}",
            do="leave it at auto; training.online_eval_epochs=0 leaves the labels unused",
        )
    return replace(
        settings,
        image_size=settings.image_size or facts.image_size,
        decode_size=settings.decode_size or facts.decode_size,
        mean=settings.mean or facts.mean,
        std=settings.std or facts.std,
    )


def _for_files(settings: DataSettings) -> DataSettings:
    if _is_resolved(settings):
        return settings
    listing = training_files(settings)
    is_labeled = bool(class_folders(listing, "auto")) if settings.labels == "auto" else False
    return _for_sides(settings, median_short_side(listing, settings.max_pixels, settings.channels), is_labeled)


def _is_resolved(settings: DataSettings) -> bool:
    """Whether files were looked at before: a million of them are not listed again."""
    return bool(settings.image_size and settings.decode_size and settings.labels != "auto")


def _for_brought(settings: DataSettings) -> DataSettings:
    from iecl.data.brought_source import brought_images

    images = brought_images(settings.name)
    if isinstance(images.items, Listing):
        return _for_files(settings)
    return _for_sides(settings, images.short_side(), bool(images.classes))


def _for_sides(settings: DataSettings, short: float, is_labeled: bool) -> DataSettings:
    labels = settings.labels if settings.labels != "auto" else "folders" if is_labeled else "none"
    image_size = settings.image_size or next((size for top, size in _SIZES.items() if short <= top), _LARGEST)
    return replace(
        settings,
        labels=labels,
        image_size=image_size,
        decode_size=settings.decode_size or _decode_size(image_size, short),
    )


def _for_packed(settings: DataSettings) -> DataSettings:
    """As it was packed; what was decided then cannot be asked for differently now."""
    path = Path(settings.name)
    file = open_packed(path)
    if settings.decode_size not in (0, file.side):
        raise UserError(
            f"{path} holds images of {file.side} px",
            where=f"data.decode_size = {settings.decode_size}",
            do="leave it out, or pack the images again",
        )
    labels = settings.labels
    if labels == "auto":
        labels = "folders" if file.classes else "none"
    elif labels == "folders" and not file.classes:
        do = "pack them again with --set data.labels=folders"
        raise UserError(f"{path} was packed without classes", where="data.labels = folders", do=do)
    image_size = settings.image_size or file.image_size
    if image_size > file.side and file.short_side > file.side:
        raise UserError(
            f"{path} holds images of {file.side} px, made of larger ones",
            where=f"data.image_size = {image_size}",
            do=f"pack them again with --side {image_size} or more",
        )
    return replace(settings, labels=labels, image_size=image_size, decode_size=file.side)


def shards_of(settings: DataSettings) -> ShardSet:
    """The shards that the data are; an index that is not there is made, which takes as long as to read them once."""
    return open_shards((settings.names, settings.bad_shards == "skip"))


def _for_shards(settings: DataSettings) -> DataSettings:
    if _is_resolved(settings):
        return settings
    found = shards_of(settings)
    classes = found.part_for("train").classes
    if settings.labels == "folders" and not classes:
        do = "give a sample a .cls or .json member, or set it to none"
        raise UserError(f"{settings.name} has no labels", where="data.labels = folders", do=do)
    return _for_sides(settings, found.short_side, len(classes) > 1)


_CHOOSERS = {"files": _for_files, "brought": _for_brought, "packed": _for_packed, "shards": _for_shards}


def _decode_size(image_size: int, short: float) -> int:
    """A decoded square with room for crops: up to twice the view, but never much larger than the images.

    As large as the usual image exactly, most images of a collection are resized in one direction only.

    >>> _decode_size(224, 500), _decode_size(224, 375), _decode_size(224, 200), _decode_size(32, 32)
    (448, 375, 224, 32)
    """
    return min(max(image_size, int(short)), 2 * image_size)


def median_short_side(listing: Listing, max_pixels: int, channels: int = 0) -> float:
    """The median of the shorter sides of up to 64 readable images that are spread over the list.

    Raises:
        UserError: no image can be read.
    """
    # Multiples of the golden ratio spread evenly, so that any first part of this order is spread over the whole list.
    spread = np.arange(float(len(listing)))
    spread *= 0.6180339887498949  # in place: a million numbers are enough once
    spread %= 1
    order = np.argsort(spread)
    found: list[int] = []
    reasons: Counter[str] = Counter()
    for i in map(int, order):
        try:
            found.append(min(header_size(listing.path(i), max_pixels, channels)))
        except Unreadable as problem:
            reasons[str(problem)] += 1
        if len(found) == _SAMPLE:
            break
    if not found:
        raise nothing_readable(listing.root_name, reasons)
    return median(found)
