"""Which penalty suits few labels? Accuracy by C on training images that were held out; no test image is looked at.

    python -m benchmarks.fewshot FOLDER     # FOLDER as for benchmarks.cifar10

On three datasets, with a backbone that was never trained and with one that was trained for a short time without
labels. A fifth of the training images is used instead of the test images. One C serves all budgets, as in `iecl
evaluate fewshot`.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.result import write
from benchmarks.speed import part_of
from iecl import counter
from iecl.api import pretrain
from iecl.console import ProgressLine
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.features import Features
from iecl.evaluation.fewshot import FewShotSettings, few_shot
from iecl.evaluation.model import load_model

BACKBONE, PER_CLASS = "resnet10-w16", 1000
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
EPOCHS = {"digits": 20, "shapes": 4}


def training_features(target: str, data: str) -> Features:
    """Features of the training images of a dataset."""
    model = load_model(target, backbone=BACKBONE if target == "random" else "", image_size=0)
    return EvaluationContext(model, target, data, ProgressLine(quiet=True)).train


def by_strength(features: Features) -> dict[str, dict[str, float]]:
    """Accuracy on the held-out fifth by C, for each budget."""
    order = counter.permutation(counter.key(0, "held out"), len(features))
    rest, part = (features.rows(rows) for rows in (order[: len(order) // 5], order[len(order) // 5 :]))
    made = {}
    for strength in STRENGTHS:
        results = few_shot(part, rest, FewShotSettings(inverse_penalty=strength, trials=3))
        made[f"{strength:g}"] = {result.budget.name: round(mean(result.top1), 4) for result in results}
    return made


def best(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Mean over all budgets and backbones by C."""
    return {
        c: round(mean(value for arm in found.values() for value in arm[c].values()), 4)
        for c in next(iter(found.values()))
    }


def main(folder: str) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        images = str(part_of(Path(folder) / ".", Path(scratch) / "images", PER_CLASS))
        for name, data in {"digits": "digits", "shapes": "shapes", "CIFAR-10": images}.items():
            run = pretrain(
                data, f"{scratch}/{name}", method="simclr", backbone=BACKBONE, epochs=EPOCHS.get(name, 4),
                batch_size=128, quiet=True,
            )  # fmt: skip
            for arm, target in {"random": "random", "trained": str(run.path)}.items():
                found[f"{name}, {arm}"] = by_strength(training_features(target, data))
                print(name, arm, found[f"{name}, {arm}"], flush=True)
    content = {"setting": f"{BACKBONE}, 3 draws for each budget", "found": found, "mean_by_C": best(found)}
    write("fewshot", "which penalty suits few labels, on held-out training images?", content)
    print(content["mean_by_C"])


if __name__ == "__main__":
    main(sys.argv[1])
