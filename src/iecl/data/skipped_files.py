"""Files that cannot be read: a few are named, all are counted, and too many end the work. Free of torch."""

import logging
import re
from collections import Counter

from iecl.errors import TrainingError, UserError

log = logging.getLogger("iecl.data")
NAMED = 10
"""Files that are named one by one; thousands of lines would hide everything else."""


class Skipping:
    """Is told of files that are left out. It names the first ones, and counts at 100, 1,000 and so on.

    >>> tell = Skipping(listed="skipped.txt")
    >>> tell("cats/one.png", "empty file")
    """

    def __init__(self, listed: str = "", log: logging.Logger = log) -> None:
        """Tell `log` of files; `listed` is where all of them are listed, if they are."""
        self.count, self._listed, self._log = 0, f", listed in {listed}" if listed else "", log

    def __call__(self, path: str, reason: str) -> None:
        """One more file."""
        self.count += 1
        if self.count <= NAMED:
            self._log.warning("skipped %s: %s", path, reason)
        elif str(self.count).strip("0") == "1":
            self._log.warning("%s files skipped so far%s", f"{self.count:,}", self._listed)


def reasons_of(reasons: Counter[str]) -> str:
    """The commonest reasons, with their counts.

    >>> reasons_of(Counter({"truncated": 2, "empty file": 1000}))
    '1,000 empty file, 2 truncated'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common(5))


def refuse_too_many(name: str, reasons: Counter[str], total: int, share: float, listed: str = "") -> None:
    """Stop when more than this share of the files of a dataset cannot be read.

    Args:
        name: what people call the dataset.
        reasons: how many files there are for each reason, every file counted once.
        total: how many files the dataset has.
        share: `data.max_unreadable`.
        listed: where the files are listed, if they are.

    Raises:
        TrainingError: there are more; a run that has begun is kept, with its list.
    """
    if reasons.total() > share * total:
        raise TrainingError(
            f"{reasons.total():,} of the {total:,} files in {name} cannot be read: {reasons_of(reasons)}",
            where=f"data.max_unreadable={share:g}",
            do=f"fix or remove them{f' (listed in {listed})' if listed else ''}, or raise data.max_unreadable",
        )


def nothing_readable(name: str, reasons: Counter[str]) -> UserError:
    """The error for data without one good image.

    >>> print(nothing_readable("cats", Counter({"truncated": 2, "empty file": 1})))
    none of the 3 images in cats can be read: 2 truncated, 1 empty file (--data)
    >>> print(nothing_readable("scans", Counter({"5 channels, 3 are wanted": 2})))
    none of the 2 images in scans can be read: 2 5 channels, 3 are wanted (--data); add --set data.channels=5
    """
    counts = reasons_of(reasons)
    channels = re.match(r"(\d+) channels?, \d+ are wanted", reasons.most_common(1)[0][0]) if reasons else None
    return UserError(
        f"none of the {reasons.total():,} images in {name} can be read: {counts}",
        where="--data",
        do=f"add --set data.channels={channels[1]}" if channels else "",
    )
