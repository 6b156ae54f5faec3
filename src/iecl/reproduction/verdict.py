"""What may be said of a claim after looking at intervals: it holds here, it does not, or this cannot tell."""

from collections.abc import Mapping, Sequence
from typing import Any

from iecl.comparison.differences import over_seeds
from iecl.reproduction.exhibit import Comparison, Exhibit
from iecl.studies.report import paired

HOLDS, FAILS, OPEN = "holds", "does not hold", "not testable here"
Table = Mapping[str, Any]


def judge(exhibit: Exhibit, scale: str, panels: Sequence[Table]) -> dict[str, Any]:
    """The verdict on an exhibit with its reasons, from what its rows are.

    A claim that one row is above another holds if the whole interval of the paired difference is above 0. It does not
    hold if the whole interval is below 0, or if it holds 0 and ends below the difference that is printed. Otherwise the
    interval is too wide to tell.
    """
    if scale == "smoke":
        return {"verdict": OPEN, "why": "smoke shows that everything runs, and nothing else", "claims": []}
    if not exhibit.claims:
        return {"verdict": OPEN, "why": "no number is claimed: see the table and the figure", "claims": []}
    tested = [panel for panel in panels if panel["is_claimed"]]
    found = [
        judged
        for claim in exhibit.claims
        for panel in tested
        if _is_in(claim.panel, panel) and (judged := _judge(claim, panel)) is not None
    ]
    counts = {kind: sum(one["verdict"] == kind for one in found) for kind in (HOLDS, FAILS, OPEN)}
    whole = FAILS if counts[FAILS] else HOLDS if counts[HOLDS] == len(found) and found else OPEN
    words = {HOLDS: "hold", FAILS: "do not", OPEN: "cannot be told"}
    said = ", ".join(f"{counts[kind]} {word}" for kind, word in words.items() if counts[kind])
    return {"verdict": whole, "why": f"of {len(found)} comparisons {said}" if found else "nothing was measured"} | {
        "claims": found
    }


def _is_in(name: str, panel: Table) -> bool:
    return not name or name == panel["column"] or (not panel["column"] and panel["title"].startswith(name))


def _judge(claim: Comparison, panel: Table) -> dict[str, Any] | None:
    """One claim in one panel; None: the paper does not claim it there, or the panel has no such row."""
    rows = {row["row"]: row for row in panel["rows"]}
    if not {claim.better, claim.than, claim.row} - {""} <= set(rows):
        return None
    if claim.row:
        said, verdict, evidence = _limit(claim, rows[claim.row], panel)
    else:
        better, than = rows[claim.better], rows[claim.than]
        printed = None if None in (better["paper"], than["paper"]) else better["paper"] - than["paper"]
        if printed is not None and printed <= 0:
            return None
        said = f"{claim.better} is above {claim.than}"
        verdict, evidence = _difference(better, than, printed, panel)
    return {"claim": said, "panel": panel["title"], "verdict": verdict, "evidence": evidence}


def _difference(better: Table, than: Table, printed: float | None, panel: Table) -> tuple[str, str]:
    factor = panel["factor"]
    is_alike = len({*better["protocols"], *than["protocols"]}) == 1
    found = paired(better["values"], than["values"]) if is_alike else {}
    if "low" not in found:
        return OPEN, "fewer than two pairs of runs" if is_alike else "measured by different protocols"
    low, high = factor * found["low"], factor * found["high"]
    words = f"{factor * found['difference']:+.2f} ({low:+.2f} to {high:+.2f}, {found['pairs']} pairs)"
    paper = f"; printed {printed:+.2f}" if printed is not None else ""
    if low > 0:
        return HOLDS, words + paper
    if high < 0 or (printed is not None and high < printed):
        return FAILS, words + paper
    return OPEN, f"{words}{paper}: too wide to tell"


def _limit(claim: Comparison, row: Table, panel: Table) -> tuple[str, str, str]:
    factor, unit, values = panel["factor"], panel["unit"], list(row["values"].values())
    limit = claim.at_most if claim.above is None else claim.above
    assert limit is not None
    said = f"{claim.row} is {'above' if claim.at_most is None else 'at most'} {factor * limit:g}{unit}"
    if len(values) < 2:
        return said, OPEN, "fewer than two values"
    sure = over_seeds(values)
    words = f"{factor * sure.low:.3g} to {factor * sure.high:.3g}{unit}, {len(values)} values"
    is_above, is_below = sure.low > limit, sure.high <= limit
    is_kept, is_broken = (is_below, is_above) if claim.above is None else (is_above, is_below)
    return said, HOLDS if is_kept else FAILS if is_broken else OPEN, words
