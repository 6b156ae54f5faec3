"""Taking turns: arms are measured one after the other, round after round, so that a busy machine slows all alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

Arm = Callable[[], float]
"""Does its work once and returns a measurement of it, as a rule seconds."""


def take_turns(arms: Mapping[str, Arm], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """What each arm returned in each round; the first `warm` rounds, which compile and start workers, are left out.

    >>> take_turns({"a": iter([9, 1, 2]).__next__, "b": iter([9, 3, 4]).__next__}, rounds=2)
    {'a': [1, 2], 'b': [3, 4]}
    """
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(warm + rounds):
        for name, arm in arms.items():
            value = arm()
            if number >= warm:
                found[name].append(value)
    return found


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long some work takes."""
    began = clock()
    work()
    return clock() - began


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Arm:
    """An arm of some work."""
    return partial(seconds, work, clock)


def over(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Quotients, round by round.

    >>> over([2, 9], [1, 3])
    [2.0, 3.0]
    """
    return [one / other for one, other in zip(values, others, strict=True)]


def ratios(times: Mapping[str, Sequence[float]], to: str) -> dict[str, list[float]]:
    """Each arm's time over that of the arm `to` in the same round.

    >>> ratios({"host": [1, 2], "block": [2, 3]}, "host")
    {'block': [2.0, 1.5]}
    """
    return {name: over(own, times[to]) for name, own in times.items() if name != to}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles beside the raw values.

    >>> summary([1, 2, 3])
    {'median': 2.0, 'quartiles': [1.0, 3.0], 'values': [1.0, 2.0, 3.0]}
    """
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {
        "median": _rounded(median(values)),
        "quartiles": [_rounded(max(low, min(values))), _rounded(min(high, max(values)))],  # of two they lie outside
        "values": [_rounded(value) for value in values],
    }


def summaries(found: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """The summary of each arm."""
    return {name: summary(values) for name, values in found.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
