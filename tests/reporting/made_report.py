"""A run directory as training leaves it, with readings and images, made without training."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from made_runs import MadeRun


def make_reported(folder: Path, images: Path, *, name: str = "run", steps: int = 12, is_finished: bool = True) -> Path:
    """A run on a folder of images: weights, a checkpoint, rows of metrics, and a summary if it is finished."""
    run = MadeRun(folder / name, data=str(images))
    run.save_weights()
    run.save_checkpoint(steps)
    rows = [
        {"step": step, "epoch": step // 4, "loss/contrast": 5 - step / 10, "loss": 5 - step / 10, "lr": 0.1}
        for step in range(1, steps + 1)
    ]
    directory = run.directory
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if is_finished:
        scores = {"trained": {"own_view": 0.6}, "untrained": {"own_view": 0.3}, "pixels": {"own_view": 0.2}}
        summary = {"finished": True, "verdict": "healthy", "reasons": ["loss went down"], "advice": "nothing to fix"}
        summary |= {"images": 40, "seconds": 3.0, "last": {}, "outcome": {"images": 40, "scores": scores}}
        directory.summary.write_text(json.dumps(summary))
    return directory.path


def make_result(run: Path, hits: str, data: str = "d") -> None:
    """A result of kNN on sixteen images, which of them were right as bits."""
    right = int(hits, 16).bit_count()
    result = {"evaluation": "knn", "numbers": ["top1"], "top1": right / 16, "n_test": 16, "n_train": 24, "data": data}
    result |= {"protocol": {"k": 20}, "protocol_id": "knn/1 k=20", "hits": hits}
    (run / "evaluations" / "knn.json").write_text(json.dumps(result))


def make_colors(folder: Path, names: list[str], side: int = 32) -> dict[str, tuple[int, int, int]]:
    """One image of one color for each name; returns the colors."""
    colors = {}
    drawn = np.random.default_rng(0)
    for name in names:
        color = tuple(int(value) for value in drawn.integers(20, 236, 3))
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), color).save(path)
        colors[str(path)] = color
    return colors
