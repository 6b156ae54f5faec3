"""The table of a comparison, and what may be said of it."""

from collections.abc import Sequence
from typing import Any

from iecl.comparison.differences import difference, interval, unlike
from iecl.comparison.results import Result, read_results
from iecl.console import one_line, plain_table
from iecl.errors import UserError


def compare(items: Sequence[str], evaluation: str = "", labels: Sequence[str] = ()) -> dict[str, Any]:
    """Read results and compare each with the first of its evaluation.

    Args:
        items: run directories, result files, or numbers as LABEL=PERCENT.
        evaluation: only results of this evaluation.
        labels: what to call each of them; by default runs are called by their folders.

    Returns:
        The rows, the comparisons, and the text that the command prints.
    """
    named = zip(items, labels or [""] * len(items), strict=True)
    results = [result for item, label in named for result in read_results(item, label)]
    if evaluation:
        results = [result for result in results if result.evaluation in (evaluation, "")]
    if len(results) < 2:
        raise UserError(f"{len(results)} result: nothing to compare", where="iecl compare", do="name two or more")
    rows = [_row(result) for result in results]
    pairs = [
        _pair(_partner(results, result), result) for result in results[1:] if _partner(results, result) is not result
    ]
    partners = {id(result): _partner(results, result) for result in results}
    for row, result in zip(rows, results, strict=True):
        other = partners[id(result)]
        row["is_other_protocol"] = bool(result.evaluation and other.evaluation and unlike(other, result))
    text = [_table(rows), *(pair["words"] for pair in pairs)]
    return {"results": rows, "comparisons": pairs, "text": "\n".join(text)}


def _partner(results: Sequence[Result], result: Result) -> Result:
    """What a result is compared with: the first of its evaluation and kind of checkpoint; by hand: the first of all."""
    if not result.evaluation:
        return results[0]
    others = [other for other in results if other.evaluation in (result.evaluation, "")]
    like = next(other for other in others if other.is_chosen == result.is_chosen or not other.evaluation)
    return others[0] if like is result else like


def _row(result: Result) -> dict[str, Any]:
    sure = interval(result)
    return {
        "label": result.label,
        "evaluation": result.evaluation or "by hand",
        "number": result.number,
        "value": result.value,
        "low": sure.low if sure else None,
        "high": sure.high if sure else None,
        "way": sure.way if sure else "",
        "seeds": len(result.by_seed) or (1 if result.evaluation else 0),
        "n_test": result.n_test,
        "protocol_hash": result.protocol_hash,
        "image_size": result.protocol.get("image_size"),
        **result.free,
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    body = []
    for row in rows:
        between = f"{100 * row['low']:.2f} to {100 * row['high']:.2f}" if row["low"] is not None else ""
        name = f"{row['evaluation']} {row['number']}".strip()
        seeds, n = (str(row[key]) if row[key] else "" for key in ("seeds", "n_test"))
        body.append(
            [
                *(row["label"], name, f"{100 * row['value']:.2f} %", between, seeds, n),
                *(str(row.get("checkpoint", "")), str(row["image_size"] or "")),
                row["protocol_hash"] + (" *" if row["is_other_protocol"] else ""),
            ]
        )
    head = ["result", "number", "value", "95 % interval", "seeds", "n", "checkpoint", "px", "protocol"]
    return plain_table(head, body)


def _pair(first: Result, second: Result) -> dict[str, Any]:
    """What may be said of two numbers."""
    reasons, who = unlike(first, second), {"first": first.label, "second": second.label}
    who["evaluation"] = second.evaluation or first.evaluation
    apart = 100 * (second.value - first.value)
    head = one_line(f"{second.label} against {first.label}, {who['evaluation']}")
    head += f": {apart:+.2f} points"
    if reasons:
        words = f"{head}; NOT COMPARABLE:" + "".join(f"\n  - {one_line(reason)}" for reason in reasons)
        return who | {"is_comparable": False, "reasons": reasons, "words": words}
    found = difference(first, second)
    is_noise = not all(one.low > 0 or one.high < 0 for one in found)  # so that NaN is never more than noise
    verdict = "inside the noise" if is_noise else "more than noise"
    ways = "; ".join(f"{100 * one.low:+.2f} to {100 * one.high:+.2f} ({one.way})" for one in found)
    return who | {
        "is_comparable": True,
        "points": apart,
        "is_noise": is_noise,
        "intervals": [vars(one) for one in found],
        "words": f"{head}, {verdict}: {ways}",
    }
