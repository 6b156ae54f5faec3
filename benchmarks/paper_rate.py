"""What happens with the printed learning rate: two runs of ie-cl/paper that differ in optimizer.lr alone.

    python -m benchmarks.paper_rate benchmarks/results/paper_rate/cpu.json

Small on purpose: generated images, a narrow ResNet, two epochs. It answers "does it train at all", not "how well".
"""

import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import iecl
from iecl.console import ProgressLine
from iecl.data import shapes
from iecl.data.defaults import resolve_data
from iecl.data.settings import DataSettings
from iecl.errors import TrainingError
from iecl.evaluation.baselines import baseline_model
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.knn import knn
from iecl.runs.environment import describe_environment
from iecl.weights.external import PIXELS, RANDOM, random_model

RATES = (0.3, 1e-3)
SEED = 42  # printed
DATA, BACKBONE, EPOCHS = "shapes", "resnet10-w16", 2
SETS = (
    "training.precision=32-true",
    "training.accelerator=cpu",
    "training.log_steps=1",
    "training.meter_steps=6",
    "training.loggers=[]",
)


def main(out: Path) -> None:
    with ProcessPoolExecutor(len(RATES), mp_context=get_context("spawn")) as pool:  # no time is measured
        arms = list(pool.map(measure, RATES))
    data = resolve_data(DataSettings(name=DATA))
    look: dict[str, Any] = {"image_size": data.image_size, "mean": data.mean, "std": data.std}
    untrained = EvaluationContext(random_model(BACKBONE, SEED, **look), RANDOM, DATA, ProgressLine(quiet=True))
    pixels = untrained.beside(baseline_model(PIXELS, untrained.model, RANDOM, "knn"), PIXELS)
    result = {
        "question": "does ie-cl/paper train with AdamW at the printed rate of 0.3?",
        "command": f"iecl pretrain --recipe ie-cl/paper --data {DATA} --backbone {BACKBONE} --epochs {EPOCHS} "
        + " ".join(f"--set {text}" for text in SETS),
        "environment": {k: v for k, v in describe_environment().items() if k != "command"},
        "threads": torch.get_num_threads(),
        "threads_given": os.environ.get("OMP_NUM_THREADS", ""),
        "shapes_version": shapes.VERSION,
        "date": datetime.now(UTC).date().isoformat(),
        "knn_of_random_backbone": knn(untrained.train, untrained.test).top1,
        "knn_of_pixels": knn(pixels.train, pixels.test).top1,
        "arms": arms,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for arm in arms:
        print({name: value for name, value in arm.items() if name != "rows"})


def measure(rate: float) -> dict[str, Any]:
    """One run: its verdict, every row that it recorded, and its kNN accuracy on test images."""
    arm: dict[str, Any] = {"rate": rate, "seed": SEED, "stopped": ""}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            iecl.pretrain(
                DATA,
                out,
                recipe="ie-cl/paper",
                backbone=BACKBONE,
                epochs=EPOCHS,
                seed=SEED,
                sets=(*SETS, f"optimizer.lr={rate}"),
                quiet=True,
            )
            arm["knn_test"] = iecl.evaluate("knn", out)["top1"]
        except TrainingError as problem:
            arm["stopped"] = problem.what
        run = iecl.load(out)
        arm |= {name: run.summary.get(name) for name in ("verdict", "reasons", "steps")}
        arm["rows"] = [{name: short(value) for name, value in row.items()} for row in run.metrics]
    return arm


def short(value: float) -> float:
    """Five significant digits: what a reader can use, and a file that a diff can show."""
    return value if isinstance(value, int) else float(f"{value:.5g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
