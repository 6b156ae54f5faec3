"""Figures of exhibits: differences with their intervals beside the paper's, and curves over training."""

import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from iecl.errors import lacking
from iecl.files import write_atomically

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
        return _with_svg(folder / made["gallery"]["file"]) if "gallery" in made else {}
    if not panels:
        return {}
    with rc_context(TEXT):
        if made["curves"]:
            figure = _curves(Figure, made["curves"])
        elif made.get("figure") == "grid":
            figure = _grid(Figure, panels, made["reference"])
        else:
            figure = _intervals(Figure, panels, made)
        figure.suptitle(f"{made['exhibit']}: {made['title']}", fontsize=10, x=0.01, ha="left")
        return {kind: _save(figure, folder / f"{made['exhibit']}.{kind}") for kind in ("svg", "png")}


def _with_svg(png: Path) -> dict[str, str]:
    """A sheet of images, and the same within an SVG, as pages take figures."""
    from PIL import Image

    with Image.open(png) as image:
        size = 'width="{}" height="{}"'.format(*image.size)
    content = b64encode(png.read_bytes()).decode()
    picture = f'<image {size} href="data:image/png;base64,{content}"/>'
    out = png.with_suffix(".svg")
    write_atomically(out, f'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" {size}>{picture}</svg>\n')
    return {"png": str(png), "svg": str(out)}


def _laid_out(figure: Any, count: int, width: float, height: float, *, is_shared: bool) -> tuple[Any, list[Any]]:
    """A figure of this many axes of a size, at most `WIDE` in a row."""
    wide = 2 if count == 4 else min(WIDE, count)
    high = -(-count // wide)
    made = figure(figsize=(1.8 + width * wide, 0.7 + height * high), layout="constrained")
    axes = list(made.subplots(high, wide, squeeze=False, sharey=is_shared).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return made, axes[:count]


def _intervals(figure: Any, panels: Sequence[Mapping[str, Any]], made: Mapping[str, Any]) -> Any:
    """Differences to the reference, one axis for each panel."""
    rows = max(len(panel["rows"]) for panel in panels)
    drawn, axes = _laid_out(figure, len(panels), 3.1, 0.75 + 0.26 * rows, is_shared=True)
    for axis, panel in zip(axes, panels, strict=True):
        _differences(axis, panel, made["reference"])
    for axis in axes:
        axis.set_xlabel(_axis(made, panels[0]))
    seen = {key: handle for axis in axes for handle, key in zip(*axis.get_legend_handles_labels(), strict=True)}
    if seen:
        drawn.legend(seen.values(), seen, loc="outside lower center", ncols=len(seen), frameon=False, fontsize=8)
    return drawn


def _axis(made: Mapping[str, Any], panel: Mapping[str, Any]) -> str:
    if made["kind"] == "added time":
        return "added to a step, %"
    if made["kind"] == "cost":
        return f"times {made['reference']}"
    unit = "points" if panel["unit"] == " %" else panel["unit"].strip()
    return f"against {made['reference']}" + (f", {unit}" if unit else "")


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
            is_sure = row.get("is_significant", False)
            if "low" in row:
                axis.plot([factor * row["low"], factor * row["high"]], [place, place], color=OURS, linewidth=1.4)
            words = (
                "here, with 95 % interval"
                if is_sure
                else "here, interval holds 0"
                if "low" in row
                else "here, one pair"
            )
            face = OURS if is_sure else "white"
            axis.plot(
                factor * row["difference"], place, "o", color=OURS, markerfacecolor=face, markersize=5, label=words
            )
        if row["paper"] is not None and row["row"] != reference:
            printed = row["paper"] if base is None else row["paper"] - base
            axis.plot(printed, place, "D", color=PAPER, markerfacecolor="none", markersize=5, label="paper")
    axis.set_yticks(range(len(rows)), [row["row"] for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_title(fill(panel["title"].partition(" (")[0], LETTERS), fontsize=9, loc="left")
    axis.tick_params(axis="y", length=0)


def _grid(figure: Any, panels: Sequence[Mapping[str, Any]], reference: str) -> Any:
    """A square for each pair of operators, one alone on the diagonal; scores of the reference, gains of other rows."""
    found = {panel["column"]: {row["row"]: row for row in panel["rows"]} for panel in panels}
    operators = list(dict.fromkeys(name for column in found for name in column.split(" + ")))
    rows = list(next(iter(found.values())))
    side = 0.62 * len(operators)
    drawn, axes = _laid_out(figure, len(rows), 0.4 + side, 0.9 + side, is_shared=True)
    gains = [100 * row.get("difference", 0.0) for own in found.values() for row in own.values()]
    most = max(1.0, *map(abs, gains))
    for axis, name in zip(axes, rows, strict=True):
        cells = [[float("nan")] * len(operators) for _ in operators]
        for column, own in found.items():
            places = sorted(operators.index(one) for one in column.split(" + "))
            row, value, text = own[name], float("nan"), ""
            if name == reference and "mean" in row:
                value, text = 0.0, f"{100 * row['mean']:.1f}"
            elif "difference" in row:
                value = 100 * row["difference"]
                text = f"{value:+.1f}"
            cells[places[-1]][places[0]] = value
            weight = "bold" if row.get("is_significant") else "normal"
            axis.text(places[0], places[-1], text, ha="center", va="center", fontsize=8, weight=weight)
        axis.imshow(cells, cmap="RdBu", vmin=-2 * most, vmax=2 * most)  # pale, so that numbers can be read
        axis.set_xticks(range(len(operators)), operators, rotation=90)
        axis.set_yticks(range(len(operators)), operators)
        axis.tick_params(length=0)
        what = "top-1, %" if name == reference else "gain, points"
        axis.set_title(fill(f"{name}: {what}", LETTERS // 2), fontsize=9, loc="left")
        for spine in axis.spines.values():
            spine.set_visible(False)
    drawn.supxlabel("diagonal: one operator alone; bold: the 95 % interval holds no 0", fontsize=8)
    return drawn


def _curves(figure: Any, curves: Mapping[str, Any]) -> Any:
    """One axis for each reading: every seed thin, their mean thick."""
    drawn, axes = _laid_out(figure, len(curves), 3.1, 2.6, is_shared=False)
    for axis, reading in zip(axes, curves.values(), strict=True):
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
        drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return drawn


def _save(figure: Any, out: Path) -> str:
    figure.savefig(out, dpi=160, metadata={"Date": None} if out.suffix == ".svg" else None)
    return str(out)
