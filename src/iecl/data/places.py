"""What may stand for image files: a folder, a list of paths, a pattern, one image, several of these. Free of torch."""

import csv
import glob
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from iecl.data.listing import EXTENSIONS, Listing, kept_for_one_walk, list_images, printable, splits
from iecl.data.shard_files import is_shards
from iecl.errors import UserError
from iecl.files import read_text

LISTS = (".csv", ".tsv", ".txt")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "target", "category")
MOST_LIST = 2**30
"""Bytes of a list: some ten million paths."""
_WRITE = "write one path a line, or a table with a column named path, and one named label where there are labels"


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern such as `photos/*/*.jpg`; a file or folder that is really called so goes first.

    >>> is_pattern("photos/**/*.jpg"), is_pattern("photos")
    (True, False)
    """
    return glob.has_magic(name) and not os.path.lexists(Path(name).expanduser())


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder is what `save_to_disk` of a Hugging Face dataset wrote, with one split or with several."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / f"{n}.json").is_file() for n in ("state", "dataset_info")
    )


def is_image(path: str | Path) -> bool:
    """Whether a path is called as an image is."""
    return os.fsencode(Path(path).suffix.lower()) in EXTENSIONS


def is_files(name: str) -> bool:
    """Whether a name stands for image files, and not for a packed file or shards."""
    if is_shards(name):
        return False
    return is_pattern(name) or not Path(name).is_file() or Path(name).suffix.lower() in LISTS or is_image(name)


def parts_of(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The parts of a dataset, as `splits` finds them: `train` and `test`, or one part `all`; of several places alike.

    Raises:
        UserError: some places have a test part, and some have not.
    """
    found = [splits(Path(name)) if Path(name).is_dir() else {"all": Path(name)} for name in names]
    if not any("train" in parts for parts in found):
        return {"all": names}
    whole = [str(parts["all"]) for parts in found if "all" in parts]
    if whole:
        split = next(str(parts["train"]) for parts in found if "train" in parts)
        raise UserError(
            f"{whole[0]} has no test images, and {Path(split).parent} has",
            where="--data",
            do=f"name the training images alone: {split}",
        )
    return {part: tuple(str(parts[part]) for parts in found) for part in ("train", "test")}


@kept_for_one_walk
def list_places(names: tuple[str, ...]) -> Listing:
    """Every image of these places, one place after the other; what two of them share is listed once.

    Raises:
        UserError: a place is missing, or holds no image.
    """
    found = [_listed(name) for name in names]
    return found[0] if len(found) == 1 else _joined(found)


def _listed(name: str) -> Listing:
    path = Path(name)
    if is_pattern(name):
        return _matching(name)
    if path.suffix.lower() in LISTS or is_image(path):
        if path.is_file():
            return read_list(path) if path.suffix.lower() in LISTS else listing_of([os.fsencode(path)])
        if not path.exists():
            do = "give the file, or the folder that holds the images"
            raise UserError(f"there is no file {printable(os.fsencode(path))}", where="--data", do=do)
    return list_images(path)


def _matching(pattern: str) -> Listing:
    """The images that a pattern matches, or those in folders that it matches."""
    found = sorted(map(os.fsencode, glob.iglob(pattern, recursive=True)))  # noqa: PTH207 - patterns are absolute
    images = [path for path in found if os.path.isfile(path) and is_image(os.fsdecode(path))]  # noqa: PTH113 - bytes
    if not images and found:
        folders = tuple(os.fsdecode(path) for path in found if os.path.isdir(path))  # noqa: PTH112 - bytes
        if folders:
            return list_places(folders)
    if not images:
        what = f"{len(found)} things that are no images" if found else "nothing"
        raise UserError(f"{printable(os.fsencode(pattern))} matches {what}", where="--data", do="quote the pattern")
    fixed = Path(*[part for part in Path(pattern).parts[: _first_magic(pattern)]])
    return listing_of(images, root=os.fsencode(fixed))


def _first_magic(pattern: str) -> int:
    return next(i for i, part in enumerate(Path(pattern).parts) if glob.has_magic(part))


