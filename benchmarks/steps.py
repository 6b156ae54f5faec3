"""What does a step of each method take, plain and behind the input block, next to SimCLR's? Interleaved ratios.

    python -m benchmarks.steps

Each method has its default recipe. Three arms take turns, SimCLR, the method and the method with the block, so that
what else the machine does weighs on all three.
"""

import torch

from benchmarks.bench.stepping import interleaved, make
from benchmarks.bench.turns import ratios, summary
from benchmarks.result import write
from iecl.methods import METHODS

BATCH, SIDE, BACKBONE, REPEATS = 128, 32, "resnet10-w16", 7
UNTRAINED = ("random",)
"""Without a loss there is no step to time."""


def rows_of(name: str) -> dict[str, dict[str, object]]:
    """Ratios of a method to SimCLR, and of the method with the block to the method alone."""
    shape = {"backbone": BACKBONE, "batch": BATCH, "side": SIDE}
    arms = {
        "simclr": make("simclr", [], **shape),
        "plain": make(name, [], **shape),
        "block": make(name, ["saib.form=certified"], **shape),
    }
    times = interleaved(arms, batch=BATCH, side=SIDE, repeats=REPEATS)
    return {
        f"{name} / simclr": summary(ratios(times, "simclr")["plain"]),
        f"{name} + block / {name}": summary(ratios(times, "plain")["block"]),
    }


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, object]] = {}
    for name in METHODS:
        if name not in UNTRAINED:
            results |= rows_of(name)
    content = {
        "setting": f"{BACKBONE}, batch {BATCH}, {SIDE} px, default recipes, certified block",
        "unit": "step time over the other's step time in the same round",
        "results": results,
    }
    write("steps", "what does a step of each method take, plain and behind the input block?", content)


if __name__ == "__main__":
    main()
