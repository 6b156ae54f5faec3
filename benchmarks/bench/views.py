"""What do two random views of a batch cost, here and elsewhere? All arms in turn in one run.

All do the same: random crop, mirror image, color jitter, gray, at 224 pixels also blur, normalize. Ours and kornia's
take a batch of uint8 with two threads; lightly's transform runs in a loader with two workers that live on, and its time
is a batch's share of a whole epoch; torchvision's transforms take image by image in the main process.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.images import pillow, textured
from benchmarks.bench.turns import Arm, ratios, seconds, summaries, take_turns
from iecl import parallel
from iecl.data.batch import Batch
from iecl.views.pipeline import Views, draw_views, make_views
from iecl.views.policies import POLICIES, ViewSpec
from iecl.views.transform import apply_by_tensors

SETTINGS = {"256 images of 32 px": (256, 32, "simclr-small"), "64 images of 224 px, with blur": (64, 224, "simclr")}
QUICK_SETTINGS = {"16 images of 32 px": (16, 32, "simclr-small"), "4 images of 64 px, with blur": (4, 64, "simclr")}
SIDES, QUICK_SIDES = (32, 64, 96, 128, 160, 192, 224), (32, 64)
GOALS = {
    "256 images of 32 px: kornia / ours": "at least 5",
    "256 images of 32 px: lightly, two workers / ours": "at least 12",
    "256 images of 32 px: torchvision v2 / ours": "at least 25",
    "64 images of 224 px, with blur: lightly, two workers / ours": "at least 2.5",
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
THREADS, ROUNDS, EPOCH, GROWING = 2, 7, 4, 64
"""EPOCH: batches of a loader's epoch. GROWING: images in a batch of each side."""


def measure(effort: Effort) -> Content:
    """Time of each library over ours at two sizes, and how ours grows with the side of the image."""
    settings, rounds = QUICK_SETTINGS if effort.is_quick else SETTINGS, effort.rounds_of(ROUNDS)
    content: Content = {
        "setting": f"two views; {THREADS} threads or two workers",
        "unit": "time over ours in the same round",
        "threads": THREADS,
        "results": {},
        "seconds": {},
    }
    for setting, (count, side, policy) in settings.items():
        times = take_turns(_arms_of(effort, count, side, policy), rounds)
        quotients = {f"{setting}: {name} / ours": values for name, values in ratios(times, "ours").items()}
        content["results"] |= effort.rows(quotients, GOALS)
        content["seconds"][setting] = summaries(times)
        effort.keep(content)
    content["more"] = {"Microseconds for two views of one image, by side, with blur": _growth(effort, rounds)}
    return content


def _growth(effort: Effort, rounds: int) -> Content:
    """All sides in turn."""
    count = 4 if effort.is_quick else GROWING
    batches = {side: _batch(count, side) for side in (QUICK_SIDES if effort.is_quick else SIDES)}
    arms = {
        f"{side} px": _arm(partial(_ours, batch, "simclr", side), 1 / (1e-6 * count)) for side, batch in batches.items()
    }
    return summaries(take_turns(arms, rounds))


def _batch(count: int, side: int) -> Batch:
    index = torch.arange(count)
    return Batch(textured(count, side, side), torch.full((count, 2), side), torch.full_like(index, -1), index, index)


def _arm(work: Callable[[], object], times: float = 1.0, threads: int = THREADS) -> Arm:
    """Seconds of some work with so many threads, times a number."""

    def turn() -> float:
        with parallel.threads(threads):
            return times * seconds(work)

    return turn


def _arms_of(effort: Effort, count: int, side: int, policy: str) -> dict[str, Arm]:
    batch = _batch(count, side)
    alone = 1 if side < 100 else THREADS  # on one small image a second thread only makes them slower
    normalize = v1.Normalize(MEAN, STD)
    tensors = v2.Compose([*_torchvision_steps(v2, policy, side), v2.ToDtype(torch.float32, scale=True), normalize])
    pil = v1.Compose([*_torchvision_steps(v1, policy, side), v1.ToTensor(), normalize])
    arms: dict[str, Arm] = {
        "ours": _arm(partial(_ours, batch, policy, side)),
        "ours, by tensor operations": _arm(partial(_by_tensors, batch, policy, side)),
        "bytes to floats only": _arm(partial(_floor, batch)),
        "torchvision v2": _arm(partial(_one_by_one, tensors, list(batch.images)), threads=alone),
        "torchvision v1 on PIL": _arm(partial(_one_by_one, pil, pillow(batch.images)), threads=alone),
    }
    for name, peer in {"kornia": _kornia_arm, "lightly, two workers": _lightly_arm}.items():
        try:
            arms[name] = peer(batch, policy, side)
        except ImportError as problem:
            effort.leave_out(name, problem)
    return arms