def read_list(path: Path) -> Listing:
    """The images that a file lists, in its order.

    `.txt`: a path on each line, and after a tab its label, where there are labels. `.csv`, `.tsv`: a table; a first row
    with a column named as in `PATH_COLUMNS` is a header, in which labels are named as in `LABEL_COLUMNS`; else paths
    are the first column, and labels the second. Paths are relative to the list's own folder; empty lines do not count.

    Raises:
        UserError: the file cannot be read as this.
    """
    folder = os.fsencode(path.absolute().parent)
    paths: list[bytes] = []
    labels: list[str] = []
    for name, label in _rows(path):
        # A folder and a name by themselves: os.path.join understands an absolute name.
        paths.append(os.path.normpath(os.path.join(folder, os.fsencode(name))))  # noqa: PTH118 - bytes
        labels.append(label)
    if not paths:
        raise UserError(f"{path} lists no image", where="--data", do=_WRITE)
    return listing_of(paths, labels)


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """Path and label of each row; a label that is not given is empty."""
    text = read_text(path, MOST_LIST).removeprefix("\ufeff")
    suffix = path.suffix.lower()
    if suffix == ".txt":
        for line in text.splitlines():
            name, _, label = line.partition("\t")
            if name.strip():
                yield name.strip(), label.strip()
        return
    rows = csv.reader(io.StringIO(text), delimiter="\t" if suffix == ".tsv" else ",")
    where, which = 0, 1
    for number, row in enumerate(_parsed(rows, path)):
        if number == 0:
            header = [cell.strip().lower() for cell in row]
            is_header = [i for i, cell in enumerate(header) if cell in PATH_COLUMNS]
            if is_header:
                where = is_header[0]
                which = next((i for i, cell in enumerate(header) if cell in LABEL_COLUMNS), len(header))
                continue
            if len(row) > 2:
                raise UserError(f"which of the {len(row)} columns of {path} are paths?", where="--data", do=_WRITE)
        if len(row) <= where or not row[where].strip():
            raise UserError(f"{path} has a row without a path", where=f"{path}, row {number + 1}", do=_WRITE)
        yield row[where].strip(), row[which].strip() if which < len(row) else ""


def _parsed(rows: Iterable[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from (row for row in rows if any(cell.strip() for cell in row))
    except csv.Error as problem:
        raise UserError(f"{path} is no table: {problem}", where="--data", do=_WRITE) from problem


def listing_of(paths: Sequence[bytes], labels: Sequence[str] | None = None, root: bytes | None = None) -> Listing:
    """A listing of these absolute paths, in their order; without labels the folders below the root are classes.

    >>> made = listing_of([b"/photos/b.png", b"/photos/old/a.png"], ["cat", ""])
    >>> made.root, made.relative(1), made.owners
    (b'/photos', b'old/a.png', (b'', b'cat'))
    """
    if root is None:  # what the first and the last in byte order share, all share
        root = os.path.commonpath([os.path.dirname(path) for path in (min(paths), max(paths))])  # noqa: PTH120 - bytes
    start = len(root.rstrip(b"/")) + 1
    ends = np.fromiter((len(path) - start for path in paths), np.int64, len(paths)).cumsum()
    names = b"".join(path[start:] for path in paths)
    if labels is None:
        return Listing(root, names, ends, {})
    owners = sorted({os.fsencode(label) for label in labels})
    number = {name: i for i, name in enumerate(owners)}
    owner = np.fromiter((number[os.fsencode(label)] for label in labels), np.int64, len(labels))
    return Listing(root, names, ends, {}, (), tuple(owners), owner)


def _joined(found: Sequence[Listing]) -> Listing:
    """All images of several listings, with the classes that they have there."""
    labels: dict[bytes, bytes] = {}
    for listing in found:
        for name, start, end in listing.first_folders():
            for i in range(start, end):
                labels.setdefault(listing.path(i), name)
    paths = list(labels)
    made = listing_of(paths, [os.fsdecode(name) for name in labels.values()])
    unreadable = tuple(failure for listing in found for failure in listing.unreadable)
    return Listing(made.root, made.names, made.ends, {}, unreadable, made.owners, made.owner)
