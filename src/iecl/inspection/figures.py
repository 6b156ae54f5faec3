"""The images of an inspection: entropy through the layers, gain and loss over training, what the block does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.errors import lacking
from iecl.inspection.layer_report import Stage

SHOWN = 6
"""Images in the sheet of the block."""


def draw_layers(stages: Sequence[Stage], most: float, out: Path) -> None:
    """Entropy by stage for plain images, views and shaped views; below, how far two views of an image are apart."""
    figure = _figure(7, 6)
    above, below = figure.subplots(2, 1, sharex=True)
    names = [stage.name for stage in stages]
    above.plot(names, [stage.entropy for stage in stages], marker="o", label="plain images")
    above.plot(names, [stage.view_entropy for stage in stages], marker="s", label="views")
    if stages[0].block_entropy is not None:
        above.plot(names, [stage.block_entropy for stage in stages], marker="^", label="views behind the block")
    above.axhline(most, color="gray", linestyle=":", linewidth=1)
    above.annotate("most that so many images can have", (0, most), (0, -10), textcoords="offset points", fontsize=8)
    above.set(ylabel="entropy (log effective rank), nats", ylim=(0, 1.08 * most))
    above.legend()
    below.plot(names, [stage.view_distance for stage in stages], marker="o", color="tab:red")
    below.axhline(1, color="gray", linestyle=":", linewidth=1)
    below.set(ylabel="distance of two views\nover that of two images", ylim=(0, None))
    _save(figure, out)


def draw_training(metrics: Sequence[Mapping[str, Any]], out: Path) -> bool:
    """The block's entropy gain and the contrastive loss over the steps; False where the log has neither."""
    terms = ("loss/contrast", "loss")
    loss = next((term for term in terms if any(term in row for row in metrics)), None)
    if loss is None:
        return False
    figure = _figure(7, 4)
    left = figure.subplots()
    _line(left, metrics, loss, loss.removeprefix("loss/"), "tab:blue")
    left.set(xlabel="step", ylabel=loss)
    lines = left.get_lines()
    if any(row.get("iecl/gain_total") for row in metrics):  # it is 0 throughout where there is no block
        right = left.twinx()
        _line(right, metrics, "iecl/gain_total", "gain", "tab:orange")
        _line(right, metrics, "iecl/gain_rest", "gain beyond rescaling", "tab:green")
        right.set(ylabel="entropy gain of the block, nats per dimension")
        lines = [*lines, *right.get_lines()]
    figure.legend(lines, [line.get_label() for line in lines], loc="outside upper center", ncols=3)
    _save(figure, out)
    return True


def draw_block(
    before: Float[Tensor, "n 3 h w"],
    after: Float[Tensor, "n 3 h w"],
    look: tuple[tuple[float, ...], tuple[float, ...]],
    out: Path,
) -> None:
    """Views, the same behind the block, and the change (gray: none); `look` is mean and std of each channel."""
    mean, std = (torch.tensor(values)[:, None, None] for values in look)
    shown = [images[:SHOWN] * std + mean for images in (before, after)]
    rows = {"view": shown[0], "behind the block": shown[1], "change": (shown[1] - shown[0]) / 2 + 0.5}
    count = len(shown[0])
    figure = _figure(1.4 * count, 4.4)
    axes = figure.subplots(3, count, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name)
        for axis, image in zip(line, images, strict=True):
            axis.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
    _save(figure, out)


def _line(axis: Any, metrics: Sequence[Mapping[str, Any]], name: str, label: str, color: str) -> None:
    points = [(row["step"], row[name]) for row in metrics if name in row]
    axis.plot(*zip(*points, strict=True), label=label, color=color, linewidth=1)


def require_matplotlib() -> None:
    """Raise a `UserError` where it is missing: asked for before anything is measured, not after it."""
    try:
        import matplotlib  # noqa: F401  # only whether it is there
    except ImportError as problem:
        raise lacking("drawing", "matplotlib", extra="plots", where="iecl inspect") from problem


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # not pyplot: its windows and their backend belong to whoever calls us

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, out: Path) -> None:
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
