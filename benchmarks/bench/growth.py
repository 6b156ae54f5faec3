"""How does a step grow? Its time for one image by batch and by image side, and MoCo-v2's by the length of its queue.

All sizes of a row take turns in one run. Each is given as a ratio to the smallest, per image: 1 means that it grows in
proportion to the images, below 1 that a larger batch is cheaper. Sides would cost as their square if all were pixels.
"""

import gc
from collections.abc import Callable

import torch

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.stepping import make, stepper
from benchmarks.bench.turns import Arm, over, seconds, summaries, take_turns

BACKBONE, ROUNDS = "resnet10-w16", 5
BATCHES, QUICK_BATCHES = (64, 128, 256, 512, 1024), (8, 16)
SIDES, QUICK_SIDES, SIDES_BATCH = (32, 64, 96, 128, 160, 192, 224), (32, 48), 32
QUEUES, QUICK_QUEUES, QUEUES_BATCH = (1024, 4096, 16384, 65536), (1024, 4096), 128
FEW = 8
"""Images in a batch of the quick form."""


def measure(effort: Effort) -> Content:
    """Three ways in which a step can grow."""
    content: Content = {
        "setting": f"{BACKBONE}; batches at 32 px; sides at batch {SIDES_BATCH}; queues at batch {QUEUES_BATCH}, 32 px",
        "unit": "time of a step for one image over that of the smallest size in the same round",
        "results": {},
        "milliseconds_an_image": {},
    }
    for grow in (_batches, _sides, _queues):
        torch.manual_seed(0)
        times = take_turns(grow(effort.is_quick), effort.rounds_of(ROUNDS))
        smallest = next(iter(times))
        quotients = {
            f"{name} / {smallest.rpartition(', ')[2]}": over(own, times[smallest])
            for name, own in times.items()
            if name != smallest
        }
        content["results"] |= effort.rows(quotients)
        content["milliseconds_an_image"] |= summaries({name: [1e3 * x for x in own] for name, own in times.items()})
        effort.keep(content)
        gc.collect()
    return content


def _batches(is_quick: bool) -> dict[str, Arm]:
    return {
        f"simclr, batch {batch}": _arm("simclr", [], batch, 32) for batch in (QUICK_BATCHES if is_quick else BATCHES)
    }


def _sides(is_quick: bool) -> dict[str, Arm]:
    batch = FEW if is_quick else SIDES_BATCH
    return {f"simclr, {side} px": _arm("simclr", [], batch, side) for side in (QUICK_SIDES if is_quick else SIDES)}


def _queues(is_quick: bool) -> dict[str, Arm]:
    batch = FEW if is_quick else QUEUES_BATCH
    return {
        f"moco-v2, queue {length}": _arm("moco-v2", [f"method.queue_size={length}"], batch, 32)
        for length in (QUICK_QUEUES if is_quick else QUEUES)
    }


def _arm(method: str, sets: list[str], batch: int, side: int) -> Arm:
    """Seconds of a step for one of its images."""
    step: Callable[[], object] = stepper(
        make(method, sets, backbone=BACKBONE, batch=batch, side=side), batch=batch, side=side
    )
    return lambda: seconds(step) / batch
