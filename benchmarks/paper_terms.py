"""Does ie-cl/paper train with AdamW at the printed rate of 0.3? And at a thousandth, which term holds it back?

    python -m benchmarks.paper_terms

Small on purpose: generated images, a narrow ResNet, two epochs. It answers "does it train at all", not "how well".
"""

import tempfile
from typing import Any

from benchmarks.study import Arms, iecl, pretrained, study

DATA, BACKBONE, EPOCHS = "shapes", "resnet10-w16", 2
ARMS: Arms = {
    "rate 0.3, as printed": [],
    "rate 1e-3": ["--set", "optimizer.lr=1e-3"],
    "rate 1e-3, no divergence": ["--set", "optimizer.lr=1e-3", "--set", "objective.kl=none"],
    "rate 1e-3, no entropy": [
        *("--set", "optimizer.lr=1e-3", "--set", "objective.entropy=none"),
        *("--set", "saib.weights=frozen"),  # nothing else would move the block
    ],
}
READINGS = {
    "contrast": "loss/contrast",
    "entropy": "iecl/entropy",
    "divergence": "iecl/kl",
    "effective_rank": "meter/effective_rank",
    "uniformity": "meter/uniformity",
    "online_knn": "knn",
}


def cell(arm: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        common = ["--recipe", "ie-cl/paper", "--data", DATA, "--backbone", BACKBONE, "--epochs", str(EPOCHS)]
        row = pretrained(out, [*common, "--seed", str(seed), "--set", "training.meter_steps=6", *ARMS[arm]])
        if "stopped" in row:
            return row
        last = row.pop("last")
        readings = {name: float(f"{last[key]:.5g}") for name, key in READINGS.items() if key in last}
        return {"verdict": row["verdict"], **readings, "knn": iecl("evaluate", "knn", out, "--quiet").get("top1")}


if __name__ == "__main__":
    study(
        "paper_terms",
        "does ie-cl/paper train with AdamW at the printed rate, and which term holds it back?",
        f"{DATA}, {BACKBONE}, {EPOCHS} epochs of 39 steps, batch 256; guessing among 256 images is a contrast of 5.545",
        ARMS,
        (42, 43, 44),  # 42 is printed
        cell,
    )
