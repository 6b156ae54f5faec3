"""CIFAR-10, CIFAR-100 and STL-10 as torchvision stores, checks and fetches them."""

from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from iecl.data.cache import cache_folder, one_process_at_a_time
from iecl.data.datasets import check_split
from iecl.data.settings import DataSettings
from iecl.data.source import ArraySource
from iecl.errors import UserError

# Its file of names is the one that torchvision does not check.
_STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_STL10_SPLITS = {"train": "train", "test": "test", "unlabeled": "unlabeled", "pretrain": "train+unlabeled"}


def open_cifar10(settings: DataSettings, split: str) -> ArraySource:
    """CIFAR-10 as a source."""
    return _open_cifar("cifar10", CIFAR10, settings, split)


def open_cifar100(settings: DataSettings, split: str) -> ArraySource:
    """CIFAR-100 with its 100 fine classes as a source."""
    return _open_cifar("cifar100", CIFAR100, settings, split)


def open_stl10(settings: DataSettings, split: str) -> ArraySource:
    """STL-10 as a source; `pretrain` is its training images followed by those without a label."""
    check_split("stl10", split)
    stored = _stored("stl10", STL10, settings, split=_STL10_SPLITS[split])
    return ArraySource("stl10", torch.from_numpy(stored.data), stored.labels.astype(np.int64), _STL10_CLASSES)


def _open_cifar(name: str, kind: type[Any], settings: DataSettings, split: str) -> ArraySource:
    check_split(name, split)
    stored = _stored(name, kind, settings, train=split != "test")
    images = torch.from_numpy(stored.data).permute(0, 3, 1, 2)  # torchvision turned the channels away; turn them back
    return ArraySource(name, images, np.asarray(stored.targets, np.int64), tuple(stored.classes))


def _stored(name: str, kind: type[Any], settings: DataSettings, **part: Any) -> Any:
    """The dataset of torchvision, with all its files there and their checksums right."""
    root = Path(settings.root).expanduser() if settings.root else cache_folder()
    try:
        return kind(root, **part)
    except RuntimeError:  # what torchvision raises when a file is absent or its checksum is wrong
        if not settings.download:
            state = "incomplete" if (root / kind.base_folder).exists() else "not"
            do = "add --set data.download=true, or point --data at a folder"
            raise UserError(f"{name} is {state} in {root}", where="data.root", do=do) from None
    try:
        with one_process_at_a_time(root):
            kind(root, download=True, **part)  # returns at once if another process has fetched it meanwhile
        return kind(root, **part)  # a fetched STL-10 is only checked when it is opened once more
    except (RuntimeError, OSError, HTTPException) as problem:
        do = f"try again, or fetch {kind.url} elsewhere and unpack it there"
        raise UserError(f"{name} cannot be fetched: {problem}", where=f"data.root = {root}", do=do) from problem
