"""What do two random views of a batch cost, here and elsewhere? All arms in turn in one run, on an idle machine.

    python -m benchmarks.views

All do the same: random crop, mirror image, colour jitter, grey, at 224 pixels also blur, normalise. Ours and kornia's
take a batch of uint8 with two threads; lightly's transform runs in a loader with two workers that live on, and its time
is a batch's share of a whole epoch; torchvision's transforms take picture by picture in the main process. A peer that
is not installed is left out with a line.
"""

import os
import time
from collections.abc import Callable
from functools import partial

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from benchmarks.result import summary, write
from benchmarks.stepping import ratios
from iecl.data.batch import Batch
from iecl.views.apply import apply_by_tensors
from iecl.views.making import draw_views, make_views
from iecl.views.policies import POLICIES, ViewPlan

SETTINGS = {"256 pictures of 32 px": (256, 32, "simclr-small"), "64 pictures of 224 px, with blur": (64, 224, "simclr")}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
THREADS, REPEATS, EPOCH = 2, 7, 4
"""EPOCH: batches of a loader's epoch."""
SIDES = (32, 64, 96, 128, 160, 192, 224)
Arm = Callable[[], float]


def made(count: int, side: int) -> Batch:
    """Smooth pictures with some noise, which compress and filter like photographs and not like noise alone."""
    drawn = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 8, 8, generator=drawn)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=False)
    noisy = smooth + 0.05 * torch.randn(smooth.shape, generator=drawn)
    images = (noisy.clamp(0, 1) * 255).to(torch.uint8)
    index = torch.arange(count)
    return Batch(images, torch.full((count, 2), side), torch.full_like(index, -1), index, index)


def timed(work: Callable[[], object], batches: int = 1, threads: int = THREADS) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / batches


def floor(batch: Batch) -> list[Tensor]:
    """Twice from bytes to floats and nothing else."""
    return [batch.images.float().div_(255) for _ in range(2)]


def by_tensors(batch: Batch, policy: str, side: int) -> list[Tensor]:
    draws = draw_views(batch, POLICIES[policy], ViewPlan(), seed=0, epoch=0)
    return [apply_by_tensors(batch.images, drawn, side, MEAN, STD) for drawn in draws]


def ours(batch: Batch, policy: str, side: int) -> object:
    return make_views(batch, POLICIES[policy], ViewPlan(), size=side, mean=MEAN, std=STD, seed=0, epoch=0)


