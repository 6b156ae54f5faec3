"""What does a large batch take when the backbone sees chunks of it (`training.grad_cache`)? Memory and time by batch.

    python -m benchmarks.grad_cache

Real steps of SimCLR from views to optimizer, on random images, with one thread. Memory is what tensors hold at most in
a step, weights and the process itself aside: it is counted, and the same however busy the machine is. The forecast is
that of `iecl plan`, from steps of a few images. Time is the processor's, of the second step.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import write
from iecl.allocation import keep_freed_memory
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.trial import Steps, Trial, try_steps

SIDE = 32
CASES = {"resnet10-w16": (64, (64, 256, 1024)), "resnet18-small": (16, (16, 64))}
"""The chunk of each network, and the batches."""


def configured(network: str, chunk: int) -> RunConfig:
    """SimCLR's default recipe on random images."""
    flags = {"data": {"name": "shapes", "image_size": SIDE, "decode_size": SIDE}, "backbone": {"name": network}}
    sets = [f"training.grad_cache={chunk}", "training.precision=32-true"]
    config = make_config(method="simclr", flags=flags, sets=sets)
    return with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))


def measure(config: RunConfig, trial: Trial, batch: int) -> dict[str, float]:
    """Two steps of a batch."""
    with tempfile.TemporaryDirectory() as scratch:
        steps = Steps(config, batch, Path(scratch) / "run")
        most = steps.take()
        used = time.process_time()
        steps.loop.optimize(steps.batches)
        used = time.process_time() - used
    rows = min(config.training.grad_cache, trial.together * batch)
    return {
        "memory of a step, MB": most / 2**20,
        "forecast of it, MB": (trial.step + batch * trial.image + rows * trial.row) / 2**20,
        "processor time of an image, ms": 1000 * used / batch,
    }


def main() -> None:
    """The whole table; what was measured so far is kept."""
    torch.set_num_threads(1)
    keep_freed_memory()
    setting = f"simclr, views of {SIDE} px, 32 bits, one thread, on a machine that did other work too"
    rows: list[dict[str, Any]] = []
    for network, (chunk, batches) in CASES.items():
        arms = {"whole": configured(network, 0), f"chunks of {chunk}": configured(network, chunk)}
        trials = {arm: try_steps(config) for arm, config in arms.items()}
        for batch in batches:
            for arm, config in arms.items():
                rows.append({"arm": f"{network}, batch {batch}, {arm}", **measure(config, trials[arm], batch)})
                write("grad_cache", "what does a large batch take in chunks?", {"setting": setting, "rows": rows})


if __name__ == "__main__":
    main()
