"""ImageNet and its subset of 100 classes: folders `train/<wnid>` and `val/<wnid>` of image files.

Archives as distributed are unpacked by torchvision first. Once the folders are there nothing else is asked for.
"""

import os
from importlib.resources import files
from pathlib import Path

import numpy as np

from iecl.data.cache import one_process_at_a_time
from iecl.data.datasets import FACTS, check_split
from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.settings import DataSettings
from iecl.data.skipped_files import Skipping
from iecl.errors import UserError


def open_imagenet(settings: DataSettings, split: str) -> FolderSource:
    """All 1,000 classes, numbered in the order of their wnids."""
    folder = _folder(settings, "imagenet", split)
    classes = _class_folders(folder)
    if len(classes) != FACTS["imagenet"].classes:
        raise _incomplete(folder, f"has {len(classes)} class folders, imagenet has {FACTS['imagenet'].classes}")
    return _source(folder, classes, settings, "imagenet")


def open_imagenet100(settings: DataSettings, split: str) -> FolderSource:
    """The 100 classes, numbered in the order of their wnids; other folders beside them are passed over."""
    folder = _folder(settings, "imagenet100", split)
    classes = imagenet100_classes()
    absent = sorted(set(classes) - set(_class_folders(folder)))
    if absent:
        raise _incomplete(folder, f"lacks {len(absent)} of imagenet100's class folders, as {absent[0]}")
    return _source(folder, classes, settings, "imagenet100")


def _incomplete(folder: Path, how: str) -> UserError:
    do = f"unpack the rest, or train on what is there: --data {folder.parent}"
    return UserError(f"{folder} {how}", where="data.root", do=do)


def imagenet100_classes() -> tuple[str, ...]:
    """The wnids of the subset, in order.

    >>> len(imagenet100_classes()), imagenet100_classes()[0]
    (100, 'n01558993')
    """
    lines = (files("iecl.data") / "imagenet100.txt").read_text("ascii").splitlines()
    return tuple(sorted(line for line in lines if not line.startswith("#")))


def _folder(settings: DataSettings, name: str, split: str) -> Path:
    """The folder of a split, whole; archives are unpacked into it when it is not there yet."""
    check_split(name, split)
    part = "val" if split == "test" else "train"
    if not settings.root:
        do = "add --set data.root=FOLDER, the folder that holds train and val"
        raise UserError(f"{name} has no place of its own", where="data.root", do=do)
    root = Path(settings.root).expanduser()
    folder = root / part
    if not folder.is_dir():
        _unpack(root, part, name)
    # Both archives are unpacked in two steps. What the first step made is gone only when the second came to its end.
    waiting = [path for path in folder.iterdir() if path.suffix in (".tar", ".JPEG")]
    if waiting:
        do = f"remove {folder} and start again"
        raise UserError(f"{folder} was not unpacked to the end: {waiting[0].name}", where="data.root", do=do)
    return folder


def _unpack(root: Path, part: str, name: str) -> None:
    from torchvision.datasets import ImageNet

    if not root.is_dir():
        raise UserError(f"there is no folder {root}", where="data.root", do="give the one that holds train and val")
    try:
        with one_process_at_a_time(root):
            ImageNet(root, split=part)
    except RuntimeError as problem:  # an archive is absent or its checksum is wrong
        raise UserError(
            f"{name} is not in {root}",
            where="data.root",
            do=f"put the folder {part}, or ILSVRC2012_img_{part}.tar and ILSVRC2012_devkit_t12.tar.gz, there",
        ) from problem


def _class_folders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name.startswith("n")))


def _source(folder: Path, classes: tuple[str, ...], settings: DataSettings, name: str) -> FolderSource:
    listing = list_images(folder)
    tell = Skipping()
    for failure in listing.unreadable:
        tell(*failure)
    number = {os.fsencode(wnid): label for label, wnid in enumerate(classes)}
    labels = np.full(len(listing), -1, np.int64)
    for owner, start, end in listing.first_folders():
        labels[start:end] = number.get(owner, -1)
    (kept,) = np.nonzero(labels >= 0)
    side = settings.decode_size or FACTS[name].decode_size
    return FolderSource(listing.select(kept), labels[kept], classes, side=side, max_pixels=settings.max_pixels)