def torchvision_steps(kit: object, policy: str, side: int) -> list[Callable[[object], object]]:
    """The policy in the words of torchvision, of either kind."""
    (chosen,) = POLICIES[policy]
    jitter = kit.ColorJitter(chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue)
    steps = [
        kit.RandomResizedCrop(side, scale=(chosen.crop_low, 1.0), antialias=True),
        kit.RandomHorizontalFlip(),
        kit.RandomApply([jitter], p=chosen.jitter),
        kit.RandomGrayscale(chosen.grey),
    ]
    if chosen.blur:
        blur = kit.GaussianBlur(2 * (side // 20) + 1, (chosen.blur_low, chosen.blur_high))
        steps.append(kit.RandomApply([blur], p=chosen.blur))
    return steps


def one_by_one(transform: Callable[[object], Tensor], pictures: list[object]) -> list[Tensor]:
    return [torch.stack([transform(picture) for picture in pictures]) for _ in range(2)]


def kornia_arm(batch: Batch, policy: str, side: int) -> Arm:
    import kornia.augmentation as kit

    (chosen,) = POLICIES[policy]
    jitter = (chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue)
    steps = [
        kit.RandomResizedCrop((side, side), scale=(chosen.crop_low, 1.0)),
        kit.RandomHorizontalFlip(),
        kit.ColorJitter(*jitter, p=chosen.jitter),
        kit.RandomGrayscale(p=chosen.grey),
    ]
    if chosen.blur:
        taps = 2 * (side // 20) + 1
        steps.append(kit.RandomGaussianBlur((taps, taps), (chosen.blur_low, chosen.blur_high), p=chosen.blur))
    chain = kit.ImageSequential(*steps, kit.Normalize(torch.tensor(MEAN), torch.tensor(STD)))

    def work() -> None:
        pictures = batch.images.float().div_(255)
        chain(pictures), chain(pictures)

    return partial(timed, work)


class Pictures(Dataset[list[Tensor]]):
    """The pictures of a batch again and again, as PIL has them, through a transform that gives two views."""

    def __init__(self, batch: Batch, transform: Callable[[Image.Image], list[Tensor]]) -> None:
        self.arrays = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transform

    def __len__(self) -> int:
        return EPOCH * len(self.arrays)

    def __getitem__(self, row: int) -> list[Tensor]:
        return self.transform(Image.fromarray(self.arrays[row % len(self.arrays)]))


def lightly_arm(batch: Batch, policy: str, side: int) -> Arm:
    from lightly.transforms import SimCLRTransform

    (chosen,) = POLICIES[policy]
    transform = SimCLRTransform(
        input_size=side,
        cj_prob=chosen.jitter,
        cj_bright=chosen.brightness,
        cj_contrast=chosen.contrast,
        cj_sat=chosen.saturation,
        cj_hue=chosen.hue,
        random_gray_scale=chosen.grey,
        gaussian_blur=chosen.blur,
        sigmas=(chosen.blur_low, chosen.blur_high),
    )
    loader = DataLoader(Pictures(batch, transform), len(batch.index), num_workers=2, persistent_workers=True)
    return partial(timed, partial(list, loader), EPOCH)


def arms_of(count: int, side: int, policy: str) -> dict[str, Arm]:
    batch = made(count, side)
    alone = 1 if side < 100 else THREADS  # on one small picture a second thread only makes them slower
    normalise = v1.Normalize(MEAN, STD)
    tensors = [*torchvision_steps(v2, policy, side), v2.ToDtype(torch.float32, scale=True), normalise]
    pil = v1.Compose([*torchvision_steps(v1, policy, side), v1.ToTensor(), normalise])
    pictures = [Image.fromarray(x) for x in batch.images.permute(0, 2, 3, 1).contiguous().numpy()]
    arms: dict[str, Arm] = {
        "ours": partial(timed, partial(ours, batch, policy, side)),
        "ours, by tensor operations": partial(timed, partial(by_tensors, batch, policy, side)),
        "bytes to floats only": partial(timed, partial(floor, batch)),
        "torchvision v2": partial(timed, partial(one_by_one, v2.Compose(tensors), list(batch.images)), threads=alone),
        "torchvision v1 on PIL": partial(timed, partial(one_by_one, pil, pictures), threads=alone),
    }
    for name, peer in {"kornia": kornia_arm, "lightly, two workers": lightly_arm}.items():
        try:
            arms[name] = peer(batch, policy, side)
        except ImportError as error:
            print(f"left out: {name} ({error})")
    return arms


def main() -> None:
    results, seconds = {}, {}
    for setting, (count, side, policy) in SETTINGS.items():
        arms = arms_of(count, side, policy)
        times: dict[str, list[float]] = {name: [] for name in arms}
        for repeat in range(REPEATS + 1):
            for name, arm in arms.items():
                taken = arm()
                if repeat:  # the first round starts workers and compiles
                    times[name].append(taken)
        results |= {f"{setting}: {name} / ours": summary(values) for name, values in ratios(times, "ours").items()}
        seconds[setting] = {name: summary(values) for name, values in times.items()}
        print(setting, {name: f"{1000 * row['median']:.4g} ms" for name, row in seconds[setting].items()})
    content = {
        "setting": f"two views; {THREADS} threads or two workers",
        "unit": "time over ours in the same round",
        "results": results,
        "seconds": seconds,
        "growth": growth(),
        "load_of_the_machine_at_the_end": os.getloadavg()[0],
    }
    write("views", "what do two random views of a batch cost, here and elsewhere?", content)


def growth() -> dict[str, object]:
    """Microseconds for two views of one picture, by side, all sides in turn."""
    batches = {side: made(64, side) for side in SIDES}
    times: dict[int, list[float]] = {side: [] for side in SIDES}
    for _ in range(REPEATS):
        for side, batch in batches.items():
            times[side].append(timed(partial(ours, batch, "simclr", side), len(batch.index)) * 1e6)
    return {f"{side} px": summary(values) for side, values in times.items()}


if __name__ == "__main__":
    main()
