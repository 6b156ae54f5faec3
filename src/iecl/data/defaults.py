"""What `auto`, 0 and empty mean for the data at hand; free of torch, so that wrong --data fails at once."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from iecl.data.datasets import DATASETS, FACTS, IMAGENET_MEAN, IMAGENET_STD
from iecl.data.decoder import Unreadable, header_size, nothing_readable
from iecl.data.labels import class_folders
from iecl.data.listing import Listing, list_images, printable, splits
from iecl.data.pack_format import open_packed
from iecl.data.settings import DataSettings
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
    folder = folder_of(settings.name)
    if folder is None:
        chosen = _for_named(settings)
    else:
        named = replace(
            settings, name=str(folder), mean=settings.mean or IMAGENET_MEAN, std=settings.std or IMAGENET_STD
        )
        chosen = _for_packed(named, folder) if folder.is_file() else _for_folder(named, folder)
    workers = settings.num_workers if settings.num_workers >= 0 else min(8, usable_cores())
    return replace(chosen, num_workers=workers)


def folder_of(name: str) -> Path | None:
    """The folder or packed file that a name stands for, or None for a named dataset.

    A named dataset goes first; a folder of the same name can be written `./name`.
    """
    if name in DATASETS:
        return None
    folder = Path(name).expanduser()
    if not folder.exists() and folder.name == name:
        shown = printable(os.fsencode(name))
        do = did_you_mean(name, DATASETS)
        raise UserError(f"there is no folder and no dataset called {shown!r}", where="--data", do=do)
    return folder.absolute()


def has_test(name: str) -> bool:
    """Whether data come with test images of their own."""
    folder = folder_of(name)
    if folder is None:
        return True
    return "test" in (open_packed(folder).parts if folder.is_file() else splits(folder))


def count_images(settings: DataSettings) -> int:
    """How many images there are to train on, those included that cannot be read.

    Raises:
        UserError: there is one alone, and nothing that it could be compared with.
    """
    path = folder_of(settings.name)
    if path is None:
        count = FACTS[settings.name].train
    elif path.is_file():
        count = len(open_packed(path).part_for("pretrain").tables["labels"])
    else:
        parts = splits(path)
        count = len(list_images(parts["train"] if "train" in parts else parts["all"]))
    if count == 1:
        raise UserError(
            f"{settings.name} holds 1 image: training compares images with each other",
            where="--data",
            do="give 2 or more, some hundred are a start",
        )
    return count * 7 // 10 if settings.validation else count  # a fifth and a tenth of the rest stay out


def usual_side(name: str) -> float:
    """The usual shorter side of the images of a named dataset or a packed file."""
    path = folder_of(name)
    return FACTS[name].decode_size if path is None else open_packed(path).short_side


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


def _for_folder(settings: DataSettings, folder: Path) -> DataSettings:
    if settings.image_size and settings.decode_size and settings.labels != "auto":
        return settings  # resolved before: do not list a million files again
    parts = splits(folder)
    listing = list_images(parts["train"] if "train" in parts else parts["all"])
    labels = settings.labels
    if labels == "auto":
        labels = "folders" if class_folders(listing, "auto") else "none"
    short = median_short_side(listing, settings.max_pixels)
    image_size = settings.image_size or next((size for top, size in _SIZES.items() if short <= top), _LARGEST)
    return replace(
        settings,
        labels=labels,
        image_size=image_size,
        decode_size=settings.decode_size or _decode_size(image_size, short),
    )


def _for_packed(settings: DataSettings, path: Path) -> DataSettings:
    """As it was packed; what was decided then cannot be asked for differently now."""
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


def _decode_size(image_size: int, short: float) -> int:
    """A decoded square with room for crops: up to twice the view, but never much larger than the images.

    As large as the usual image exactly, most images of a collection are resized in one direction only.

    >>> _decode_size(224, 500), _decode_size(224, 375), _decode_size(224, 200), _decode_size(32, 32)
    (448, 375, 224, 32)
    """
    return min(max(image_size, int(short)), 2 * image_size)


def median_short_side(listing: Listing, max_pixels: int) -> float:
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
            found.append(min(header_size(listing.path(i), max_pixels)))
        except Unreadable as problem:
            reasons[str(problem)] += 1
        if len(found) == _SAMPLE:
            break
    if not found:
        raise nothing_readable(listing.root_name, reasons)
    return median(found)
