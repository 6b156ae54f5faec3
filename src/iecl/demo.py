"""A short training on generated images with the block and without, compared with a random backbone and raw pixels."""

from pathlib import Path
from typing import Any

from iecl import api
from iecl.runs.directory import write_json

BATCH = 128
"""Smaller than usual: in four epochs the number of steps matters more."""


def demo(
    out: str | Path, *, epochs: int = 4, seed: int = 0, overwrite: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Pretrain on `shapes` twice, measure kNN of both and of two ways of doing nothing; write a page about both.

    The run without the block is beside `out`; report.html and demo.json are in `out`.
    """
    common: dict[str, Any] = {"backbone": "resnet10-w16", "epochs": epochs, "batch_size": BATCH, "seed": seed}
    common |= {"overwrite": overwrite, "quiet": quiet}
    run = api.pretrain("shapes", out, **common)
    plain = api.pretrain(
        "shapes", f"{run.path}-without-block", sets=["saib.form=none", "training.outcome=false"], **common
    )
    trained = run.evaluate("knn", quiet=quiet, baselines=("random", "pixels"))
    untrained, pixels = trained["baselines"]
    result = {
        "knn_pretrained": trained["top1"],
        "knn_without_block": plain.evaluate("knn", quiet=quiet)["top1"],
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
    api.report([run.path, plain.path], result["report"], quiet=quiet)
    write_json(run.path / "demo.json", result)
    return result
