"""Does every method learn, plain and behind the input block? The same small budget on `shapes`.

    python -m benchmarks.methods

Not a ranking: each method has its default recipe, 312 steps and a narrow ResNet; methods that need long runs or large
batches are at a disadvantage. The question is whether each one beats an untrained backbone, and what the block does.
"""

import json
import tempfile
from statistics import mean
from typing import Any

from benchmarks.bench.report import machine_name
from benchmarks.result import RESULTS
from benchmarks.study import Arms, iecl, pretrained, study
from iecl.methods import METHODS

DATA, BACKBONE, EPOCHS, BATCH = "shapes", "resnet10-w16", 2, 64
HOSTS = ("simclr", "moco-v2", "byol", "simsiam")
"""The paper's plug-in hosts: three seeds; the other methods have one."""
UNWRAPPED = ("random",)
"""Nothing is trained, so that no block could be."""


ARMS: Arms = {
    arm: words
    for name in METHODS
    for arm, words in (
        (name, ["--method", name]),
        *([] if name in UNWRAPPED else [(f"{name} + block", ["--method", name, "--saib"])]),
    )
}


def cell(arm: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        common = ["--data", DATA, "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--batch-size", str(BATCH)]
        row = pretrained(out, [*common, "--seed", str(seed), *ARMS[arm]])
        if "stopped" in row:
            return row
        kept = {key: row[key] for key in ("steps", "peak_memory_megabytes", "verdict")}  # times: benchmarks.steps
        return kept | {name: iecl("evaluate", name, out, "--quiet").get("top1") for name in ("knn", "linear")}


def note_margins(name: str) -> None:
    """Add to each row by how much its kNN is above that of the untrained backbone."""
    path = RESULTS / name / f"{machine_name()}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    untrained = mean(row["knn"] for row in found["rows"] if row["arm"] in UNWRAPPED)
    for row in found["rows"]:
        if "knn" in row:
            row["above_random"] = round(row["knn"] - untrained, 4)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    question = "does every method learn, plain and behind the input block?"
    setting = f"{DATA}, {BACKBONE}, {EPOCHS} epochs, batch {BATCH}, each method's default recipe"
    study("methods", question, setting, ARMS, (0,), cell)
    hosts = [arm for arm in ARMS if arm.removesuffix(" + block") in HOSTS]
    study("methods", question, setting, ARMS, (1, 2), cell, only=[*hosts, *UNWRAPPED])
    note_margins("methods")


if __name__ == "__main__":
    main()
