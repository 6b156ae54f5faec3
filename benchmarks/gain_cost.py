"""What does it cost to log the entropy gain of the block in every run? Share of the time between two readings.

    python -m benchmarks.gain_cost

A step and a reading take turns. The share is that of one reading in the default number of steps between two of them.
The narrow backbone is the most expensive case: a wider one makes the step longer and leaves the reading as it is.
"""

import time

import torch

from benchmarks.bench.stepping import interleaved, make
from benchmarks.bench.turns import summary
from benchmarks.result import write
from iecl.training.settings import TrainingSettings

BATCH, SIDE, BACKBONE, REPEATS = 128, 32, "resnet10-w16", 7
FORMS = ("certified", "sample", "batch")


def main() -> None:
    torch.manual_seed(0)
    steps = TrainingSettings().meter_steps
    arms = {form: make("ie-cl", [f"saib.form={form}"], backbone=BACKBONE, batch=BATCH, side=SIDE) for form in FORMS}
    shares: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(REPEATS):
        for form, method in arms.items():
            (step,) = interleaved({form: method}, batch=BATCH, side=SIDE, repeats=1)[form]
            began = time.perf_counter()
            method.meters()
            between = steps * method.saib.gain_interval
            shares[form].append((time.perf_counter() - began) / (between * step))
    content = {
        "setting": f"ie-cl, {BACKBONE}, batch {BATCH}, {SIDE} px, meters read every {steps} steps",
        "unit": "time of a reading over that of the steps between two readings",
        "results": {form: summary(values) for form, values in shares.items()},
    }
    write("gain_cost", "what does it cost to log the entropy gain of the block?", content)
    print({form: row["median"] for form, row in content["results"].items()})


if __name__ == "__main__":
    main()
