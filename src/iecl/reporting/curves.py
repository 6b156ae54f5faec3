"""Curves of runs: readings by step, thinned out so that extremes stay, in panels with words for a new reader."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_POINTS, MOST_POINTS_BESIDE = 1200, 400
"""Points of a curve: of a run by itself, and of one among others."""
MOST_OTHERS = 24
"""Panels of readings that no panel below is for."""
Series = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Chart:
    """Readings that are drawn on one axis."""

    title: str
    note: str
    names: tuple[str, ...]
    """Of the readings; one that ends with `/` stands for all that begin so."""
    unit: str = ""


PANELS = (
    Chart("Loss", "What training lowers: the sum of its terms.", ("loss", "loss/")),
    Chart("Online kNN", "Share of sample images whose nearest others have their class.", ("knn",), "%"),
    Chart(
        "Entropy gain of the block",
        "What the input block adds to a view, nats per dimension; rest: without mere scaling.",
        ("iecl/gain_total", "iecl/gain_rest"),
    ),
    Chart("Entropy H(Z)", "How much the projections of a batch differ: coding rate, nats.", ("meter/entropy",)),
    Chart("Entropy in the loss", "The entropy of the objective, by its own estimator.", ("iecl/entropy",)),
    Chart("Divergence KL", "How far the shaped view is from the other one.", ("iecl/kl",)),
    Chart("Effective rank", "Directions that the features use; 1 is a collapse.", ("meter/effective_rank",)),
    Chart("Alignment", "Squared distance of two views of an image: 0 the same, 2 unrelated.", ("meter/alignment",)),
    Chart("Uniformity", "Spread of the projections: 0 one point, about −4 even.", ("meter/uniformity",)),
    Chart("Feature std", "1: features vary in every direction; 0: all images look the same.", ("meter/feature_std",)),
    Chart("Learning rate", "As scheduled.", ("lr",)),
    Chart("Images per second", "Over the last 100 steps.", ("images_per_second",)),
    Chart("Waiting for data", "Share of the time without a batch.", ("data_wait",), "%"),
)
NOT_READINGS = ("step", "epoch")


def panels(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The panels that have something to show, for the rows of one run or of several.

    >>> [made] = panels([[{"step": 1, "lr": 0.1}, {"step": 2, "lr": math.inf}]])
    >>> made["title"], made["series"][0]["y"], made["series"][0]["bad"]
    ('Learning rate', [0.1], [2])
    """
    all_series = [_series(rows) for rows in runs]
    names = list(dict.fromkeys(name for series in all_series for name in series))
    most = MOST_POINTS if len(runs) == 1 else MOST_POINTS_BESIDE
    found, used = [], set[str]()
    for panel in PANELS:
        own = _own(names, panel)
        used |= set(own)
        own = own[:1] if own[:1] == ["loss"] and len(own) == 2 else own  # a sum of one term is that term
        alone = len(runs) == 1 or len(own) == 1
        for some in [own] if alone else [[name] for name in own]:  # of several runs each term has an axis of its own
            title = panel.title if alone or some[0] == panel.names[0] else f"{panel.title}: {_short(some[0])}"
            note = panel.note if title == panel.title else "A part of it."
            found.append(_drawn(all_series, some, title, note, panel.unit, most))
    rest = [name for name in names if name not in used][:MOST_OTHERS]
    found += [_drawn(all_series, [name], name, "", "", most) | {"is_other": True} for name in rest]
    return [panel for panel in found if _says_something(panel["series"])]


def _series(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            is_unknown = name == "images_per_second" and not value  # of the first step
            if name not in NOT_READINGS and not is_unknown:
                found.setdefault(name, []).append((row["step"], float(value)))
    return found


def _own(names: Iterable[str], panel: Chart) -> list[str]:
    """The readings of a panel, the one that it is named for first."""
    fit = [name for name in names if name.startswith(tuple(own for own in panel.names if own.endswith("/")))]
    return [name for name in panel.names if name in names] + fit


def _short(name: str) -> str:
    return name.rpartition("/")[2].replace("_", " ")


def _drawn(
    runs: Sequence[Mapping[str, Series]], names: list[str], title: str, note: str, unit: str, most: int
) -> dict[str, Any]:
    series = [
        {"run": number, "name": _short(name), **_points(found[name], most)}
        for number, found in enumerate(runs)
        for name in names
        if name in found
    ]
    return {"title": title, "note": note, "unit": unit, "series": series}


def _points(series: Series, most: int) -> dict[str, Any]:
    finite = [(step, value) for step, value in series if math.isfinite(value)]
    bad = [step for step, value in series if not math.isfinite(value)]
    kept = thinned(finite, most)
    return {"x": [step for step, _ in kept], "y": [float(f"{value:.6g}") for _, value in kept], "bad": bad[:50]}


def thinned(series: Series, most: int) -> Series:
    """At most so many of the points: the first, the last, and of each stretch the lowest and the highest.

    >>> thinned([(step, step % 10) for step in range(100)], most=6)
    [(0, 0), (9, 9), (50, 0), (59, 9), (99, 9)]
    """
    if len(series) <= most:
        return series
    kept, stretches = {0, len(series) - 1}, max(1, (most - 2) // 2)
    for number in range(stretches):
        part = range(number * len(series) // stretches, (number + 1) * len(series) // stretches)
        kept |= {min(part, key=lambda i: series[i][1]), max(part, key=lambda i: series[i][1])}
    return [series[i] for i in sorted(kept)]


def _says_something(series: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any curve is more than zeros: the gain of no block is 0 throughout."""
    return any(any(one["y"]) or one["bad"] for one in series)
