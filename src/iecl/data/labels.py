"""Classes from folders: the first folder of an image's path below its split is its class."""

import numpy as np
import numpy.typing as npt

from iecl.data.listing import Listing, printable
from iecl.errors import UserError


def class_folders(listing: Listing, labels: str) -> tuple[bytes, ...]:
    """The names of the classes in byte order, empty when the images are taken as unlabeled.

    Args:
        listing: images to look at; the split that is trained on decides for all splits.
        labels: `none`; `folders`; or `auto`: folders are classes if every image lies in one, there are at least two,
            and they hold two images or more on average.
    """
    if labels == "none":
        return ()
    owners = {name for name, _, _ in listing.first_folders()}
    classes = tuple(sorted(owners - {b""}))
    if labels == "folders":
        if not classes:
            raise UserError(
                f"{listing.root_name} has no class folders", where="data.labels = folders", do="set it to none"
            )
        return classes
    return classes if b"" not in owners and len(classes) >= 2 and len(listing) >= 2 * len(classes) else ()


def numbered(listing: Listing, classes: tuple[bytes, ...]) -> npt.NDArray[np.int64]:
    """The class number of every image, -1 for one that lies in no folder or when there are no classes.

    Raises:
        UserError: a folder is not among the classes; it would silently count as always wrong.
    """
    if not classes:
        return np.full(len(listing), -1, np.int64)
    number = {name: i for i, name in enumerate(classes)} | {b"": -1}
    labels = np.full(len(listing), -1, np.int64)
    strange = []
    for name, start, end in listing.first_folders():
        if name in number:
            labels[start:end] = number[name]
        else:
            strange.append(name)
    if strange:
        names = ", ".join(map(printable, strange[:3])) + (", ..." if len(strange) > 3 else "")
        raise UserError(
            f"{listing.root_name} has {len(strange)} class folder(s) that the training images lack: {names}",
            where="data.labels",
            do="name the folders alike, or set data.labels to none",
        )
    return labels
