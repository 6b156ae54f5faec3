"""Which pictures a folder holds: one quick walk, kept as one buffer of bytes.

Names are bytes throughout, since a file's name need not be text in any encoding. A million paths are one `bytes` object
and one array of offsets: worker processes share it, where a list of strings would be copied into each of them.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iecl.errors import UserError

EXTENSIONS = frozenset(
    b".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .avif .bmp .gif .tif .tiff .ppm .pgm .pbm .pnm".split()
)
TEST_FOLDERS = ("test", "val", "valid", "validation")
_Failures = Sequence[tuple[str, str]]
_TRY_ANOTHER = "give the folder that holds the pictures"


def printable(name: bytes) -> str:
    r"""A file's name as text that any terminal can show on one line.

    >>> print(printable("café".encode()), printable(b"new\nline"), printable(b"\xff.png"))
    café new\nline \udcff.png
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in os.fsdecode(name))


@dataclass(frozen=True)
class Listing:
    """The pictures below a folder, in byte order of their paths."""

    root: bytes
    names: bytes | memoryview
    """Paths relative to the root, one after the other."""
    ends: npt.NDArray[np.int64]
    """Where each path ends in `names`."""
    others: Mapping[str, int]
    """What else lies there: how many files of each extension."""
    unreadable: _Failures = ()
    """Folders that could not be listed, each with the reason."""

    def __len__(self) -> int:
        return len(self.ends)

    def relative(self, index: int) -> bytes:
        """The path of a picture below the root."""
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
        """A listing of some of the pictures, in the order given."""
        return _packed(self.root, [self.relative(i) for i in index.tolist()], self.others, self.unreadable)


def _packed(
    root: bytes, names: list[bytes], others: Mapping[str, int], unreadable: Sequence[tuple[str, str]]
) -> Listing:
    ends = np.fromiter(map(len, names), np.int64, len(names)).cumsum()
    return Listing(root, b"".join(names), ends, others, unreadable)


def list_images(folder: Path) -> Listing:
    """Every picture below a folder, in all depths.

    Pictures are regular files with a known extension; links are followed, no folder is walked twice, and hidden names
    and `__MACOSX` are passed over.

    Raises:
        UserError: the folder is missing, is a file, cannot be read, or holds no picture.
    """
    root = os.fsencode(folder)
    shown = printable(root)
    walk = _Walk(root)
    names = sorted(walk)
    if isinstance(walk.failure, FileNotFoundError):
        raise UserError(f"there is no folder {shown}", where="--data", do=_TRY_ANOTHER)
    if isinstance(walk.failure, NotADirectoryError):
        raise UserError(f"{shown} is a file, not a folder", where="--data", do=_TRY_ANOTHER)
    if walk.failure:
        raise UserError(f"cannot list {shown}: {_reason(walk.failure)}", where="--data", do=_TRY_ANOTHER)
    if not names:
        raise UserError(f"there is no picture in {shown}: {_found(walk)}", where="--data", do=_TRY_ANOTHER)
    return _packed(root, names, walk.others, tuple(walk.unreadable))


def _found(walk: "_Walk") -> str:
    """What a folder without pictures holds instead, as in `14 files: 12 .txt, 2 .pdf`."""
    total = walk.others.total()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(walk.others.items(), key=lambda k: (-k[1], k[0]))[:5])
    files = f"{total} file{'s' if total != 1 else ''}: {kinds}" if total else "it is empty"
    more = len(walk.unreadable)
    return files + (f", and {more} thing{'s' if more != 1 else ''} that cannot be read" if more else "")


BROKEN_LINK = "broken link"


class _Walk:
    """Iterates over the relative paths of the pictures below a folder, and notes what else it meets."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.others: Counter[str] = Counter()
        self.unreadable: list[tuple[str, str]] = []
        self.failure: OSError | None = None
        """Why the folder itself could not be listed."""
        self._links: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        seen: set[tuple[int, int]] = set()
        folders = [b""]
        while folders or self._links:
            # Links come last: a folder that is there in person is listed under its own name, whatever points to it.
            below = folders.pop() if folders else self._links.pop()
            here = os.path.join(self.root, below)  # noqa: PTH118 - bytes
            try:
                status = os.stat(here)  # noqa: PTH116 - bytes
                if (status.st_dev, status.st_ino) in seen:  # each real folder once: links can form loops and webs
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(here) as entries:
                    yield from self._pictures(sorted(entries, key=lambda entry: entry.name), below, folders)
            except OSError as problem:
                if not below:
                    self.failure = problem
                else:
                    self.unreadable.append((printable(here), _reason(problem)))

    def _pictures(self, entries: list[os.DirEntry[bytes]], below: bytes, folders: list[bytes]) -> Iterator[bytes]:
        """Paths of the pictures among the entries of one folder; sub-folders are put on the list of folders to do."""
        deeper: list[bytes] = []
        for entry in entries:
            name = entry.name
            path = below + b"/" + name if below else name
            if name.startswith(b"."):
                self.others["hidden"] += 1
            elif name == b"__MACOSX":
                continue
            elif (kind := _kind(entry)) == "picture":
                yield path
            elif kind == "folder":
                deeper.append(path)
            elif kind == "link to a folder":
                self._links.append(path)
            else:
                self.others[kind] += 1
                if kind == BROKEN_LINK and os.path.splitext(name)[1].lower() in EXTENSIONS:  # noqa: PTH122 - bytes
                    self.unreadable.append((printable(os.path.join(self.root, path)), kind))  # noqa: PTH118 - bytes
        folders += reversed(deeper)


def _reason(problem: OSError) -> str:
    return (problem.strerror or type(problem).__name__).lower()


def _kind(entry: os.DirEntry[bytes]) -> str:
    """What a directory entry is: `picture`, `folder`, `link to a folder`, or a word for the count of others."""
    try:
        if entry.is_file():  # the answer comes with the listing; only a link costs a call
            extension = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - bytes
            if extension in EXTENSIONS:
                return "picture"
            return printable(extension) if extension else "without extension"
        if entry.is_dir():
            return "link to a folder" if entry.is_symlink() else "folder"
    except OSError:  # a link to itself
        return BROKEN_LINK
    # A pipe or a device would wait for ever when opened.
    return BROKEN_LINK if entry.is_symlink() else "not a regular file"


def splits(folder: Path) -> dict[str, Path]:
    """The parts of a data set: `train` and `test` where there are such sub-folders, else one part `all`.

    The test part is the first of `test`, `val`, `valid` and `validation` that holds pictures; one that is laid out as
    `train` is (class folders or none) goes before one that is not, since ImageNet's `test` has no classes and its `val`
    has. Capitals do not matter.
    """
    found: dict[str, Path] = {}
    if os.access(folder, os.R_OK | os.X_OK) and folder.is_dir():  # otherwise list_images says what is wrong
        for entry in sorted(folder.iterdir(), reverse=True):  # reversed: of `Train` and `train` the first stays
            if entry.is_dir():
                found[entry.name.lower()] = entry
    candidates = [found[name] for name in TEST_FOLDERS if name in found and _holds_pictures(found[name])]
    if "train" not in found or not candidates or not _holds_pictures(found["train"]):
        return {"all": folder}
    nested = _has_folders(found["train"])
    return {"train": found["train"], "test": max(candidates, key=lambda part: _has_folders(part) == nested)}


def _holds_pictures(folder: Path) -> bool:
    return any(True for _ in _Walk(os.fsencode(folder)))


def _has_folders(folder: Path) -> bool:
    return any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir())
