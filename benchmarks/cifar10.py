"""How good is IE-CL after ten minutes on one core? Default, paper preset and the bare host on CIFAR-10, three seeds.

    python -m benchmarks.cifar10 FOLDER [ARM ...]     # FOLDER holds train/<class>/ and test/<class>/

All arms take the same number of steps with the same backbone and views. Images per second are those of a machine that
is busy with another cell.
"""

import sys
import tempfile
from functools import partial
from typing import Any

from benchmarks.study import Arms, iecl, pretrained, study

EPOCHS, BACKBONE = 2, "resnet10-w16"
ARMS: Arms = {
    "ie-cl default": ["--recipe", "ie-cl/default"],
    "host alone (MoCo, in-batch)": ["--recipe", "ie-cl/default", "--set", "objective.entropy=none"],
    "ie-cl paper": ["--recipe", "ie-cl/paper"],
    "ie-cl paper, rate 2e-3": [
        *("--recipe", "ie-cl/paper"),
        *("--set", "optimizer.lr=2e-3", "--set", "optimizer.warmup_epochs=1.0"),
    ],
}


def cell(data: str, arm: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        common = ["--data", data, "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--seed", str(seed)]
        row = pretrained(out, [*common, *ARMS[arm]])
        return row if "stopped" in row else measured(out, row)


def measured(out: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row of a finished run with what its evaluations say."""
    row["online_knn"] = row.pop("last").get("knn")
    return row | {name: iecl("evaluate", name, out, "--quiet").get("top1") for name in ("knn", "linear")}


def main(data: str, arms: list[str]) -> None:
    """All arms, or the ones whose names are given."""
    question = "how good is IE-CL after ten minutes on one core, against its printed form and its bare host?"
    setting = f"CIFAR-10, {BACKBONE}, {EPOCHS} epochs, batch 256"
    study("cifar10", question, setting, ARMS, (0, 1, 2), partial(cell, data), only=arms or None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
