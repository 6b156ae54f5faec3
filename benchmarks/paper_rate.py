"""What happens with the printed learning rate: two runs of ie-cl/paper that differ in optimiser.rate alone.

    python -m benchmarks.paper_rate benchmarks/results/paper_rate/cpu.json

Small on purpose: generated pictures, a narrow ResNet, two epochs. It answers "does it train at all", not "how well".
"""

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import iecl
from iecl.errors import TrainingError
from iecl.evaluation.baselines import knn_of_pixels, knn_of_random
from iecl.runs.environment import describe_environment

RATES = (0.3, 1e-3)
SEEDS = (42, 43, 44)  # 42 is printed
DATA, BACKBONE, EPOCHS = "shapes", "resnet10-w16", 2
SETS = (
    "training.precision=32-true",
    "training.accelerator=cpu",
    "training.log_steps=1",
    "training.meter_steps=6",
    "training.loggers=[]",
)


def main(out: Path) -> None:
    arms = [measure(rate, seed) for seed in SEEDS for rate in RATES]
    result = {
        "question": "does ie-cl/paper train with AdamW at the printed rate of 0.3?",
        "command": f"iecl pretrain --recipe ie-cl/paper --data {DATA} --backbone {BACKBONE} --epochs {EPOCHS} "
        + " ".join(f"--set {text}" for text in SETS),
        "environment": {k: v for k, v in describe_environment().items() if k != "command"},
        "threads": torch.get_num_threads(),
        "threads_given": os.environ.get("OMP_NUM_THREADS", ""),
        "date": datetime.now(UTC).date().isoformat(),
        "knn_of_random_backbone": knn_of_random(DATA, BACKBONE, SEEDS[0]),
        "knn_of_pixels": knn_of_pixels(DATA),
        "arms": arms,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for arm in arms:
        print({name: value for name, value in arm.items() if name != "rows"})


def measure(rate: float, seed: int) -> dict[str, Any]:
    """One run: its verdict, every row that it recorded, and its kNN accuracy on test pictures."""
    arm: dict[str, Any] = {"rate": rate, "seed": seed, "stopped": ""}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            iecl.pretrain(
                DATA,
                out,
                recipe="ie-cl/paper",
                backbone=BACKBONE,
                epochs=EPOCHS,
                seed=seed,
                sets=(*SETS, f"optimiser.rate={rate}"),
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
