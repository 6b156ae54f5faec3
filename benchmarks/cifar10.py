"""How good is IE-CL after ten minutes on one core? Default, paper preset and the bare host on CIFAR-10, three seeds.

    python -m benchmarks.cifar10 FOLDER          # FOLDER holds train/<class>/ and test/<class>/

All arms take the same number of steps with the same backbone and views, each on one thread, two at a time: images per
second are those of a machine that is busy. Cells that are in the result file are not run again, so the study can be
stopped and started at will.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from benchmarks.result import RESULTS, machine_name, write

EPOCHS, BACKBONE, SEEDS, AT_ONCE = 2, "resnet10-w16", (0, 1, 2), 2
ARMS = {
    "ie-cl default": ["--recipe", "ie-cl/default"],
    "host alone (MoCo, in-batch)": ["--recipe", "ie-cl/default", "--set", "objective.entropy=none"],
    "ie-cl paper": ["--recipe", "ie-cl/paper"],
    "ie-cl paper, rate 2e-3": [
        "--recipe",
        "ie-cl/paper",
        "--set",
        "optimiser.rate=2e-3",
        "--set",
        "optimiser.warmup=1.0",
    ],
}
QUESTION = "how good is IE-CL after ten minutes on one core, against its printed form and its bare host?"


def iecl(*words: str) -> dict[str, Any]:
    """One command in a process of its own, so that its peak memory is its own; the last line is its result."""
    command = [sys.executable, "-m", "iecl", *words, "--json"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    if done.returncode:
        return {"stopped": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def cell(data: str, arm: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        words = ["--data", data, "--out", out, "--backbone", BACKBONE, "--epochs", str(EPOCHS), "--seed", str(seed)]
        made = iecl("pretrain", *words, *ARMS[arm], "--set", "training.loggers=[]", "--quiet")
        if "stopped" in made:
            return {"arm": arm, "seed": seed, **made}
        summary = made["summary"]
        kept = ("steps", "seconds", "images_per_second", "peak_memory_megabytes", "verdict")
        row = {"arm": arm, "seed": seed, **{name: summary[name] for name in kept}}
        for name in ("knn", "linear"):
            row[name] = iecl("evaluate", name, out, "--quiet").get("top1")
        row["online_knn"] = summary["last"].get("knn")
        return row


def main(data: str) -> None:
    path = RESULTS / "cifar10" / f"{machine_name()}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    done = {(row["arm"], row["seed"]) for row in rows}
    missing = [(arm, seed) for seed in SEEDS for arm in ARMS if (arm, seed) not in done]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for finished in as_completed([pool.submit(cell, data, arm, seed) for arm, seed in missing]):
            rows.append(finished.result())
            rows.sort(key=lambda row: (list(ARMS).index(row["arm"]), row["seed"]))
            print(finished.result(), flush=True)
            setting = f"{BACKBONE}, {EPOCHS} epochs, batch 256, one thread each, {AT_ONCE} at a time"
            write("cifar10", QUESTION, {"setting": setting, "arms": ARMS, "rows": rows})


if __name__ == "__main__":
    main(sys.argv[1])
