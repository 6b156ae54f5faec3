"""Verdicts: what an interval allows to say of a claim."""

from typing import Any

import pytest

from iecl.reproduction.exhibit import Comparison, Exhibit, Variant, find_exhibit
from iecl.reproduction.plan import read_wish
from iecl.reproduction.report import finished
from iecl.reproduction.verdict import FAILS, HOLDS, OPEN, judge
from iecl.studies.report import paired


def row(name: str, paper: float | None, *values: float, **more: Any) -> dict[str, Any]:
    numbers = dict(enumerate(values))
    made = {"row": name, "paper": paper, "values": numbers, "n": len(values), "failed": 0, "missing": 0}
    return made | {"protocols": ["a"], "mean": sum(values) / max(1, len(values))} | more


def panel(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"title": "linear top-1", "column": "", "data": "digits", "unit": " %", "factor": 100, "is_claimed": True}
    return head | {"rows": list(rows)} | more


def exhibit(*claims: Comparison) -> Exhibit:
    return Exhibit(
        name="X",
        title="x",
        claim="x",
        reference="a",
        rows=(Variant("a", {}), Variant("b", {})),
        claims=claims,
        scales={},
    )


ABOVE = Comparison(better="b", than="a")


@pytest.mark.parametrize(
    ("values", "printed", "verdict"),
    [
        ([0.55, 0.56, 0.57], 6.0, HOLDS),
        ([0.45, 0.46, 0.47], 6.0, FAILS),
        ([0.50, 0.52, 0.51], 6.0, FAILS),  # 0 is in the interval, 6 points are not
        ([0.50, 0.52, 0.51], 1.0, OPEN),
        ([0.50, 0.52, 0.51], None, OPEN),
        ([0.60], 6.0, OPEN),
        ([], 6.0, OPEN),
    ],
)
def test_a_claim_is_judged_by_the_interval_of_paired_differences(
    values: list[float], printed: float | None, verdict: str
) -> None:
    rows = row("a", 50.0, 0.50, 0.51, 0.52), row("b", None if printed is None else 50 + printed, *values)
    found = judge(exhibit(ABOVE), "mini", [panel(*rows)])
    assert found["verdict"] == found["claims"][0]["verdict"] == verdict


def test_the_paper_claims_nothing_where_its_own_number_is_lower() -> None:
    rows = row("a", 69.2, 0.5, 0.5), row("b", 68.3, 0.6, 0.7)
    assert judge(exhibit(ABOVE), "mini", [panel(*rows)])["claims"] == []


def test_numbers_of_two_protocols_are_not_compared() -> None:
    rows = row("a", 1.0, 0.5, 0.5, 0.5), row("b", 2.0, 0.6, 0.6, 0.61, protocols=["other"])
    (one,) = judge(exhibit(ABOVE), "mini", [panel(*rows)])["claims"]
    assert (one["verdict"], one["evidence"]) == (OPEN, "measured by different protocols")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([0.05, 0.06, 0.055], HOLDS), ([0.15, 0.16, 0.155], FAILS), ([0.05, 0.15, 0.10], OPEN), ([0.01], OPEN)],
)
def test_a_limit_is_kept_if_the_whole_interval_keeps_it(values: list[float], verdict: str) -> None:
    rows = row("a", None), row("b", None, *values)
    limit = Comparison(row="b", at_most=0.1)
    assert judge(exhibit(limit), "mini", [panel(*rows)])["verdict"] == verdict
    other = {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[verdict]
    assert judge(exhibit(Comparison(row="b", above=0.1)), "mini", [panel(*rows)])["verdict"] == other


def test_one_claim_that_fails_decides_and_smoke_decides_nothing() -> None:
    good = panel(row("a", 1.0, 0.5, 0.5, 0.51), row("b", 2.0, 0.6, 0.6, 0.61), title="first", column="first")
    bad = panel(row("a", 1.0, 0.6, 0.6, 0.61), row("b", 2.0, 0.5, 0.5, 0.51), title="second", column="second")
    assert judge(exhibit(ABOVE), "mini", [good])["verdict"] == HOLDS
    assert judge(exhibit(ABOVE), "mini", [good, bad])["verdict"] == FAILS
    assert judge(exhibit(Comparison(better="b", than="a", panel="first")), "mini", [good, bad])["verdict"] == HOLDS
    assert judge(exhibit(ABOVE), "smoke", [good])["verdict"] == OPEN
    assert judge(exhibit(ABOVE), "mini", [good | {"is_claimed": False}])["verdict"] == OPEN


def test_nothing_is_bold_whose_interval_holds_zero_and_failed_cells_are_shown() -> None:
    values = {"MoCo-v2": (0.50, 0.51, 0.52), "+ block": (0.56, 0.57, 0.575), "+ block + KL": (0.50, 0.53, 0.52)}
    printed = {"MoCo-v2": 52.5, "+ block": 58.8, "+ block + KL": 59.15}
    rows = [row(name, printed[name], *some) for name, some in values.items()]
    for one in rows[1:]:
        one |= paired(one["values"], rows[0]["values"])
    rows.append(row("+ block + KL + spectral norm", 59.41, failed=3) | {"n": 0})
    del rows[-1]["mean"]
    cell = {"state": "failed", "arm": "+ block", "column": "", "data": "digits", "seed": 1, "error": "loss became NaN"}
    wish = read_wish(find_exhibit("T3"), "mini")
    made = finished(wish, {"panels": [panel(*rows)], "cells": [cell], "notes": ["a note"]}, {})
    text = made["text"]
    assert "| + block                      | 58.8  | 56.83" in text
    assert "**+5.83 (" in text
    assert text.count("**") == 2
    assert "0, 3 failed" in text
    assert "- failed: + block, digits, seed 1: loss became NaN" in text
    assert "- holds: + block is above MoCo-v2" in text
    assert "- does not hold: + block + KL is above + block" in text
    assert made["verdict"] == FAILS
    assert made["command"] == "iecl reproduce T3 --scale mini"
