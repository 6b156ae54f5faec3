"""Is entropy made at the input, does it survive the encoder, and does it help? Block x constraint on the encoder.

    python -m benchmarks.incremental FOLDER     # FOLDER as for benchmarks.cifar10

Each cell trains the same host for the same steps on a part of CIFAR-10, inspects the run (`iecl inspect`) and measures
kNN on the test images. The printed block learns from the entropy alone, as printed; the certified one against the
loss, within its budget. `python -m benchmarks.incremental` without a folder draws the figure again.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.bench.report import machine_name
from benchmarks.result import RESULTS
from benchmarks.speed import part_of
from benchmarks.study import Arms, iecl, pretrained, study

BACKBONE, EPOCHS, BATCH, PER_CLASS = "resnet10-w16", 1, 128, 2500
BLOCKS = {
    "no block": ["saib.form=none"],
    "printed block": ["saib.form=batch", "saib.host_gradient=none"],
    "certified block": ["saib.form=certified"],
}
CONSTRAINTS = {
    "nothing": [],
    "spectral norm": ["objective.encoder=spectral-norm"],
    "sigma-min": ["objective.encoder=sigma-min", "objective.encoder_weight=0.1"],
}
ARMS: Arms = {
    f"{block}, {constraint}": [word for text in (*sets, *more) for word in ("--set", text)]
    for block, sets in BLOCKS.items()
    for constraint, more in CONSTRAINTS.items()
}
FIGURE = Path(__file__).parent.parent / "docs" / "images" / "incremental.svg"


def inspected(out: str) -> dict[str, Any]:
    """What a row keeps of an inspection."""
    found = iecl("inspect", out, "--quiet")
    if "stopped" in found:
        return {"inspection": found["stopped"]}
    block = found["block"] or {"gain_total": 0.0, "gain_rest": 0.0, "sigma_min": 1.0}
    return {
        "gain_total": round(block["gain_total"], 4),
        "gain_rest": round(block["gain_rest"], 4),
        "sigma_min": round(block["sigma_min"], 4),
        "h_z": round(found["embedding"]["H coding-rate"], 2),
        "stages": {
            stage["name"]: round(stage["view_entropy" if stage["block_entropy"] is None else "block_entropy"], 3)
            for stage in found["layers"]
        },
    }


def draw(rows: Sequence[dict[str, Any]]) -> None:
    """One column for each block: entropy by stage, and kNN beside the gain; means over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 6.5), sharey="row", layout="constrained")
    for column, block in enumerate(BLOCKS):
        for number, constraint in enumerate(CONSTRAINTS):
            own = [row for row in rows if row["arm"] == f"{block}, {constraint}" and "stages" in row]
            if not own:
                continue
            names = list(own[0]["stages"])
            curve = [mean(row["stages"][name] for row in own) for name in names]
            axes[0, column].plot(names, curve, marker="o", label=constraint)
            knn = [100 * row["knn"] for row in own]
            axes[1, column].bar(number, mean(knn), color=f"C{number}", alpha=0.6)
            axes[1, column].plot([number] * len(knn), knn, "k.", markersize=4)
        some = [row for row in rows if row["arm"].startswith(block) and "gain_total" in row]
        gains = [mean(row[name] for row in some) if some else 0.0 for name in ("gain_total", "gain_rest")]
        axes[0, column].set_title(f"{block}\ngain {gains[0]:.2f} nats per dimension, {gains[1]:+.2f} beyond rescaling")
        axes[0, column].tick_params(axis="x", rotation=40)
        axes[1, column].set_xticks(range(3), list(CONSTRAINTS))
    axes[0, 0].set_ylabel("entropy of views by stage, nats")
    axes[0, 0].legend(title="on the encoder")
    axes[1, 0].set_ylabel("kNN, % (dots: seeds)")
    axes[1, 0].set_ylim(bottom=20)
    figure.savefig(FIGURE, metadata={"Date": None})


def main(data: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "images"
        part_of(Path(data), whole / "train", PER_CLASS)
        (whole / "test").symlink_to((Path(data) / "test").absolute())

        def cell(arm: str, seed: int) -> dict[str, Any]:
            with tempfile.TemporaryDirectory() as folder:
                out = f"{folder}/run"
                words = ["--data", str(whole), "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--seed", str(seed)]
                row = pretrained(out, [*words, "--batch-size", str(BATCH), *ARMS[arm]])
                if "stopped" in row:
                    return row
                row.pop("last")
                return row | inspected(out) | {"knn": iecl("evaluate", "knn", out, "--quiet").get("top1")}

        question = "is entropy made at the input, does it survive the encoder, and does it help?"
        setting = f"{10 * PER_CLASS:,} images of CIFAR-10, {BACKBONE}, {EPOCHS} epoch, batch {BATCH}, ie-cl/default"
        study("incremental", question, setting, ARMS, (0, 1, 2), cell)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    draw(json.loads((RESULTS / "incremental" / f"{machine_name()}.json").read_text(encoding="utf-8"))["rows"])
