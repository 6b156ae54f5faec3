"""Two numbers: may they be compared, how far are they apart, and is that more than chance?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

import numpy as np

from iecl.comparison.effects import effect_of
from iecl.comparison.results import Result

RESAMPLES, CONFIDENCE = 2000, 0.95


@dataclass(frozen=True)
class Interval:
    """Where a number or a difference lies with 95 % confidence, and how that was found out."""

    low: float
    high: float
    way: str


def interval(result: Result) -> Interval | None:
    """How sure a number is, given that the test images are a sample."""
    if result.hits is not None:
        return Interval(*_percentiles(_resampled(result.hits.astype(float))), "bootstrap over test images")
    if not result.n_test:
        return None
    spread = math.sqrt(result.value * (1 - result.value) / result.n_test) * NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return Interval(max(0.0, result.value - spread), min(1.0, result.value + spread), "binomial, from n alone")


def _resampled(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Means of resamples: how often each value is drawn follows a fixed seed, so that a comparison repeats exactly."""
    rng = np.random.default_rng(0)
    counts = (rng.multinomial(len(values), np.full(len(values), 1 / len(values))) for _ in range(RESAMPLES))
    return np.array([count @ values / len(values) for count in counts])


def _percentiles(means: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def over_seeds(apart: Sequence[float], *, is_resampled: bool = False) -> Interval:
    """Where the mean of two or more paired differences lies: by Student's t, or by a bootstrap, too narrow for few."""
    pairs, middle = len(apart), mean(apart)
    if not math.isfinite(middle):  # a number of one seed is not: nothing can be said
        return Interval(math.nan, math.nan, f"paired over {pairs} seeds")
    if is_resampled:
        return Interval(*_percentiles(_resampled(np.array(apart, float))), f"paired bootstrap over {pairs} seeds")
    from scipy.special import stdtrit  # comes with scikit-learn

    reach = float(stdtrit(pairs - 1, (1 + CONFIDENCE) / 2)) * stdev(apart) / math.sqrt(pairs)
    return Interval(middle - reach, middle + reach, f"paired over {pairs} seeds")


def unlike(first: Result, second: Result) -> list[str]:
    """Why two numbers are not of one protocol, each reason with what it is known to do; empty: they are."""
    if not first.protocol or not second.protocol:
        return ["one of them was given by hand: its protocol is not known"]
    if (first.evaluation, first.number) != (second.evaluation, second.number):
        return [f"{first.evaluation} {first.number} is not {second.evaluation} {second.number}"]
    reasons = []
    for key in dict.fromkeys([*first.protocol, *second.protocol]):
        here, there = first.protocol.get(key), second.protocol.get(key)
        if here != there:
            known = effect_of(first.evaluation, key)
            words = f": {known.words} ({known.source})" if known else ""
            reasons.append(f"{key.replace('_', ' ')} {here} against {there}{words}")
    return reasons


def difference(first: Result, second: Result) -> list[Interval]:
    """Intervals of second minus first, paired over test images and over seeds, as far as both results allow it."""
    found = []
    if first.hits is not None and second.hits is not None and len(first.hits) == len(second.hits):
        apart = second.hits.astype(float) - first.hits.astype(float)
        found.append(Interval(*_percentiles(_resampled(apart)), "paired bootstrap over test images"))
    if len(first.by_seed) > 1 and len(first.by_seed) == len(second.by_seed):
        found.append(over_seeds([b - a for a, b in zip(first.by_seed, second.by_seed, strict=True)]))
    if not found and first.n_test and second.n_test:
        ends = [interval(result) for result in (first, second)]
        reach = math.sqrt(sum(((end.high - end.low) / 2) ** 2 for end in ends if end is not None))
        middle = second.value - first.value
        found.append(Interval(middle - reach, middle + reach, "unpaired, over test images"))
    return found
