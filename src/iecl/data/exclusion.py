"""Images to leave out: a list of paths that `iecl doctor` writes and people edit. Free of torch.

A line is a path, absolute or below a folder of the data; after a tab may stand why. Lines that begin with # and empty
lines do not count. A path that would not survive this is written in double quotes, as JSON writes text.
"""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from iecl.data.listing import Listing, kept_for_one_walk, printable
from iecl.errors import UserError
from iecl.files import read_text

log = logging.getLogger("iecl.data")
MOST_LIST = 2**30
"""Bytes of a list: some ten million paths."""
_Key = tuple[str, tuple[str, ...]]


def written(name: bytes) -> str:
    r"""A path as it stands on a line of the list.

    >>> print(written(b"cats/one.png"), written(b"new\nline.png"), written(b"# \xff.png"))
    cats/one.png "new\nline.png" "# \udcff.png"
    """
    text = os.fsdecode(name)
    is_plain = text.isprintable() and text == text.strip() and text[:1] not in ("#", '"')
    return text if is_plain else json.dumps(text)


def read_exclusion(path: Path) -> list[bytes]:
    """The paths that a list names, as they are written there.

    Raises:
        UserError: the file cannot be read, or a path in quotes is not what JSON writes.
    """
    found = []
    for number, line in enumerate(read_text(path, MOST_LIST).removeprefix("\ufeff").split("\n")):
        text = line.partition("\t")[0].strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith('"'):
            try:
                text = json.loads(text)
                found.append(os.fsencode(text))
            except (ValueError, TypeError) as problem:
                do = "write a path as it is, or in double quotes as JSON does"
                raise UserError(f"cannot read {text}", where=f"{path}, line {number + 1}", do=do) from problem
        else:
            found.append(os.fsencode(text))
    return found


def roots_of(names: Iterable[str]) -> tuple[bytes, ...]:
    """The folders that relative paths of a list start from: those of the data, and those that their lists lie in."""
    found = (Path(name) if Path(name).is_dir() else Path(name).parent for name in names)
    return tuple(dict.fromkeys(os.fsencode(folder.absolute()) for folder in found))


@kept_for_one_walk
def _excluded(key: _Key) -> frozenset[bytes]:
    """Whole paths of what is left out."""
    exclude, names = key
    found = read_exclusion(Path(exclude))
    return frozenset(
        os.path.normpath(os.path.join(root, path))  # noqa: PTH118 - bytes
        for root in roots_of(names)
        for path in found
    )


def without(listing: Listing, exclude: str, names: Sequence[str]) -> Listing:
    """A listing without the images that a list names.

    Args:
        listing: the images.
        exclude: the list; empty: there is none, and all images stay.
        names: what the data are taken from; paths of the list may be relative to these.

    Raises:
        UserError: the list cannot be read, or leaves nothing.
    """
    if not exclude:
        return listing
    gone = _excluded((exclude, tuple(names)))
    kept = np.fromiter((listing.path(i) not in gone for i in range(len(listing))), bool, len(listing))
    if kept.all():
        return listing
    if not kept.any():
        raise UserError(f"all images of {listing.root_name} are left out", where="--exclude", do="shorten the list")
    return listing.select(np.flatnonzero(kept))


def check_exclusion(listings: Iterable[Listing], exclude: str, names: Sequence[str]) -> None:
    """Refuse a list of which no path is an image of the data: it is for other data, or these have moved.

    Raises:
        UserError: there is such a list.
    """
    gone = _excluded((exclude, tuple(names)))
    whole = [listing for listing in listings]
    total = sum(len(listing) for listing in whole)
    left = sum(listing.path(i) not in gone for listing in whole for i in range(len(listing)))
    if gone and left == total:
        shown = printable(os.fsencode(exclude))
        do = "write paths below the folder that --data names"
        raise UserError(f"no path in {shown} is one of the images", where="--exclude", do=do)
    log.info("left out: %s of %s images, listed in %s", f"{total - left:,}", f"{total:,}", exclude)
