"""What does one estimate of the block's entropy gain cost, beside one forward pass of ResNet-50 on the same images?

    python -m benchmarks.entropy_cost

Images of 3×224×224, one thread, no gradient; estimate and forward pass in turn, so that a busy machine slows both.
The estimate is the block's own (`block.entropy_gain`, 2 probes of 4 steps), and for comparison the one for any map.
"""

import time

import torch
from torchvision.models import resnet50

from benchmarks.bench.turns import summary
from benchmarks.result import write
from iecl.entropy import entropy_gain
from iecl.saib.certified import CertifiedSAIB

SIDE, IMAGES, REPEATS, PROBES, STEPS = 224, 4, 7, 2, 4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    block, encoder = CertifiedSAIB(image_size=SIDE, patch_size=16), resnet50().eval()
    x = 5 * torch.nn.functional.avg_pool2d(torch.randn(IMAGES, 3, SIDE + 4, SIDE + 4), 5, 1)
    block(x)
    block.eval()
    arms = {
        "ResNet-50, forward": lambda: encoder(x),
        "gain of the block": lambda: block.entropy_gain(x, probes=PROBES, steps=STEPS),
        "gain of any map": lambda: entropy_gain(block, x, probes=PROBES, steps=STEPS),
        "certificate": lambda: block.certificate(x, exact=False),
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    with torch.no_grad():
        for repeat in range(REPEATS + 1):
            for name, arm in arms.items():
                began = time.perf_counter()
                arm()
                if repeat:
                    times[name].append(time.perf_counter() - began)
        found = block.entropy_gain(x, probes=PROBES, steps=STEPS)
        truncation = block.log_det(x, probes=PROBES, steps=STEPS).truncation.mean() / x[0].numel()
    forward = times.pop("ResNet-50, forward")
    content = {
        "setting": f"{IMAGES} images of 3×{SIDE}×{SIDE}, patches of 16, {PROBES} probes of {STEPS} steps",
        "unit": "time over that of a forward pass of ResNet-50 in the same round",
        "results": {name: summary([a / b for a, b in zip(own, forward, strict=True)]) for name, own in times.items()},
        "forward_seconds": summary(forward),
        "estimate": {
            "nats_per_dimension": float(found.total),
            "standard_error": float(found.standard_error),
            "truncation": float(truncation),
        },
    }
    write("entropy_cost", "what does an estimate of the entropy gain cost beside a forward pass?", content)
    print({name: row["median"] for name, row in content["results"].items()}, content["estimate"])


if __name__ == "__main__":
    main()
