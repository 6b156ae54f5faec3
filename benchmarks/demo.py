"""Does the demo beat doing nothing, whatever the seed? `iecl demo` three times.

python -m benchmarks.demo
"""

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.bench.turns import summary
from benchmarks.result import write

SEEDS = (0, 1, 2)
NAMES = ("knn_pretrained", "knn_without_block", "knn_random", "knn_pixels")


def main() -> None:
    rows: list[dict[str, Any]] = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            command = [
                sys.executable,
                "-m",
                "iecl",
                "demo",
                "--out",
                f"{folder}/run",
                "--seed",
                str(seed),
                "--quiet",
                "--json",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout.strip().splitlines()[-1])
            rows.append(
                {key: value for key, value in row.items() if key != "run"} | {"seconds": time.monotonic() - began}
            )
    content = {"results": {name: summary([row[name] for row in rows]) for name in NAMES}, "rows": rows}
    write("demo", "does the demo beat a random backbone and raw pixels, whatever the seed?", content)


if __name__ == "__main__":
    main()
