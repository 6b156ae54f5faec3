"""How far is what `iecl plan` predicts from what a run takes? Three methods, each predicted and then trained.

    python -m benchmarks.plan

Both happen on the same machine, one right after the other, with one thread. What else the machine does changes between
the two: the numbers hold the noise of a shared machine as well as the error of the forecast.
"""

import tempfile
from typing import Any

from benchmarks.result import write
from benchmarks.study import iecl

METHODS, BACKBONE, BATCH, EPOCHS, DATA = ("ie-cl", "simclr", "byol"), "resnet10-w16", 128, 2, "shapes"
BAR = 0.25
"""Largest error that is allowed, as a share of what really happened."""


def row_of(method: str, scratch: str) -> dict[str, Any]:
    """What was predicted of one run, what it took, and the quotient of both."""
    words = ["--data", DATA, "--method", method, "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--quiet"]
    words += ["--batch-size", str(BATCH), "--out", f"{scratch}/{method}"]
    predicted = iecl("plan", *words)
    real = iecl("pretrain", *words)["summary"]["forecast"]
    time, memory = real["seconds"], real["memory_megabytes"]
    return {
        "arm": method,
        "seconds_predicted": time["predicted"],
        "seconds_real": time["real"],
        "seconds_ratio": round(time["predicted"] / time["real"], 3),
        "megabytes_predicted": memory["predicted"],
        "megabytes_real": memory["real"],
        "megabytes_ratio": round(memory["predicted"] / memory["real"], 3),
        "batches_tried": str([row["batch"] for row in predicted["measured"]["rows"]]),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        rows = [row_of(method, scratch) for method in METHODS]
    worst = max(abs(row[f"{what}_ratio"] - 1) for row in rows for what in ("seconds", "megabytes"))
    content = {
        "setting": f"{DATA}, {BACKBONE}, batch {BATCH}, {EPOCHS} epochs, one thread, a machine that others use too",
        "threads": 1,  # of the runs, not of this process
        "worst_error": round(worst, 3),
        "bar": BAR,
        "is_within_bar": worst <= BAR,
        "rows": rows,
    }
    write("plan", "how far is what iecl plan predicts from what a run takes?", content)


if __name__ == "__main__":
    main()
