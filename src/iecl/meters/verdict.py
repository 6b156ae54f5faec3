"""What a run's log says in one word, with the evidence and the first thing to try. Reads numbers only."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median, median_low
from typing import Any

from iecl.console import counted
from iecl.meters.outcome import ALL_FOUND, gain, no_gain

History = Sequence[Mapping[str, float]]
Series = list[tuple[int, float]]
"""(step, value) of the rows that hold a reading, in order."""

ENOUGH_ROWS = 8
"""Below this many rows there is no first and last quarter to compare."""

LOWER_RATE = "try a learning rate ten times smaller; if it ran in 16-bit precision, try 32-bit next"
SHORTER_STEPS = "try a learning rate ten times smaller, or a longer warm-up"
SPREAD = (
    "try a learning rate ten times smaller; then switch on the entropy term or raise its weight; without negatives "
    "check the predictor, the stop-gradient and the momentum"
)
DOUBT = "few directions are left: compare its kNN with that of a random backbone before you rely on it"
UNLEARN = (
    "try a learning rate three times smaller; with a queue, a shorter one or a slower momentum copy; and check whether "
    "the views keep what the classes differ in"
)
MORE_STEPS = "train longer: more epochs; on few images start from weights with --from"
LONGER_STEPS = "try a learning rate three times larger, and check that the warm-up ends early in the run"


@dataclass(frozen=True)
class Verdict:
    """How a run is doing."""

    word: str
    """healthy, slow, unlearning, collapsing, diverged, too short (to tell), untrained (a method that only waits), or
    nothing to learn (all images are the same)."""
    reasons: tuple[str, ...]
    """The evidence, one sentence each."""
    advice: str
    """The first thing to try."""


ONE_IMAGE = Verdict(
    "nothing to learn",
    ("all images are the same: there is nothing to tell apart",),
    "give a folder of images that differ",
)
UNTRAINED = Verdict("untrained", ("the method trains nothing: it is the baseline for the others",), "")


def verdict(history: History, width: int | None = None, outcome: Mapping[str, Any] | None = None) -> Verdict:
    """Judge a run by the rows of its log: `step`, `loss`, `loss/<term>` and `meter/<reading>`, missing ones allowed.

    The worst that applies wins: diverged, then too short, collapsing, unlearning, slow, healthy. `width`, the number of
    features, tells a small rank from a small backbone; `outcome` is what the run's end says of its gain, if anything.

    >>> rows = [{"step": step, "loss": 5 - step / 100} for step in range(0, 100, 10)]
    >>> verdict(rows).word
    'healthy'
    >>> verdict([*rows, {"step": 100, "loss": math.nan}]).reasons
    ('loss became NaN at step 100',)
    """
    broken = _non_finite(history)
    if broken:
        return Verdict("diverged", broken, LOWER_RATE)
    loss = _series(history, "loss")
    if len(loss) < ENOUGH_ROWS:
        seen = f"{counted(len(loss), 'reading')} of the loss, {ENOUGH_ROWS} are needed for a verdict"
        return Verdict("too short", (seen,), "let it run longer, or log more often")
    exploded = tuple(_exploded(loss))
    if exploded:
        return Verdict("diverged", exploded, SHORTER_STEPS)
    collapsed = (
        *_small_deviation(history),
        *_small_rank(history, width),
        *(tuple(_same_everywhere(history)) or _lost_spread(history)),
    )
    if collapsed:
        return Verdict("collapsing", collapsed, SPREAD)
    unlearnt = tuple(_below_untrained(history))
    if unlearnt:
        return Verdict("unlearning", unlearnt, UNLEARN)
    risen = tuple(_risen(loss))
    if risen:
        return Verdict("slow", risen, SHORTER_STEPS)
    still = tuple(_standing_still(history, loss))
    if still:
        return Verdict("slow", still, LONGER_STEPS)
    unmoved = tuple(no_gain(outcome) if outcome else _level_with_untrained(history))
    if unmoved:
        return Verdict("slow", unmoved, MORE_STEPS)
    return _healthy(history, loss, outcome)


def _series(history: History, name: str) -> Series:
    return [(int(row["step"]), row[name]) for row in history if name in row and math.isfinite(row[name])]


def _non_finite(history: History) -> tuple[str, ...]:
    """Losses that ended non-finite. One skipped step (loss scaling does that) in a run that went on is no evidence."""
    found: list[tuple[int, str, float]] = []
    for name in sorted({name for row in history for name in row if name.partition("/")[0] == "loss"}):
        backwards = [(int(row["step"]), row[name]) for row in reversed(history) if name in row]
        tail = list(takewhile(lambda reading: not math.isfinite(reading[1]), backwards))
        if tail:
            found.append((tail[-1][0], name, tail[-1][1]))
    # The sum follows its terms, and the next steps spread it to all of them: name what broke first.
    suspects = [reading for reading in found if reading[1] != "loss"] or found
    earliest = min((step for step, _, _ in suspects), default=0)
    return tuple(
        f"{name} became {'NaN' if math.isnan(value) else 'infinite'} at step {step:,}"
        for step, name, value in suspects
        if step == earliest
    )


def _exploded(loss: Series) -> Iterator[str]:
    """The whole last quarter is far above the start.

    Ten times, since a loss against a queue that starts random rises severalfold while the queue fills.
    """
    start = _first(loss)
    lowest = min(value for _, value in _last_quarter(loss))
    if lowest > 10 * max(1.0, abs(start)):
        since = _last_quarter(loss)[0][0]
        yield f"loss rose from {_number(start)} to {_number(_last(loss))} and stayed there since step {since:,}"


def _small_deviation(history: History) -> Iterator[str]:
    series = _series(history, "meter/feature_std")
    if not series:
        return
    now, (peak_step, peak) = _last(series), _peak(series)
    if now < 0.1:
        yield f"feature std is {_number(now)}, where 1 is healthy: the features of all images are nearly equal"
    elif now < 0.2 and now < peak / 2:
        yield f"feature std fell from {_number(peak)} to {_number(now)} since step {peak_step:,}"


def _small_rank(history: History, width: int | None) -> Iterator[str]:
    series = _series(history, "meter/effective_rank")
    if not series:
        return
    now, (peak_step, peak) = _last(series), _peak(series)
    of = f" of {width}" if width else ""
    tiny = max(2.0, 0.02 * (width or 0))
    if now < peak / 4:
        yield f"effective rank fell from {_number(peak)} to {_number(now)}{of} since step {peak_step:,}"
    elif now < tiny and now <= _first(series):
        yield f"effective rank is {_number(now)}{of} and has not grown: features use hardly any direction"


def _same_everywhere(history: History) -> Iterator[str]:
    near, spread = _series(history, "meter/alignment"), _series(history, "meter/uniformity")
    if near and spread and _last(near) < 0.05 and _last(spread) > -0.2:
        readings = f"alignment {_number(_last(near))} with uniformity {_number(_last(spread))}"
        yield f"{readings}: every image looks the same"


def _lost_spread(history: History) -> Iterator[str]:
    """Projections that were apart have come together, whatever the features do: the loss has nothing left to tell."""
    spread = _series(history, "meter/uniformity")
    if spread and _last(spread) > -0.1 and _first(spread) < -0.2:
        change = f"from {_number(_first(spread))} to {_number(_last(spread))}"
        yield f"uniformity went {change}: the projections of all images are nearly equal"


def _below_untrained(history: History) -> Iterator[str]:
    """Where there are labels: neighbors agree less than under the network of step 0, by more than chance would."""
    readings = _series(history, "knn")
    if len(readings) > 1 and readings[0][0] == 0 and readings[-1][1] < readings[0][1] - 0.02:
        before, now = (f"{100 * value:.1f} %" for _, value in (readings[0], readings[-1]))
        yield f"online kNN is {now}, the untrained network had {before}: training has made the features worse"


def _level_with_untrained(history: History) -> Iterator[str]:
    """Where there are labels, and nothing else is known of the gain."""
    readings = _series(history, "knn")
    if len(readings) > 1 and readings[0][0] == 0 and readings[-1][1] < readings[0][1] + 0.01 < ALL_FOUND:
        before, now = (f"{100 * value:.1f} %" for _, value in (readings[0], readings[-1]))
        yield f"online kNN is {now}, the untrained network had {before}: nothing was gained yet"


def _risen(loss: Series) -> Iterator[str]:
    """Above the start and at its highest: one that rose while a queue filled, and falls since, is below its peak."""
    start, now, (_, peak) = _first(loss), _last(loss), _peak(loss)
    if now > start + 0.05 * max(abs(start), 1e-3) and now >= peak - 0.02 * max(abs(peak), 1e-3):
        yield f"loss rose from {_number(start)} to {_number(now)} and has not come down"


def _standing_still(history: History, loss: Series) -> Iterator[str]:
    """Neither the loss nor any reading moved: a loss alone may stand still while the features still improve."""
    if _moved(loss, 0.02):
        return
    readings = (_series(history, f"meter/{name}") for name in ("effective_rank", "feature_std", "uniformity"))
    if not any(_moved(series, 0.1) for series in readings if len(series) > 1):
        yield f"loss went from {_number(_first(loss))} to {_number(_last(loss))} in {loss[-1][0] - loss[0][0]:,} steps"


def _moved(series: Series, share: float) -> bool:
    return abs(_last(series) - _first(series)) > share * max(abs(_first(series)), 1e-3)


def _healthy(history: History, loss: Series, outcome: Mapping[str, Any] | None) -> Verdict:
    reasons = [f"loss went from {_number(_first(loss))} to {_number(_last(loss))}"]
    reasons += [gain(outcome)] if outcome else []
    for name, words in (("effective_rank", "effective rank"), ("feature_std", "feature std")):
        series = _series(history, f"meter/{name}")
        if series:
            reasons.append(f"{words} went from {_number(_first(series))} to {_number(_last(series))}")
    quarter = _last_quarter(loss)
    half = len(quarter) // 2
    early, late = (median(value for _, value in part) for part in (quarter[:half], quarter[half:]))
    total = abs(_last(loss) - _first(loss))
    is_falling = early - late > 0.05 * total  # an even fall over the whole run would give 0.125
    advice = "the loss is still falling: train longer" if is_falling else "nothing to fix"
    ranks = _series(history, "meter/effective_rank")
    # Random features use many directions, so that a fall at the very start is normal: no verdict, but no silence.
    has_shrunk = bool(ranks) and _last(ranks) < ranks[0][1] / 4
    return Verdict("healthy", tuple(reasons), DOUBT if has_shrunk and not _series(history, "knn") else advice)


def _last_quarter(series: Series) -> Series:
    return series[-max(1, len(series) // 4) :]


def _window(series: Series) -> int:
    """A twentieth of the readings: short beside the run, long enough that one odd batch decides nothing."""
    return max(1, min(len(series) // 4, max(3, len(series) // 20)))


def _first(series: Series) -> float:
    return median(value for _, value in series[: _window(series)])


def _last(series: Series) -> float:
    return median(value for _, value in series[-_window(series) :])


def _peak(series: Series) -> tuple[int, float]:
    """Step and value of the largest median of three neighbors, the latest of equals: one odd batch is no peak.

    The first tenth does not count: random features use many directions, and learning starts by dropping most.
    """
    series = series[len(series) // 10 :]
    triples = [series[max(0, i - 1) : i + 2] for i in range(len(series))]
    smooth = [(step, median_low(value for _, value in near)) for (step, _), near in zip(series, triples, strict=True)]
    return max(smooth, key=lambda reading: (reading[1], reading[0]))


def _number(value: float) -> str:
    """Two significant digits, and whole numbers whole: what a sentence can carry.

    >>> _number(61.4), _number(2.31), _number(0.0123), _number(12345.6), _number(-0.05)
    ('61', '2.3', '0.012', '12,346', '-0.05')
    """
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"
