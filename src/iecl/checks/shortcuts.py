"""Cheap properties of images that an embedding gives away, and that its neighbors share."""

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from iecl import counter
from iecl.checks.scan import Numbers, Scan

FOLDS, DIRECTIONS, MOST, PENALTY = 5, 64, 20_000, 1e-2
"""Parts of a cross-validation; directions of greatest variance; images looked at; of a regression, as a share."""
MOST_FOLDERS = 50
Column = npt.NDArray[np.float64]


def read_shortcuts(
    scan: Scan,
    numbers: Numbers,
    features: npt.NDArray[np.float32],
    neighbors: Numbers,
    is_copy: npt.NDArray[np.bool_],
    strong: float,
) -> list[dict[str, Any]]:
    """What a linear map reads from features, held out, beside a shuffled column; and how far neighbors agree in it.

    Args:
        scan: all images.
        numbers: which of them each row of the features is.
        features: centered.
        neighbors: rows that are nearest to each row.
        is_copy: which of these are the same picture.
        strong: from here on a property counts as given away.

    Returns:
        A row for each property: `read` is the explained share of its variance, for folders the share of the errors of
        guessing the commonest that are avoided; `neighbors` is how much closer in it the nearest image is than any.
    """
    chosen = counter.permutation(counter.key(0, "doctor/rows"), len(numbers)).numpy()[:MOST]
    centered = features[chosen].astype(np.float64)
    _, _, directions = np.linalg.svd(centered[:2000], full_matrices=False)
    inputs = centered @ directions[:DIRECTIONS].T
    nearest = np.where(is_copy.all(axis=1), 0, (~is_copy).argmax(axis=1))
    other = neighbors[np.arange(len(numbers)), nearest][chosen]
    any_other = counter.permutation(counter.key(0, "doctor/others"), len(numbers)).numpy()[:MOST]
    rows = []
    for name, whole in properties(scan).items():
        values = whole[numbers]
        own = values[chosen]
        if values.ndim == 1 and own.std() <= 1e-9:
            continue
        shuffled = own[counter.permutation(counter.key(0, f"doctor/{name}"), len(own)).numpy()]
        read = _explained(inputs, own)
        near, far = (float(np.abs(own - values[each]).mean()) for each in (other, any_other))
        rows.append(
            {
                "property": name,
                "read": round(read, 3),
                "shuffled": round(_explained(inputs, shuffled), 3),
                "neighbors": round(1 - near / max(far, 1e-12), 3),
                "is_strong": read >= strong,
            }
        )
    return sorted(rows, key=lambda row: -row["read"])


def properties(scan: Scan) -> dict[str, Column]:
    """A column for each property, as wide as there are folders for the last one."""
    records = scan.records
    red, green, blue = (records[name].astype(np.float64) for name in ("red", "green", "blue"))
    high, wide, size = (np.maximum(records[name].astype(np.float64), 1) for name in ("height", "width", "bytes"))
    found = {
        "brightness": (red + green + blue) / 3,
        "red against green": red - green,
        "blue against yellow": blue - (red + green) / 2,
        "contrast": records["contrast"].astype(np.float64),
        "blur": records["blur"].astype(np.float64),
        "border": records["border"].astype(np.float64),
        "aspect": np.log(wide / high),
        "image size": np.log(wide * high),
        "file size": np.log(size),
        "bytes per pixel": np.log(size / (wide * high)),
    }
    if (records["quality"] > 0).mean() > 0.5:
        found["JPEG quality"] = records["quality"].astype(np.float64)
    folders = _folders(scan)
    return found | ({"folder": folders} if folders is not None else {})


def _folders(scan: Scan) -> Column | None:
    """Which folder below that of its class an image lies in; None: there is one, or there are too many."""
    depth = 1 if scan.classes else 0
    names = []
    for part in scan.parts:
        for i in range(len(part.listing)):
            names.append(part.listing.relative(i).split(b"/")[depth:-1][:1])
    common = [name for name, _ in Counter(map(tuple, names)).most_common(MOST_FOLDERS + 1)]
    if not 2 <= len(common) <= MOST_FOLDERS:
        return None
    place = {name: number for number, name in enumerate(common)}
    return np.eye(len(common))[[place[tuple(name)] for name in names]]


def _explained(inputs: Column, wanted: Column) -> float:
    """The share of the variance, or of the errors of the commonest folder, that held-out predictions explain."""
    wide = wanted if wanted.ndim == 2 else wanted[:, None]
    parts = np.arange(len(wide)) % FOLDS
    made = np.empty_like(wide, dtype=np.float64)
    for part in range(FOLDS):
        made[parts == part] = _ridge(inputs[parts != part], wide[parts != part], inputs[parts == part])
    if wanted.ndim == 1:
        return float(1 - ((made - wide) ** 2).sum() / ((wide - wide.mean()) ** 2).sum())
    wrong, guess = (made.argmax(axis=1) != wide.argmax(axis=1)).mean(), 1 - wide.mean(axis=0).max()
    return float(1 - wrong / max(guess, 1e-12))


def _ridge(inputs: Column, wanted: Column, asked: Column) -> Column:
    mean, middle = inputs.mean(axis=0), wanted.mean(axis=0)
    centered = inputs - mean
    products = centered.T @ centered
    products += PENALTY * np.trace(products) / len(products) * np.eye(len(products))
    found: Column = (asked - mean) @ np.linalg.solve(products, centered.T @ (wanted - middle)) + middle
    return found
