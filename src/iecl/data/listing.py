"""Which images a folder holds: one quick walk, kept as one buffer of bytes.

Names are bytes throughout, since a file's name need not be text in any encoding. A million paths are one buffer and one
array of offsets: worker processes share it, where a list of strings would be copied into each of them. While it is made
no more than the names of one folder are ever held as objects of their own.
"""

import heapq
import os
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from iecl.errors import UserError

EXTENSIONS = frozenset(
    b".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .avif .bmp .gif .tif .tiff .ppm .pgm .pbm .pnm .npy".split()
)
TEST_FOLDERS = ("test", "val", "valid", "validation")
_CHUNK = 4096
_Found = TypeVar("_Found")
_Place = TypeVar("_Place")
_FOUND: ContextVar[dict[Any, Any]] = ContextVar("found")
"""What was found in folders since the outermost `one_walk` began."""
_Failures = Sequence[tuple[str, str]]
_TRY_ANOTHER = "give the folder that holds the images"


def printable(name: bytes) -> str:
    r"""A file's name as text that any terminal can show on one line.

    >>> print(printable("café".encode()), printable(b"new\nline"), printable(b"\xff.png"))
    café new\nline \udcff.png
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in os.fsdecode(name))


@dataclass(frozen=True)
class Listing:
    """The images below a folder, in byte order of their paths."""

    root: bytes
    names: bytes | bytearray | memoryview
    """Paths relative to the root, one after the other."""
    ends: npt.NDArray[np.int64]
    """Where each path ends in `names`."""
    others: Mapping[str, int]
    """What else lies there: how many files of each extension."""
    unreadable: _Failures = ()
    """Folders that could not be listed, each with the reason."""
    owners: tuple[bytes, ...] = ()
    """Names of classes, where something else than the first folder says which an image belongs to; empty: none."""
    owner: npt.NDArray[np.int64] | None = None
    """Which of these each image has; None: its first folder is its class."""

    def __len__(self) -> int:
        return len(self.ends)

    def relative(self, index: int) -> bytes:
        """The path of an image below the root."""
        start = self.ends[index - 1] if index else 0
        return bytes(self.names[start : self.ends[index]])

    def path(self, index: int) -> bytes:
        """The path to open."""
        return os.path.join(self.root, self.relative(index))  # noqa: PTH118 - a Path cannot be made of bytes

    @property
    def root_name(self) -> str:
        """The root as text for people."""
        return printable(self.root)

    def name(self, index: int) -> str:
        """The path as text for people."""
        return printable(self.path(index))

    def select(self, index: npt.NDArray[np.int64]) -> "Listing":
        """A listing of some of the images, in the order given."""
        starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])[index]
        lengths = self.ends[index] - starts
        ends = lengths.cumsum()
        old, names = np.frombuffer(self.names, np.uint8), bytearray(int(lengths.sum()))
        new = np.frombuffer(names, np.uint8)
        for first in range(0, len(index), _CHUNK):  # a number for each byte is too much for all names at once
            part = slice(first, first + _CHUNK)
            before = ends[part] - lengths[part]
            here = np.arange(before[0], ends[part][-1])
            new[here] = old[here + (starts[part] - before).repeat(lengths[part])]
        owner = None if self.owner is None else self.owner[index]
        return Listing(self.root, names, ends, self.others, self.unreadable, self.owners, owner)

    def first_folders(self) -> Iterator[tuple[bytes, int, int]]:
        """(name, first image, one past the last) of every folder right below the root; the order must be by bytes.

        Images that lie in no folder come one by one, with an empty name; so do all where a list gives their classes.
        """
        if self.owner is not None:
            yield from ((self.owners[number], i, i + 1) for i, number in enumerate(self.owner.tolist()))
            return
        start = 0
        while start < len(self):
            name, slash, _ = self.relative(start).partition(b"/")
            end = start + 1
            if slash:
                after = name + b"0"  # what follows the slash among bytes
                end = bisect_left(range(len(self)), after, lo=start, key=self.relative)
            yield (name if slash else b""), start, end
            start = end


@contextmanager
def one_walk() -> Iterator[None]:
    """While this lasts, a folder is walked once: whoever asks for its images again gets the list that was made first.

    Put it around one piece of work, as a `with` block or a decorator. What was found is forgotten at its end, so that
    the next piece of work sees a folder as it is then.
    """
    before = _FOUND.set(_FOUND.get({}))  # a part of a larger piece of work keeps to the walk of that
    try:
        yield
    finally:
        _FOUND.reset(before)


def kept_for_one_walk(look: Callable[[_Place], _Found]) -> Callable[[_Place], _Found]:
    """Let a function of a place be asked once while `one_walk` lasts."""

    @wraps(look)
    def look_once(place: _Place) -> _Found:
        found = _FOUND.get({})
        if (look, place) not in found:
            found[look, place] = look(place)
        kept: _Found = found[look, place]
        return kept

    return look_once


@kept_for_one_walk
def list_images(folder: Path) -> Listing:
    """Every image below a folder, in all depths.

    Images are regular files with a known extension; links are followed, no folder is walked twice, and hidden names
    and `__MACOSX` are passed over.

    Raises:
        UserError: the folder is missing, is a file, cannot be read, or holds no image.
    """
    root = os.fsencode(folder)
    shown = printable(root)
    walk = _Walk(root)
    names, ends = _in_byte_order(walk)
    if isinstance(walk.failure, FileNotFoundError):
        raise UserError(f"there is no folder {shown}", where="--data", do=_TRY_ANOTHER)
    if isinstance(walk.failure, NotADirectoryError):
        raise UserError(f"{shown} is a file, not a folder", where="--data", do=_TRY_ANOTHER)
    if walk.failure:
        raise UserError(f"cannot list {shown}: {_reason(walk.failure)}", where="--data", do=_TRY_ANOTHER)
    if not len(ends):
        raise UserError(f"there is no image in {shown}: {_found(walk)}", where="--data", do=_TRY_ANOTHER)
    return Listing(root, names, ends, walk.others, tuple(walk.unreadable))


def _found(walk: "_Walk") -> str:
    """What a folder without images holds instead, as in `14 files: 12 .txt, 2 .pdf`."""
    total = walk.others.total()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(walk.others.items(), key=lambda k: (-k[1], k[0]))[:5])
    files = f"{total} file{'s' if total != 1 else ''}: {kinds}" if total else "it is empty"
    more = len(walk.unreadable)
    return files + (f", and {more} thing{'s' if more != 1 else ''} that cannot be read" if more else "")


@dataclass
class _Segment:
    """Images that follow each other in byte order."""

    first: bytes
    names: bytearray = field(default_factory=bytearray)
    ends: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, prefix: bytes, names: list[bytes]) -> None:
        """Append the images of one folder."""
        lengths = np.fromiter(map(len, names), np.int64, len(names)) + len(prefix)
        self.ends.frombytes((len(self.names) + lengths.cumsum()).tobytes())
        self.names += prefix + prefix.join(names)


def _in_byte_order(walk: "_Walk") -> tuple[bytearray, npt.NDArray[np.int64]]:
    """All paths of a walk one after the other, and where each ends."""
    segments: list[_Segment] = []
    is_cut = True
    for run in walk:
        if run is None:
            is_cut = True
            continue
        prefix, names = run
        if is_cut:
            segments.append(_Segment(prefix + names[0]))
            is_cut = False
        segments[-1].add(prefix, names)
    segments.sort(key=lambda segment: segment.first)
    whole = segments[0] if segments else _Segment(b"")
    for segment in segments[1:]:
        whole.ends.frombytes((len(whole.names) + np.frombuffer(segment.ends, np.int64)).tobytes())
        whole.names += segment.names
    return whole.names, np.frombuffer(whole.ends, np.int64)


BROKEN_LINK = "broken link"
_Run = tuple[bytes, list[bytes]]
"""What all paths begin with, and how they go on."""


class _Walk:
    """Iterates over the images below a folder, and notes what else it meets.

    They come in runs, in byte order; None stands where the order is cut: where a link to a folder would have its place,
    and before what the links lead to. Links come last, so that a folder that is there in person is listed under its own
    name, whatever points to it.
    """

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.others: Counter[str] = Counter()
        self.unreadable: list[tuple[str, str]] = []
        self.failure: OSError | None = None
        """Why the folder itself could not be listed."""
        self._links: list[bytes] = []
        self._is_image: dict[bytes, bool] = {}
        """By extension, as it is written."""

    def __iter__(self) -> Iterator[_Run | None]:
        seen: set[tuple[int, int]] = set()
        self._links = [b""]
        while self._links:
            todo: list[_Run | bytes | None] = [heapq.heappop(self._links)]
            while todo:
                item = todo.pop()
                if isinstance(item, bytes):
                    todo += reversed(self._listed(item, seen))
                else:
                    yield item
            yield None

    def _listed(self, prefix: bytes, seen: set[tuple[int, int]]) -> list[_Run | bytes | None]:
        """What one folder holds, in byte order: runs of images, folders as the prefix of their paths, and cuts."""
        here = os.path.join(self.root, prefix.removesuffix(b"/"))  # noqa: PTH118 - bytes
        try:
            status = os.stat(here)  # noqa: PTH116 - bytes
            if (status.st_dev, status.st_ino) in seen:  # each real folder once: links can form loops and webs
                return []
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(here) as entries:
                images, folders = self._sorted_out(entries, here)
        except OSError as problem:
            if not prefix:
                self.failure = problem
            else:
                self.unreadable.append((printable(here), _reason(problem)))
            return []
        if not folders:
            return [(prefix, sorted(images))] if images else []
        found: list[_Run | bytes | None] = []
        run: list[bytes] = []
        for name in sorted([*images, *folders]):
            if not name.endswith(b"/"):
                run.append(name)
                continue
            if run:
                found.append((prefix, run))
                run = []
            if folders[name]:
                heapq.heappush(self._links, prefix + name)
                found.append(None)
            else:
                found.append(prefix + name)
        return [*found, (prefix, run)] if run else found

    def _sorted_out(self, entries: Iterable[os.DirEntry[bytes]], here: bytes) -> tuple[list[bytes], dict[bytes, bool]]:
        """The names of images, and those of folders with a slash and whether they are links; the rest is counted."""
        images: list[bytes] = []
        folders: dict[bytes, bool] = {}
        is_image = self._is_image
        for entry in entries:
            name = entry.name
            # What nearly all entries are goes first: this is most of the time that a million files take.
            extension = name[name.rfind(b".") :]
            if is_image.get(extension) and not name.startswith(b".") and entry.is_file(follow_symlinks=False):
                images.append(name)
            elif name.startswith(b"."):
                self.others["hidden"] += 1
            elif name == b"__MACOSX":
                continue
            elif (kind := self._kind(entry)) == "image":
                images.append(name)
            elif kind in ("folder", "link to a folder"):
                folders[name + b"/"] = kind != "folder"
            else:
                self.others[kind] += 1
                if kind == BROKEN_LINK and is_image[_extension(name)]:
                    self.unreadable.append((printable(os.path.join(here, name)), kind))  # noqa: PTH118 - bytes
        return images, folders

    def _kind(self, entry: os.DirEntry[bytes]) -> str:
        """What an entry is: `image`, `folder`, `link to a folder`, or a word for the count of others."""
        extension = _extension(entry.name)
        if extension not in self._is_image:
            self._is_image[extension] = extension.lower() in EXTENSIONS
        try:
            if entry.is_file():  # the answer comes with the listing; only a link costs a call
                if self._is_image[extension]:
                    return "image"
                return printable(extension.lower()) if extension else "without extension"
            if entry.is_dir():
                return "link to a folder" if entry.is_symlink() else "folder"
        except OSError:  # a link to itself
            return BROKEN_LINK
        # A pipe or a device would wait forever when opened.
        return BROKEN_LINK if entry.is_symlink() else "not a regular file"


def _extension(name: bytes) -> bytes:
    """From the last dot on; a name that begins with its only dot is hidden, and asked for by nobody."""
    dot = name.rfind(b".")
    return name[dot:] if dot >= 0 else b""


def _reason(problem: OSError) -> str:
    return (problem.strerror or type(problem).__name__).lower()


@kept_for_one_walk
def splits(folder: Path) -> dict[str, Path]:
    """The parts of a dataset: `train` and `test` where there are such sub-folders, else one part `all`.

    The test part is the first of `test`, `val`, `valid` and `validation` that holds images; one that is laid out as
    `train` is (class folders or none) goes before one that is not, since ImageNet's `test` has no classes and its `val`
    has. Capitals do not matter.
    """
    found: dict[str, Path] = {}
    if os.access(folder, os.R_OK | os.X_OK) and folder.is_dir():  # otherwise list_images says what is wrong
        named = [entry for entry in folder.iterdir() if entry.name.lower() in ("train", *TEST_FOLDERS)]
        for entry in sorted(named, reverse=True):  # reversed: of `Train` and `train` the first stays
            if entry.is_dir():
                found[entry.name.lower()] = entry
    candidates = [found[name] for name in TEST_FOLDERS if name in found and _holds_images(found[name])]
    if "train" not in found or not candidates or not _can_be_listed(found["train"]):
        return {"all": folder}
    nested = _has_folders(found["train"])
    return {"train": found["train"], "test": max(candidates, key=lambda part: _has_folders(part) == nested)}


def _can_be_listed(folder: Path) -> bool:
    """Whether there are images, found by the walk that whoever wants to train has to make anyway."""
    try:
        list_images(folder)
    except UserError:
        return False
    return True


def _holds_images(folder: Path) -> bool:
    return any(run is not None for run in _Walk(os.fsencode(folder)))


def _has_folders(folder: Path) -> bool:
    return any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir())
