"""Which epoch is best, where there are no labels? Rank correlation of each score with the kNN that labels would show.

    python -m benchmarks.selection FOLDER     # FOLDER as for benchmarks.cifar10

Short trainings on a part of CIFAR-10, good ones and ones that go wrong. After each epoch a run scores the features of a
fixed sample of its training images and, since these have labels, measures their kNN (each image left out of its own
vote). A score is worth something if it orders the epochs of a run as kNN does (Spearman), and if the epoch it likes
best is not far below the best one (regret, in points). `loss` is minus an epoch's mean loss, `last` its number.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from benchmarks.speed import part_of
from benchmarks.study import Arms, pretrained, study
from iecl.api import load

BACKBONE, EPOCHS, BATCH, PER_CLASS = "resnet10-w16", 8, 128, 300
ARMS: Arms = {
    "ie-cl": ["--method", "ie-cl"],
    "simclr": ["--method", "simclr"],
    "byol": ["--method", "byol"],
    "vicreg": ["--method", "vicreg"],
    "simsiam, rate 0.03": ["--method", "simsiam", "--set", "optimizer.lr=0.03"],
    "simclr, rate 0.1": ["--method", "simclr", "--set", "optimizer.lr=0.1"],
    "ie-cl/paper": ["--recipe", "ie-cl/paper"],
}


def by_epoch(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The scores and the kNN of each epoch."""
    looks = [row for row in metrics if "knn" in row and row["step"]]
    made = []
    for number, look in enumerate(looks):
        losses = [row["loss"] for row in metrics if "loss" in row and row["epoch"] == look["epoch"]]
        scores = {name.removeprefix("score/"): value for name, value in look.items() if name.startswith("score/")}
        made.append({**scores, "loss": -mean(losses), "last": float(number), "knn": look["knn"]})
    return made


def judged(epochs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """For each score: its rank correlation with kNN over the epochs, and what its choice loses."""
    knn = [epoch["knn"] for epoch in epochs]
    made = {}
    for name in epochs[0]:
        if name == "knn":
            continue
        values = [epoch[name] for epoch in epochs]
        chosen = knn[values.index(max(values))]
        made[name] = {
            "correlation": round(float(spearmanr(values, knn).statistic), 3),
            "regret": round(100 * (max(knn) - chosen), 2),
        }
    return made


def main(data: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        images = part_of(Path(data), Path(scratch) / "images", PER_CLASS)

        def cell(arm: str, seed: int) -> dict[str, Any]:
            out = f"{scratch}/{list(ARMS).index(arm)}-{seed}"
            words = ["--data", str(images), "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--seed", str(seed)]
            row = pretrained(out, [*words, "--batch-size", str(BATCH), *ARMS[arm]])
            if "stopped" in row:
                return row
            epochs = by_epoch(load(out).metrics)
            return {"verdict": row["verdict"], "knn": [round(e["knn"], 4) for e in epochs], "scores": judged(epochs)}

        question = "which score orders the epochs of a run as kNN does?"
        setting = f"{10 * PER_CLASS:,} images of CIFAR-10, {BACKBONE}, {EPOCHS} epochs, batch {BATCH}"
        study("selection", question, setting, ARMS, (0, 1, 2), cell)


if __name__ == "__main__":
    main(sys.argv[1])
