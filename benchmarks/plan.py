"""How far is what `iecl plan` predicts from what a run takes? Six runs, each predicted three times and then trained.

    python -m benchmarks.plan --data FOLDER       # some hundred photographs

All happen on the same machine, one right after the other, with one thread. What else the machine does changes between
them: seconds hold the noise of a shared machine as well as the error of the forecast. Memory must not.
"""

import argparse
import tempfile
from typing import Any

from benchmarks.result import write
from benchmarks.study import iecl

RUNS = (
    ("ie-cl", "resnet10-w16", 32, 128),
    ("byol", "resnet18-small", 32, 64),
    ("moco-v3", "resnet10-w32", 64, 128),
    ("ie-cl", "resnet50", 96, 32),
    ("simclr", "resnet18", 128, 64),
    ("simclr", "resnet18", 224, 16),
)
"""Method, backbone, image size and batch."""
EPOCHS, PLANS, BAR = 1, 3, 0.2
"""The last: largest error of the memory that is allowed, as a share of what really happened."""


def row_of(data: str, method: str, backbone: str, size: int, batch: int, scratch: str) -> dict[str, Any]:
    """What was predicted of one run, what it took, and the quotient of both."""
    words = ["--data", data, "--method", method, "--backbone", backbone, "--image-size", str(size), "--quiet"]
    words += ["--batch-size", str(batch), "--epochs", str(EPOCHS)]
    out = f"{scratch}/{method}-{backbone}-{size}-{batch}"
    plans = [iecl("plan", *words, "--seconds", "5") for _ in range(PLANS - 1)]
    plans.append(iecl("plan", *words, "--seconds", "5", "--out", out))
    real = iecl("pretrain", *words, "--out", out)["summary"]["forecast"]
    time, memory = real["seconds"], real["memory_megabytes"]
    return {
        "arm": f"{method}, {backbone}, {size} px, batch {batch}",
        "megabytes_predicted": [plan["memory_megabytes"] for plan in plans],
        "megabytes_real": memory["real"],
        "megabytes_ratio": round(memory["predicted"] / memory["real"], 3),
        "seconds_predicted": time["predicted"],
        "seconds_real": time["real"],
        "seconds_ratio": round(time["predicted"] / time["real"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    data = parser.parse_args().data
    with tempfile.TemporaryDirectory() as scratch:
        rows = []
        for run in RUNS:
            rows.append(row_of(data, *run, scratch))
            print(rows[-1], flush=True)
    worst = max(abs(row["megabytes_ratio"] - 1) for row in rows)
    content = {
        "setting": f"200 photographs, {EPOCHS} epoch, {PLANS} forecasts each, one thread",
        "threads": 1,  # of the runs, not of this process
        "worst_error_of_memory": round(worst, 3),
        "bar": BAR,
        "is_within_bar": worst <= BAR,
        "is_the_same_each_time": all(len(set(row["megabytes_predicted"])) == 1 for row in rows),
        "rows": rows,
    }
    write("plan", "how far is what iecl plan predicts from what a run takes?", content)


if __name__ == "__main__":
    main()
