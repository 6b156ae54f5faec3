"""A short training on generated images, compared with a random backbone and with raw pixels."""

from pathlib import Path
from typing import Any

from iecl import api
from iecl.runs.directory import write_json

BATCH = 128
"""Smaller than usual: in four epochs the number of steps matters more."""


def demo(
    out: str | Path, *, epochs: int = 4, seed: int = 0, overwrite: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Pretrain on `shapes`, measure kNN of it and of two ways of doing nothing; write report.html and demo.json."""
    run = api.pretrain(
        "shapes",
        out,
        backbone="resnet10-w16",
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        overwrite=overwrite,
        quiet=quiet,
    )
    trained = run.evaluate("knn", quiet=quiet, baselines=("random", "pixels"))
    untrained, pixels = trained["baselines"]
    result = {
        "knn_pretrained": trained["top1"],
        "knn_random": untrained["top1"],
        "knn_pixels": pixels["top1"],
        "seed": seed,
        "epochs": epochs,
        "verdict": run.summary["verdict"],
        "images_per_second": run.summary["images_per_second"],
        "protocol_id": trained["protocol_id"],
        "run": str(run.path),
        "report": str(run.path / "report.html"),
    }
    run.report(result["report"], quiet=quiet)
    write_json(run.path / "demo.json", result)
    return result
