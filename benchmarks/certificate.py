"""Is the certificate of the block ever violated? 10,000 random blocks, states of training and images.

    python -m benchmarks.certificate

A case is one image under one block: weights of any size, one to three layers, none to four optimizer steps that
climb, either budget, with and without noise. Its exact Jacobian in float64 is compared with every bound. The control is
a tied map with an activation that falls somewhere: there "no singular value below 1" is promised in vain.
"""

import math
import sys
import time

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, gelu, silu, tanh

from benchmarks.result import write
from iecl.counter import Stream, key, uniform
from iecl.meters.jacobian import jacobian
from iecl.saib.certified import CertifiedSAIB

CASES, IMAGES = 10_000, 8
ROUNDING = 1e-10
"""A bound counts as violated when the exact value is beyond it by this share: float64 loses less on these sizes."""
SHAPES = [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (6, 6)]


def draws(seed: int, count: int) -> list[float]:
    return uniform(key(0, "certificate case"), torch.tensor([seed]), count)[0].tolist()


def make(seed: int) -> tuple[CertifiedSAIB, Tensor, Stream | None]:
    """A block in some state of training, images, and noise or none."""
    shape, units, depth, scale, budget, kind, noisy, steps, size = draws(seed, 9)
    side, patch = SHAPES[int(shape * len(SHAPES))]
    torch.manual_seed(seed)
    block = CertifiedSAIB(
        image_size=side,
        patch_size=patch,
        hidden_dim=2 + int(units * 12),
        cascade=1 + int(depth * 3),
        budget=5 * budget,
        budget_kind="rms" if kind < 0.5 else "pixel",
        noise=("image", "pixel")[int(noisy * 8) % 2],
    ).double()
    for weight in block.parameters():
        weight.data *= math.exp(3 * (size - 0.5))  # a factor of 0.22 to 4.5
    x = math.exp(6 * (scale - 0.5)) * torch.randn(IMAGES, 3, side, side, dtype=torch.float64)
    optimizer = torch.optim.Adam(block.parameters(), lr=0.1)
    block(x)
    for step in range(int(steps * 5)):
        block(x, Stream(step, torch.arange(IMAGES))).diff(dim=-1).square().mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()
        block.after_step()
    return block, x, Stream(seed, torch.arange(IMAGES)) if noisy < 0.5 else None


def compared(block: CertifiedSAIB, x: Tensor, stream: Stream | None) -> dict[str, Tensor]:
    """By how much each bound is kept, as a share; below 0 it is violated."""
    found = block.certificate(x, stream)
    block.train(stream is not None)
    matrix = jacobian(lambda image: block(image, stream), x)
    sigma, log_det = torch.linalg.svdvals(matrix), torch.linalg.slogdet(matrix).logabsdet
    assert found.exact_log_det is not None
    return {
        "sigma_min": sigma[:, -1] / found.sigma_min - 1,
        "sigma_max": 1 - sigma[:, 0] / found.sigma_max,
        "log_det": (log_det - found.log_det) / (1 + log_det.abs()),
        "log_det_most": (found.log_det_most - log_det) / (1 + log_det.abs()),
        "exact_log_det": -(found.exact_log_det - log_det).abs() / (1 + log_det.abs()),
        "sharpness": found.log_det / log_det.clamp_min(1e-9),
    }


def control(activation: object, blocks: int) -> dict[str, float]:
    """How often a tied patch map with this activation contracts some direction."""
    assert callable(activation)
    smallest = []
    for seed in range(blocks):
        torch.manual_seed(seed)
        weight, x = torch.randn(24, 3, 2, 2, dtype=torch.float64) / 3, 3 * torch.randn(IMAGES, 3, 4, 4).double()

        def tied(x: Tensor, weight: Tensor = weight) -> Tensor:
            return x + conv_transpose2d(activation(conv2d(x, weight, stride=2)), weight, stride=2)

        smallest.append(torch.linalg.svdvals(jacobian(tied, x))[:, -1])
    found = torch.cat(smallest)
    return {
        "cases": len(found),
        "violations": int((found < 1 - ROUNDING).sum()),
        "smallest_sigma": float(found.min()),
    }


def main(cases: int = CASES) -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    parts = [compared(*make(seed)) for seed in range(cases // IMAGES)]
    margins = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    sharpness = margins.pop("sharpness")
    wrong = torch.stack([margin < -ROUNDING for margin in margins.values()]).any(0)
    rows = [{"arm": "certified block (tanh)", "seed": 0, "cases": len(wrong), "violations": int(wrong.sum())}]
    rows += [
        {"arm": f"control: {activation.__name__} in a tied map", "seed": 0, **control(activation, 64)}
        for activation in (tanh, silu, gelu)
    ]
    content = {
        "setting": f"a violation is a bound that the exact value passes by a share of more than {ROUNDING:g}",
        "rows": rows,
        "violations": {name: int((margin < -ROUNDING).sum()) for name, margin in margins.items()},
        "worst_margin": {name: float(margin.min()) for name, margin in margins.items()},
        "certified_share_of_log_det": torch.quantile(sharpness, torch.tensor([0.25, 0.5, 0.75]).double()).tolist(),
        "seconds": round(time.perf_counter() - began),
    }
    write("certificate", "is the certificate of the block ever violated?", content)
    print({name: content[name] for name in ("rows", "violations", "worst_margin", "certified_share_of_log_det")})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
