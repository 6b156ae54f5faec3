"""Does the printed block expand, as the paper claims? Exact log|det J| of fresh blocks, and how much of it is scaling.

    python -m benchmarks.printed_block

Batch form, three convolutions, batch norm and SiLU as in the `paper` preset, on smooth random images of 3×8×8 in
patches of 4, float64. The batch is one point, since the block mixes its images. The image-level skip alone is the case
that the paper's proof speaks of; with all three skips an image is doubled before anything is learned.
"""

import torch

from benchmarks.result import write
from iecl.entropy import entropy_gain, singular_values
from iecl.saib.printed import SAIB

SEEDS, SKIPS = 20, {"image-level skip alone": ("image",), "all three skips": ("inner", "stack", "image")}
STARTS = ("as built", "Kaiming")


def make(seed: int, batch: int, skips: tuple[str, ...], start: str) -> SAIB:
    torch.manual_seed(seed)
    block = SAIB(image_size=8, batch=batch, patch_size=4, skips=skips)
    for part in block.modules():
        if start == "Kaiming" and isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight)
    return block.double()


def smooth(seed: int, batch: int) -> torch.Tensor:
    noise = torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 3 * torch.nn.functional.avg_pool2d(noise, 3, 1, 1)


def measured(seed: int, batch: int, skips: tuple[str, ...], start: str) -> dict[str, float]:
    block, x = make(seed, batch, skips, start), smooth(seed, batch)
    gain = entropy_gain(block, x, is_mixing=True)
    found = {"total": gain.total.item(), "rescaling": gain.rescaling.item(), "rest": gain.rest.item()}
    if batch <= 4:  # all singular values of larger batches take too long here
        sigma = singular_values(block, x, is_mixing=True)[0]
        found |= {"share_below_one": (sigma < 1).double().mean().item(), "sigma_min": sigma.min().item()}
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for batch, seeds in ((4, SEEDS), (8, SEEDS // 2)):
        for start in STARTS:
            for words, skips in SKIPS.items():
                for seed in range(seeds):
                    found = measured(seed, batch, skips, start)
                    arm = f"{words}, {start}, {batch} images"
                    rows.append({"arm": arm, "seed": seed, "is_negative": float(found["total"] < 0), **found})
    counts = {
        words: {
            "cases": sum(row["arm"].startswith(words) for row in rows),
            "negative": int(sum(row["is_negative"] for row in rows if row["arm"].startswith(words))),
        }
        for words in SKIPS
    }
    content = {"setting": "nats per dimension; is_negative: share of cases", "rows": rows, "counts": counts}
    write("printed_block", "does the printed block expand?", content)
    print(counts)


if __name__ == "__main__":
    main()
