"""The tables of docs/scale.md: every method counted on the meta device, and estimated for GPUs that are not here.

python -m benchmarks.scale --backbone resnet50 --side 224 > scale.md
"""

import argparse
from dataclasses import replace

from iecl.console import plain_table
from iecl.errors import UserError
from iecl.methods import METHODS
from iecl.training.config import make_config, with_data
from iecl.training.scale import Counted, estimate
from iecl.training.step_cost import count_step

DEVICES, IMAGES, OWN = (8, 64, 512), 1e9, 64


def counted_of(method: str, backbone: str, side: int) -> Counted:
    """A method as its default recipe builds it."""
    flags = {"data": {"name": "shapes", "image_size": side, "decode_size": side}, "backbone": {"name": backbone}}
    config = make_config(method=method, flags=flags)
    return count_step(with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3)))


def main() -> None:
    """Count and print, method by method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--methods", nargs="+", default=[name for name in METHODS if name != "random"])
    args = parser.parse_args()
    costs, times = [], []
    for name in args.methods:
        one = counted_of(name, args.backbone, args.side)
        kept, sent = one.saved.in_16_bits(), one.sent(OWN, 64)
        flops = [f"{one.flops.at(OWN, OWN * devices) / OWN / 1e9:,.1f}" for devices in (1, 512)]
        memory = [f"{kept.at(OWN, OWN * devices) / OWN / 1e6:,.0f}" for devices in (1, 512)]
        held = f"{(one.weights + one.trained + one.moments) / 1e6:,.0f}"
        costs.append([name, *flops, *memory, held, *(f"{sent[key] / 1e6:,.1f}" for key in sent), str(one.per_sample)])
        row = [name]
        for devices in DEVICES:
            try:
                made = estimate(one, gpu=args.gpu, devices=devices, batch=OWN * devices, images=IMAGES, epochs=1)
                row += [f"{made['seconds'] / 3600:,.1f} h", f"{100 * made['network_share']:.0f} %", made["ends_first"]]
            except UserError as problem:
                row += ["", "", problem.what]
        times.append(row)
        print(costs[-1], times[-1], flush=True)
    heads = ["method", "GFLOP/image", "on 512", "MB/image", "on 512", "MB held"]
    heads += ["gradients", "rows", "statistics", "buffers", "B/sample"]
    print(plain_table(heads, costs), "", sep="\n")
    heads = ["method"]
    for devices in DEVICES:
        heads += [f"{devices} GPUs", "network", "ends first"]
    print(plain_table(heads, times))


if __name__ == "__main__":
    main()
