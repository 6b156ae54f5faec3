"""What does each constraint on the encoder do to its log-volume, and what does it cost?

    python -m benchmarks.preservation

A small ResNet on images of 3×16×16. Each penalty alone is descended for 60 steps of Adam; spectral norm is put on.
Batch norm then adapts its statistics to fixed batches, and the log pseudo-determinant of the Jacobian is measured in
evaluation mode: nats for each direction that survives, and how many do. The cost is the penalty with its gradient over
a training step (forward and backward) of 64 images of 32×32, in turn.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.result import write
from iecl.backbones.factory import make_backbone
from iecl.entropy import log_volume
from iecl.objective.terms import PENALTIES
from iecl.parts.spectral_norm import follow_kernels, input_sizes, normalize_convolutions

BACKBONE, SIDE, SEEDS, STEPS = "resnet10-w16", 16, 3, 60
ARMS = ("none", "spectral-norm, kernel", "spectral-norm, operator", *PENALTIES)


def images(count: int, side: int, seed: int) -> Tensor:
    noise = torch.randn(count, 3, side + 2, side + 2, generator=torch.Generator().manual_seed(seed))
    return 3 * torch.nn.functional.avg_pool2d(noise, 3, 1)


def kernels(encoder: nn.Module) -> list[Tensor]:
    return [part.weight for part in encoder.modules() if isinstance(part, nn.Conv2d)]


def constrain(encoder: nn.Module, arm: str) -> Callable[[], Tensor]:
    """Put the constraint on; returns what a step has to compute for it."""
    if arm.startswith("spectral-norm"):
        normalize_convolutions(encoder, input_sizes(encoder, SIDE) if arm.endswith("operator") else None)
        return lambda: torch.zeros(())
    if arm == "none":
        return lambda: torch.zeros(())
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    for _ in range(STEPS):
        PENALTIES[arm](kernels(encoder)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return lambda: PENALTIES[arm](kernels(encoder))


def adapt(encoder: nn.Module) -> None:
    """Bring the statistics of batch norm to those of the present weights, with nothing left of older ones."""
    for part in encoder.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None  # a plain mean over the batches
    encoder.train()
    with torch.no_grad():
        for seed in range(40):
            encoder(images(32, SIDE, seed))
    encoder.eval()


def cost(encoder: nn.Module, penalty: Callable[[], Tensor]) -> float:
    """Median over repeats of penalty and its gradient (and the power iteration) over a training step."""
    encoder.train()
    x, ratios = images(64, 32, 0), []
    for _ in range(5):
        began = time.perf_counter()
        encoder(x).square().mean().backward()
        middle = time.perf_counter()
        value = penalty()
        if value.requires_grad:
            value.backward()
        follow_kernels(encoder)
        ratios.append((time.perf_counter() - middle) / (middle - began))
    return median(ratios)


def measured(arm: str, seed: int) -> dict[str, float]:
    encoder = make_backbone(BACKBONE, seed)
    adapt(encoder)
    penalty = constrain(encoder, arm)
    stale = log_volume(encoder.eval(), images(4, SIDE, 99))
    adapt(encoder)
    found = log_volume(encoder, images(4, SIDE, 99))
    return {
        "log_volume_per_direction": float((found.value / found.rank).mean()),
        "directions": float(found.rank.mean()),
        "before_statistics_adapt": float((stale.value / stale.rank).mean()),
        "cost_over_a_step": cost(encoder, penalty),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [{"arm": arm, "seed": seed, **measured(arm, seed)} for arm in ARMS for seed in range(SEEDS)]
    rounded = [{k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    setting = f"{BACKBONE}, 3×{SIDE}×{SIDE}, penalties descended alone for {STEPS} steps"
    write(
        "preservation",
        "what does each constraint do to the encoder's log-volume?",
        {"setting": setting, "rows": rounded},
    )
    for row in rounded:
        print(row)


if __name__ == "__main__":
    main()
