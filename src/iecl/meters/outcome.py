"""What came out of a run, read from its summary: a small table, and what it says for the verdict. Numbers only."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from iecl.console import plain_table

ROWS = {"trained": "trained", "start": "as it began", "untrained": "untrained", "pixels": "raw pixels"}
SHARES = {"own_view": "other view found", "knn": "kNN"}
NUMBERS = {"rank_me": "RankMe", "uniformity": "spread"}
"""Columns, by the names of their scores; kNN is there where images have labels."""
ALL_FOUND = 0.95
"""Above this share of an untrained network there is nothing left to gain."""


def outcome_table(outcome: Mapping[str, Any]) -> list[str]:
    """Lines that hold a trained backbone against doing nothing.

    >>> for line in outcome_table({"images": 9, "scores": {"trained": {"own_view": 0.5}, "pixels": {}}}):
    ...     print(line)
    on 9 of its images; other view found: share whose second view is the nearest of all to its first
    | backbone   | other view found |
    | ---------- | ---------------- |
    | trained    | 50.0 %           |
    | raw pixels |                  |
    """
    scores: Mapping[str, Mapping[str, float]] = outcome["scores"]
    named = {name: words for name, words in (SHARES | NUMBERS).items() if any(name in row for row in scores.values())}
    rows = [
        [words, *(_shown(name, scores[row][name]) if name in scores[row] else "" for name in named)]
        for row, words in ROWS.items()
        if row in scores
    ]
    knn = "; kNN: leave-one-out" if "knn" in named else ""
    head = f"on {outcome['images']:,} of its images; other view found: share whose second view is the nearest of all"
    return [f"{head} to its first{knn}", *plain_table(["backbone", *named.values()], rows).split("\n")]


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name in SHARES else f"{value + 0.0:.3g}"  # no -0


def no_gain(outcome: Mapping[str, Any]) -> Iterator[str]:
    """Reasons to say that training has changed nothing yet: by kNN where there are labels, else by views found again.

    A share of n images is known within two of its standard errors; what lies within counts as no gain.
    """
    scores, images = outcome["scores"], outcome["images"]
    name = "knn" if "knn" in scores["trained"] else "own_view"
    value, before = scores["trained"][name], scores["untrained"][name]
    if before > ALL_FOUND:  # by anything: classes of two colors, or views that are hardly changed
        return
    words = {"knn": "kNN", "own_view": "the share of images whose other view is found"}[name]
    if value <= before + _noise(before, images):
        yield f"{words} is {_percent(value)}, the untrained network has {_percent(before)}: nothing was gained yet"
    elif name == "knn" and value < scores["pixels"][name] - _noise(value, images):
        yield f"{words} is {_percent(value)}, raw pixels have {_percent(scores['pixels'][name])}"


def gain(outcome: Mapping[str, Any]) -> str:
    """The gain in words, for a run that has one."""
    scores = outcome["scores"]
    name = "knn" if "knn" in scores["trained"] else "own_view"
    words = {"knn": "kNN", "own_view": "other views found"}[name]
    beside = f"untrained {_percent(scores['untrained'][name])}, raw pixels {_percent(scores['pixels'][name])}"
    return f"{words} {_percent(scores['trained'][name])} ({beside})"


def _noise(share: float, images: int) -> float:
    return 2 * math.sqrt(max(share * (1 - share), 1 / images) / images)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