def _ours(batch: Batch, policy: str, side: int) -> Views:
    return make_views(batch, POLICIES[policy], ViewSpec(), size=side, mean=MEAN, std=STD, seed=0, epoch=0)


def _by_tensors(batch: Batch, policy: str, side: int) -> list[Tensor]:
    draws = draw_views(batch, POLICIES[policy], ViewSpec(), seed=0, epoch=0)
    return [apply_by_tensors(batch.images, drawn, side, MEAN, STD) for drawn in draws]


def _floor(batch: Batch) -> list[Tensor]:
    """Twice from bytes to floats and nothing else."""
    return [batch.images.float().div_(255) for _ in range(2)]


def _torchvision_steps(kit: Any, policy: str, side: int) -> list[Any]:
    """The policy in the words of torchvision, of either kind."""
    (chosen,) = POLICIES[policy]
    jitter = kit.ColorJitter(chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue)
    steps = [
        kit.RandomResizedCrop(side, scale=(chosen.scale[0], 1.0), antialias=True),
        kit.RandomHorizontalFlip(),
        kit.RandomApply([jitter], p=chosen.color_jitter_prob),
        kit.RandomGrayscale(chosen.grayscale_prob),
    ]
    if chosen.gaussian_blur_prob:
        blur = kit.GaussianBlur(2 * (side // 20) + 1, chosen.sigma)
        steps.append(kit.RandomApply([blur], p=chosen.gaussian_blur_prob))
    return steps


def _one_by_one(transform: Callable[[Any], Tensor], images: list[Any]) -> list[Tensor]:
    return [torch.stack([transform(image) for image in images]) for _ in range(2)]


def _kornia_arm(batch: Batch, policy: str, side: int) -> Arm:
    import kornia.augmentation as kit

    (chosen,) = POLICIES[policy]
    jitter = (chosen.brightness, chosen.contrast, chosen.saturation, chosen.hue)
    steps = [
        kit.RandomResizedCrop((side, side), scale=(chosen.scale[0], 1.0)),
        kit.RandomHorizontalFlip(),
        kit.ColorJitter(*jitter, p=chosen.color_jitter_prob),
        kit.RandomGrayscale(p=chosen.grayscale_prob),
    ]
    if chosen.gaussian_blur_prob:
        taps = 2 * (side // 20) + 1
        steps.append(kit.RandomGaussianBlur((taps, taps), chosen.sigma, p=chosen.gaussian_blur_prob))
    chain = kit.ImageSequential(*steps, kit.Normalize(torch.tensor(MEAN), torch.tensor(STD)))

    def work() -> None:
        images = batch.images.float().div_(255)
        chain(images), chain(images)

    return _arm(work)


class _Images(Dataset[list[Tensor]]):
    """The images of a batch again and again, as PIL has them, through a transform that gives two views."""

    def __init__(self, batch: Batch, transform: Callable[[Image.Image], list[Tensor]]) -> None:
        self.arrays = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transform

    def __len__(self) -> int:
        return EPOCH * len(self.arrays)

    def __getitem__(self, row: int) -> list[Tensor]:
        return self.transform(Image.fromarray(self.arrays[row % len(self.arrays)]))


def _lightly_arm(batch: Batch, policy: str, side: int) -> Arm:
    from lightly.transforms import SimCLRTransform

    (chosen,) = POLICIES[policy]
    transform = SimCLRTransform(
        input_size=side,
        cj_prob=chosen.color_jitter_prob,
        cj_bright=chosen.brightness,
        cj_contrast=chosen.contrast,
        cj_sat=chosen.saturation,
        cj_hue=chosen.hue,
        random_gray_scale=chosen.grayscale_prob,
        gaussian_blur=chosen.gaussian_blur_prob,
        sigmas=chosen.sigma,
    )
    loader = DataLoader(_Images(batch, transform), len(batch.index), num_workers=2, persistent_workers=True)
    return _arm(partial(list, loader), 1 / EPOCH)
