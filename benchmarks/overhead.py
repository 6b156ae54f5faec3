"""What does each part of IE-CL add to a training step? Ratios to the host's step, interleaved in one run."""

import torch

from benchmarks.result import summary, write
from benchmarks.stepping import interleaved, make, ratios

BATCH, SIDE, BACKBONE, REPEATS = 128, 32, "resnet10-w32", 9
ARMS = {
    "host": [],
    "host again": [],  # how far two equal arms lie apart: the noise of this run
    "spectral norm": ["objective.encoder=spectral-norm"],
    "entropy": ["objective.entropy=coding-rate"],
    "kl": ["objective.kl=gaussian-diag"],
    "certified block": ["saib.form=certified"],
    "sample block": ["saib.form=sample"],
    "batch block, as printed": ["saib.form=batch"],
}
PLAIN = ["objective.entropy=none", "saib.form=none"]


def main() -> None:
    torch.manual_seed(0)
    arms = {
        name: make("ie-cl", [*PLAIN, *sets], backbone=BACKBONE, batch=BATCH, side=SIDE) for name, sets in ARMS.items()
    }
    times = interleaved(arms, batch=BATCH, side=SIDE, repeats=REPEATS)
    content = {
        "setting": f"symmetric host, {BACKBONE}, batch {BATCH}, {SIDE} px",
        "unit": "step time over the host's step time in the same round",
        "results": {name: summary(values) for name, values in ratios(times, "host").items()},
        "host_seconds": summary(times["host"]),
    }
    write("overhead", "what does each part of IE-CL add to a training step?", content)


if __name__ == "__main__":
    main()
