"""What does a large batch take when the backbone sees chunks of it (`training.grad_cache`)? Memory and time by batch.

    python -m benchmarks.grad_cache
    python -m benchmarks.grad_cache NETWORK CHUNK BATCH     # one measurement, in a process of its own

Real steps of SimCLR from views to optimizer, on random images, with one thread. Memory is the most that the process
held, the forecast that of `iecl plan`, from steps of a few images; time is the processor's, for an image, in the second
step.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench.processes import answer, in_repository, peak_bytes
from benchmarks.result import write
from iecl.allocation import keep_freed_memory
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.trial import Steps, try_steps

SIDE = 32
CASES = {"resnet18-small": (32, (32, 128)), "resnet10-w16": (128, (128, 512, 2048))}
"""The chunk of each network, and the batches."""


def configured(network: str, chunk: int, batch: int) -> RunConfig:
    """SimCLR's default recipe on random images, without what comes between epochs."""
    flags = {"data": {"name": "shapes", "image_size": SIDE, "decode_size": SIDE}, "backbone": {"name": network}}
    sets = [f"training.grad_cache={chunk}", f"training.batch_size={batch}", "training.online_eval_epochs=0"]
    config = make_config(method="simclr", flags=flags, sets=[*sets, "training.precision=32-true"])
    return with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))


def measure(network: str, chunk: int, batch: int) -> dict[str, float]:
    """Two steps of a batch; a batch of 0: what the forecast is for the batches of the table."""
    torch.set_num_threads(1)
    keep_freed_memory()
    if not batch:
        trial = try_steps(configured(network, chunk, 2))
        sizes = CASES[network][1]
        return {str(size): trial.megabytes(configured(network, chunk, size), 2 * size) for size in sizes}
    with tempfile.TemporaryDirectory() as scratch:
        steps = Steps(configured(network, chunk, batch), batch, Path(scratch) / "run")
        steps.loop.optimize(steps.batches)
        used = time.process_time()
        steps.loop.optimize(steps.batches)
        used = time.process_time() - used
    return {"megabytes": peak_bytes() / 2**20, "milliseconds": 1000 * used / batch}


def ask(*words: object) -> dict[str, float]:
    """A measurement by itself."""
    command = [sys.executable, "-m", "benchmarks.grad_cache", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=in_repository())
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """The whole table."""
    results: dict[str, Any] = {}
    for network, (chunk, batches) in CASES.items():
        for size in (0, chunk):
            forecasts = ask(network, size, 0)
            for batch in batches:
                found = ask(network, size, batch)
                name = f"{network}, batch {batch}, {f'chunks of {size}' if size else 'whole'}"
                results[f"{name}: memory, MB"] = found["megabytes"]
                results[f"{name}: forecast of it, MB"] = forecasts[str(batch)]
                results[f"{name}: processor time of an image, ms"] = found["milliseconds"]
                setting = f"simclr, views of {SIDE} px, 32 bits, one thread, a machine that did other work too"
                content = {"setting": setting, "unit": "as said", "results": results}
                write("grad_cache", "what does a large batch take in chunks?", content)


if __name__ == "__main__":
    answer(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))) if sys.argv[1:] else main()
