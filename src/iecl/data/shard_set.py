"""A set of shards by name: its parts, each with an index that is found beside it or made. Free of torch."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np

from iecl.data.cache import cache_folder
from iecl.data.listing import Listing, kept_for_one_walk, printable
from iecl.data.shard_files import INDEX, expand, is_url, part_of, read_range, size_and_stamp
from iecl.data.shard_index import PIECE, IndexFile, IndexWriter, Table, joined_classes, read_index
from iecl.data.tar_samples import BadShardError
from iecl.errors import UserError
from iecl.files import atomic_file

log = logging.getLogger("iecl.data")
_AT_ONCE = 8
"""Shards that are read at a time to make their index."""


@dataclass(frozen=True)
class ShardPart:
    """The images of one split."""

    name: str
    title: str
    """What people call all of the data."""
    files: tuple[IndexFile, ...]
    classes: tuple[str, ...]
    """Of the training images, whose numbers all parts have."""

    @property
    def count(self) -> int:
        """How many images there are."""
        return sum(file.count for file in self.files)

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """Paths or URLs."""
        return tuple(shard for file in self.files for shard in file.shards)

    @cached_property
    def blocks(self) -> Table:
        """As in one index file, for all shards."""
        before = np.cumsum([0, *(len(file.shards) for file in self.files)])
        shifted = [file.blocks + np.array([start, 0, 0, 0, 0]) for file, start in zip(self.files, before, strict=False)]
        return np.concatenate(shifted)

    def labels(self) -> Table:
        """The class of each image, or -1.

        Raises:
            UserError: a class is not among those of the training images.
        """
        number = {name: i for i, name in enumerate(self.classes)}
        found = []
        for file in self.files:
            strange = [name for name in file.classes if name not in number]
            if strange:
                raise UserError(
                    f"{self.title} has the class {printable(os.fsencode(strange[0]))} in its {self.name} images alone",
                    where="data.labels",
                    do="set data.labels to none",
                )
            new = np.array([*(number[name] for name in file.classes), -1], np.int64)
            found.append(new[file.labels])
        return np.concatenate(found)

    def listing(self) -> Listing:
        """The names of all images."""
        found = [file.names() for file in self.files]
        before = np.cumsum([0, *(len(names) for _, names in found)])
        ends = np.concatenate([ends + start for (ends, _), start in zip(found, before, strict=False)])
        names = np.concatenate([names for _, names in found])
        return Listing(os.fsencode(self.title), names.data, ends, {})


@dataclass(frozen=True)
class ShardSet:
    """All parts: `train` and `test`, or `all`."""

    parts: dict[str, ShardPart]
    skipped: tuple[tuple[str, str], ...] = ()
    """(shard, reason) of those that could not be read when the index was made."""

    def part_for(self, split: str) -> ShardPart:
        """The part that a split is, or is a part of."""
        return self.parts["test" if split == "test" and "test" in self.parts else next(iter(self.parts))]

    @property
    def short_side(self) -> float:
        """The usual shorter side of an image."""
        sides = [file.short_side for file in self.part_for("train").files if file.short_side > 0]
        if not sides:
            name = self.part_for("train").title
            raise UserError(f"none of the images in {name} that were looked at can be read", where="--data")
        return float(np.median(sides))

    @property
    def content(self) -> str:
        """A hash of every block's checksum."""
        digest = blake2b(digest_size=6)
        for part in self.parts.values():
            digest.update(part.name.encode() + part.blocks[:, 2:].tobytes())
        return digest.hexdigest()


@kept_for_one_walk
def open_shards(key: tuple[tuple[str, ...], bool]) -> ShardSet:
    """The shards that names stand for; the index of each that has none is made now.

    Args:
        key: the names, absolute; and whether a shard that cannot be read is left out, otherwise it is an error.

    Raises:
        UserError: there is no shard, one cannot be read, or none holds an image.
    """
    names, skips = key
    if len(names) == 1:
        own = _packed(names[0])
        if own:
            return _set(names[0], own)
    shards = [shard for name in names for shard in expand(name)]
    files: dict[str, list[IndexFile]] = {}
    skipped: list[tuple[str, str]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for shard, found in zip(shards, pool.map(_scanned, shards), strict=True):
            if isinstance(found, IndexFile):
                files.setdefault(part_of(shard), []).append(found)
            elif found != _EMPTY and not skips:
                raise bad_shard(shard, found)
            else:
                skipped.append((shard, found))
    if not files:
        raise UserError(
            f"no shard of {names[0]} holds an image", where="--data", do=f"{skipped[0][0]}: {skipped[0][1]}"
        )
    if set(files) != {"train", "test"}:
        files = {"all": [file for part in files.values() for file in part]}
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return _set(title, {part: files[part] for part in ("train", "test", "all") if part in files}, skipped)


def bad_shard(shard: str, reason: str) -> UserError:
    """The error for a shard that cannot be read."""
    return UserError(
        f"the shard {printable(os.fsencode(shard))} cannot be used: {reason}",
        where="--data",
        do="restore it, or go on without it: --set data.bad_shards=skip",
    )


def _set(title: str, files: dict[str, list[IndexFile]], skipped: list[tuple[str, str]] | None = None) -> ShardSet:
    classes = joined_classes(next(iter(files.values())))
    parts = {name: ShardPart(name, title, tuple(found), classes) for name, found in files.items()}
    return ShardSet(parts, tuple(skipped or ()))


def _packed(name: str) -> dict[str, list[IndexFile]]:
    """The parts of a folder that `iecl pack --shards` wrote; none, if it did not."""
    if name.endswith((".tar", ".txt")) or (not is_url(name) and not Path(name).is_dir()):
        return {}
    folder, found = name.rstrip("/"), {}
    for part in ("all", "train", "test"):
        place = f"{folder}/{INDEX.format(part)}"
        path = _fetched(place) if is_url(name) else Path(place)
        if path is not None and path.is_file():
            found[part] = [read_index(path, folder)]
    if set(found) in ({"all"}, {"train", "test"}):
        return found
    if found or is_url(name):
        raise UserError(
            f"{name} is no folder of shards that iecl pack wrote" if not found else f"{name} lacks a part",
            where="--data",
            do="give shards as NAME-{000..123}.tar, or pack them again",
        )
    return {}


def _kept(*about: object) -> Path:
    """Where what is known of a file at some place is kept."""
    digest = blake2b("\0".join(map(str, about)).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    folder = cache_folder() / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{digest}.npz"


def _fetched(url: str) -> Path | None:
    """A copy of an index at a URL; None: there is none."""
    try:
        size, stamp = size_and_stamp(url)
        path = _kept(url, size, stamp)
        if not path.exists():
            with atomic_file(path) as file:
                for start in range(0, size, PIECE):
                    file.write(read_range(url, start, min(PIECE, size - start)))
    except BadShardError as problem:
        if str(problem) == "it is not there":
            return None
        raise UserError(f"cannot read {url}: {problem}", where="--data") from problem
    return path


_EMPTY = "it holds no image"


def _scanned(shard: str) -> IndexFile | str:
    """The index of a shard, made if there is none; or what is wrong with the shard."""
    try:
        size, stamp = size_and_stamp(shard)
        path = _kept(shard, size, stamp)
        if not path.exists():
            log.info("reading %s once, to know what is in it", printable(os.fsencode(shard)))
            made = IndexWriter()
            made.add(shard, shard, size)
            if not made.names:
                return _EMPTY
            made.write(path)
    except BadShardError as problem:
        return str(problem)
    return read_index(path, "")
