"""From what was measured to what was found: one function for each group of checks. Free of torch."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from iecl.checks.scan import Numbers, Scan
from iecl.checks.table import CheckSettings
from iecl.console import counted
from iecl.data.settings import LEAST_SIDE

_NAMES = {
    "JPEG": ".jpg .jpeg .jpe .jfif .mpo",
    "PNG": ".png .apng",
    "WEBP": ".webp",
    "GIF": ".gif",
    "TIFF": ".tif .tiff",
    "BMP": ".bmp",
    "PPM": ".ppm .pgm .pbm .pnm",
    "AVIF": ".avif",
    "NPY": ".npy",
}
EXTENSIONS = {name[:4].encode(): frozenset(names.encode().split()) for name, names in _NAMES.items()}
_MODES = {b"1": "1 bit", b"P": "palette", b"PA": "palette, transparent", b"L": "gray", b"LA": "gray, transparent"}
_MODES |= {b"RGBA": "RGB, transparent", b"F": "floating point", b"I;16": "gray", b"I": "gray"}
"""What Pillow calls otherwise."""
_CUT = ("truncated", "empty file")
_FACTOR = 2.0
"""Times smaller or larger than usual that a side may always be."""


@dataclass(frozen=True)
class Finding:
    """An image that a check found."""

    check: str
    number: int
    """Which image."""
    value: float | None = None
    """What was compared with the threshold."""
    note: str = ""
    other: int | None = None
    """The image that it was compared with."""
    group: int | None = None
    """Images with the same number are copies of each other."""


def file_findings(scan: Scan) -> Iterator[Finding]:
    """What is wrong with files, whatever they show."""
    for number, reason in scan.reasons.items():
        yield Finding("truncated" if reason in _CUT else "unreadable", number, note=reason)
    records = scan.records
    usual = Counter(zip(records["mode"].tolist(), records["is_deep"].tolist(), strict=True)).most_common(1)
    for number in np.flatnonzero(scan.readable).tolist():
        row = records[number]
        content = row["format"].item()
        extension = os.path.splitext(scan.path(number))[1].lower()  # noqa: PTH122 - bytes
        if extension not in EXTENSIONS.get(content, frozenset()):
            yield Finding("extension", number, note=f"{_full(content)} called {extension.decode('ascii', 'replace')}")
        if row["is_animated"]:
            yield Finding("animated", number, note=_full(content))
        mode = (row["mode"].item(), bool(row["is_deep"]))
        if (mode[1] or mode[0] not in (b"RGB", b"L")) and mode != usual[0][0]:
            words = _MODES.get(mode[0], mode[0].decode())
            yield Finding("channels", number, note=words + (", more than 8 bits" if mode[1] else ""))


def _full(content: bytes) -> str:
    return next((name for name in _NAMES if name.encode().startswith(content) and content), "?")


def look_findings(scan: Scan, settings: CheckSettings) -> Iterator[Finding]:
    """What is wrong with what images show, or with their shape."""
    records, readable = scan.records, scan.readable
    for check, column, is_wrong in (
        ("blank", "span", records["span"] < settings.blank),
        ("dark", "high", records["high"] < settings.dark),
        ("bright", "low", records["low"] > settings.bright),
        ("blur", "blur", records["blur"] > settings.blur),
    ):
        is_blank = records["span"] < settings.blank  # what shows nothing is not called blurred or dark as well
        for number in np.flatnonzero(readable & is_wrong & (~is_blank | (check == "blank"))).tolist():
            yield Finding(check, number, round(float(records[column][number]), 3))
    yield from _gray(scan, settings)
    yield from _shapes(scan, settings)


def _gray(scan: Scan, settings: CheckSettings) -> Iterator[Finding]:
    is_gray = scan.readable & (scan.records["color"] < 0.01)
    if is_gray.sum() <= settings.gray * scan.readable.sum():
        for number in np.flatnonzero(is_gray & (scan.records["span"] >= settings.blank)).tolist():
            yield Finding("gray", number, round(float(scan.records["color"][number]), 4))


def _shapes(scan: Scan, settings: CheckSettings) -> Iterator[Finding]:
    if not scan.readable.any():
        return
    high, wide = (scan.records[name].astype(np.float64) for name in ("height", "width"))
    side, short = np.sqrt(high * wide), np.minimum(high, wide)
    first, third = np.log(np.percentile(side[scan.readable], [25, 75]))
    reach = max(settings.size * (third - first), np.log(_FACTOR))
    is_small = (np.log(np.maximum(side, 0.5)) < first - reach) | (short < LEAST_SIDE)
    is_large = np.log(np.maximum(side, 0.5)) > third + reach
    for number in np.flatnonzero(scan.readable & (is_small | is_large)).tolist():
        yield Finding("size", number, round(float(side[number]), 1), f"{int(wide[number])}x{int(high[number])}")
    aspect = np.maximum(high, wide) / np.maximum(short, 1)
    for number in np.flatnonzero(scan.readable & (aspect >= settings.aspect)).tolist():
        yield Finding("aspect", number, round(float(aspect[number]), 2), f"{int(wide[number])}x{int(high[number])}")


def balance_findings(scan: Scan, settings: CheckSettings) -> tuple[list[Finding], dict[str, int]]:
    """One image of each class of an unusual size, and how many images there are of each class to train on."""
    if not scan.classes:
        return [], {}
    is_trained_on = scan.splits() == 0
    counts = np.bincount(scan.labels[is_trained_on & (scan.labels >= 0)], minlength=len(scan.classes))
    middle, found = float(np.median(counts)), []
    for label, count in enumerate(counts.tolist()):
        if count and (count * settings.balance < middle or count > settings.balance * middle):
            first = int(np.flatnonzero(is_trained_on & (scan.labels == label))[0])
            note = f"{scan.label(first)}: {counted(count, 'image')}, the median class has {middle:,.0f}"
            found.append(Finding("balance", first, float(count), note))
    names = [scan.classes[label].decode("utf-8", "backslashreplace") for label in range(len(scan.classes))]
    return found, dict(zip(names, counts.tolist(), strict=True))


def groups_of(ones: Numbers, others: Numbers) -> list[list[int]]:
    """Images that pairs join, in order.

    >>> groups_of(np.array([1, 2, 7]), np.array([2, 5, 9]))
    [[1, 2, 5], [7, 9]]
    """
    leader: dict[int, int] = {}

    def lead(number: int) -> int:
        while leader.setdefault(number, number) != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    for one, other in zip(ones.tolist(), others.tolist(), strict=True):
        first, last = sorted((lead(one), lead(other)))
        leader[last] = first
    found: dict[int, list[int]] = {}
    for number in sorted(leader):
        found.setdefault(lead(number), []).append(number)
    return list(found.values())
