"""What does each part of IE-CL add to a training step? Ratios to the host's step, interleaved in one run."""

import time
from dataclasses import replace

import torch

from benchmarks.result import summary, write
from iecl.methods.contract import Method
from iecl.schedule import Clock
from iecl.training.building import build_method
from iecl.training.optimisers import make_optimiser
from iecl.training.plan import make_plan, with_data
from iecl.views.making import Views

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


def make(sets: list[str]) -> Method:
    flags = {"data": {"name": "shapes"}, "backbone": {"name": BACKBONE}, "training": {"batch": BATCH}}
    plain = ["objective.entropy=none", "saib.form=none"]
    plan = make_plan(method="ie-cl", flags=flags, sets=[*plain, *sets])
    return build_method(with_data(plan, replace(plan.data, image_size=SIDE, canvas=SIDE))).to(
        memory_format=torch.channels_last
    )


def step(method: Method, optimiser: torch.optim.Optimizer, views: Views) -> float:
    clock = Clock(seed=0, step=5, steps=100, epoch=0, epochs=1)
    began = time.perf_counter()
    sum(method.step(views, clock).losses.values()).backward()
    optimiser.step()
    optimiser.zero_grad()
    method.after_step(clock)
    return time.perf_counter() - began


def main() -> None:
    torch.manual_seed(0)
    full = tuple(torch.randn(BATCH, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last) for _ in range(2))
    views = Views(full, torch.arange(BATCH), torch.full((BATCH,), -1), torch.arange(BATCH))
    arms = {name: make(sets) for name, sets in ARMS.items()}
    settings = make_plan(flags={"data": {"name": "shapes"}}).optimiser
    optimisers = {name: make_optimiser(method.param_groups(), settings, 1e-3) for name, method in arms.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(REPEATS + 2):  # the first two warm up
        for name, method in arms.items():
            taken = step(method, optimisers[name], views)
            if repeat >= 2:
                times[name].append(taken)
    ratios = {name: [t / h for t, h in zip(values, times["host"], strict=True)] for name, values in times.items()}
    content = {
        "setting": f"symmetric host, {BACKBONE}, batch {BATCH}, {SIDE} px",
        "unit": "step time over the host's step time in the same round",
        "results": {name: summary(values) for name, values in ratios.items() if name != "host"},
        "host_seconds": summary(times["host"]),
    }
    write("overhead", "what does each part of IE-CL add to a training step?", content)


if __name__ == "__main__":
    main()
