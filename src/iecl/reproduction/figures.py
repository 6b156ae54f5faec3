"""Figures of exhibits: differences with their intervals beside the paper's, and curves over training."""

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from iecl.errors import lacking

log = logging.getLogger("iecl.reproduction")
OURS, PAPER, MUTED = "#0b5394", "#b45f06", "#8a8a8a"
COLORS = ("#0b5394", "#b45f06", "#38761d", "#741b47")
TEXT: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "iecl",
    "svg.fonttype": "none",
}
WIDE, LETTERS = 3, 40
"""Panels side by side, and letters in a line of their titles."""


def draw(made: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write the figure as SVG and PNG; returns the paths, none where matplotlib is missing or nothing is to be seen."""
    if find_spec("matplotlib") is None:
        log.warning("%s", lacking("a figure", "matplotlib", extra="plots", where="iecl reproduce"))
        return {}
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot: its windows and their backend belong to whoever calls us

    panels = [panel for panel in made["panels"] if panel["is_claimed"] and any(row["n"] for row in panel["rows"])]
    if made["kind"] == "gallery":
        return {"png": str(folder / made["gallery"]["file"])} if "gallery" in made else {}
    if not panels:
        return {}
    with rc_context(TEXT):
        count = len(made["curves"]) or len(panels)
        wide = min(WIDE, count)
        high = -(-count // wide)
        rows = max(len(panel["rows"]) for panel in panels)
        height = 2.6 if made["curves"] else 0.75 + 0.26 * rows
        figure = Figure(figsize=(1.8 + 3.1 * wide, 0.5 + height * high), layout="constrained")
        axes = figure.subplots(high, wide, squeeze=False, sharey=not made["curves"])
        flat = list(axes.flat)
        if made["curves"]:
            _curves(flat, made["curves"])
        else:
            for axis, panel in zip(flat, panels, strict=False):
                _differences(axis, panel, made["reference"])
        for axis in flat[count:]:
            axis.set_visible(False)
        figure.suptitle(f"{made['exhibit']}: {made['title']}", fontsize=10, x=0.01, ha="left")
        if not made["curves"]:
            figure.supxlabel(_axis(made, panels[0]), fontsize=9)
        return {kind: _save(figure, folder / f"{made['exhibit']}.{kind}") for kind in ("svg", "png")}


def _axis(made: Mapping[str, Any], panel: Mapping[str, Any]) -> str:
    printed = any(row["paper"] is not None for row in panel["rows"])
    if made["kind"] == "added time":
        return "added to a step, %: mean and 95 % interval" + ("\ndiamond: the paper's" if printed else "")
    if made["kind"] == "cost":
        return f"times {made['reference']}"
    unit = "points" if panel["unit"] == " %" else panel["unit"].strip()
    words = f"against {made['reference']}" + (f", {unit}" if unit else "")
    return f"{words}: mean and 95 % interval" + ("\ndiamond: the paper's" if printed else "")


def _differences(axis: Any, panel: Mapping[str, Any], reference: str) -> None:
    """A dot with its interval for each row; hollow where the interval holds 0 or there is none."""
    rows, factor = panel["rows"], panel["factor"]
    base = next((row["paper"] for row in rows if row["row"] == reference), None)
    axis.axvline(1 if "ratio" in rows[0] else 0, color=MUTED, linewidth=0.8)
    for place, row in enumerate(rows):
        if "ratio" in row:
            axis.plot(row["ratio"], place, "o", color=OURS, markersize=5)
            continue
        if row["row"] == reference:
            axis.plot(0, place, "|", color=OURS, markersize=9, markeredgewidth=1.5)
        if "difference" in row:
            if "low" in row:
                axis.plot([factor * row["low"], factor * row["high"]], [place, place], color=OURS, linewidth=1.4)
            face = OURS if row.get("is_significant") else "white"
            axis.plot(factor * row["difference"], place, "o", color=OURS, markerfacecolor=face, markersize=5)
        if row["paper"] is not None and row["row"] != reference:
            printed = row["paper"] if base is None else row["paper"] - base
            axis.plot(printed, place, "D", color=PAPER, markerfacecolor="none", markersize=5)
    axis.set_yticks(range(len(rows)), [row["row"] for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_title(fill(panel["title"].partition(" (")[0], LETTERS), fontsize=9, loc="left")
    axis.tick_params(axis="y", length=0)


def _curves(axes: Sequence[Any], curves: Mapping[str, Any]) -> None:
    """One axis for each reading: every seed thin, their mean thick."""
    for axis, reading in zip(axes, curves.values(), strict=False):
        for color, (row, seeds) in zip(COLORS, reading["rows"].items(), strict=False):
            lines = [points for points in seeds.values() if points]
            if not lines:
                continue
            for points in lines:
                marker = "." if len(points) == 1 else ""
                axis.plot(*zip(*points, strict=True), color=color, linewidth=0.6, alpha=0.4, marker=marker)
            if len({len(points) for points in lines}) == 1:
                middle = [(pair[0][0], mean(y for _, y in pair)) for pair in zip(*lines, strict=True)]
                axis.plot(*zip(*middle, strict=True), color=color, linewidth=1.6, label=row)
        axis.set(xlabel="step", ylabel=reading["axis"])
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        axes[0].figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def _save(figure: Any, out: Path) -> str:
    figure.savefig(out, dpi=160, metadata={"Date": None} if out.suffix == ".svg" else None)
    return str(out)
