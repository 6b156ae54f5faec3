"""How fast is training as a whole beside the bare step and beside peers? Steps of all arms in turn, in one run.

    pip install lightly stable-pretraining && python -m benchmarks.end_to_end FOLDER [NETWORK ...]

FOLDER as for `benchmarks.cifar10`. `bare step` has its views ready: what `iecl` lacks of it is the price of input,
views, checks and records. The peers' input is their own (transforms, datasets, workers); their step is lightly's in
both cases, in a short loop without a trainer around it, channels-last as ours. Everything is in 32 bits and has all
threads of the machine; batches that peers' workers made while others had their turn are used up before the clock runs.
`memory`: pictures decoded before; `folder`: PNG files, from the second epoch on.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

from benchmarks.parity import OURS, FromLightly
from benchmarks.result import summary, write
from benchmarks.speed import part_of
from iecl.backbones import BACKBONES
from iecl.backbones.making import make_backbone
from iecl.console import ProgressLine
from iecl.data.resolve import resolve_data
from iecl.registry import Entry
from iecl.runs.directory import RunDirectory
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric, on_this_machine
from iecl.training.plan import make_plan, with_data
from iecl.views.making import make_views
from iecl.views.policies import POLICIES

BATCH, SIDE, ROUNDS, PER_CLASS = 256, 32, 5, 410
METHODS = ("simclr", "moco-v2", "byol", "simsiam")
STEPS = {"next to nothing": 8, "resnet10-w16": 2, "resnet18-small": 1}
"""Networks, and how many steps each arm takes in its turn."""
WORKERS = (0, 1, 2)
COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
Turn = Callable[[int], float]
"""Takes so many steps and returns their seconds."""


class NextToNothing(nn.Module):
    """Means of sixteen squares: a network that costs nothing beside its input."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.last = nn.AdaptiveAvgPool2d(4), nn.Linear(48, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        """Features of a batch."""
        return self.last(self.pool(x).flatten(1))


def our_loop(pictures: Path, name: str, network: str, scratch: Path) -> Loop:
    """A run of ours that is about to take its first step."""
    flags = {
        "data": {"name": str(pictures)},
        "backbone": {"name": network},
        "training": {"batch": BATCH, "precision": "32-true", "loggers": (), "epochs": 1000, "look_epochs": 0},
    }
    plan = make_plan(method=name, flags=flags, sets=[text for text in OURS[name] if text != "--set"])
    plan = with_data(plan, resolve_data(plan.data))
    plan = replace(plan, training=on_this_machine(plan.training))
    run = RunDirectory.fresh(Path(tempfile.mkdtemp(dir=scratch)) / "run")
    return Loop(make_fabric(plan.training, run.path), plan, run, ProgressLine(quiet=True))


def turn_of_ours(loop: Loop) -> Turn:
    """Whole steps: input, views, forward, backward, optimiser, checks, records."""

    def endless() -> Iterator[Any]:
        while True:
            yield from loop.begin_epoch()

    batches = endless()

    def turn(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            loop.optimise(batches)
        return time.perf_counter() - began

    return turn


def turn_of_bare_step(loop: Loop) -> Turn:
    """The same method and optimiser on views that are ready."""
    plan, clock = loop.plan, loop.clock(0)
    where = {"size": plan.data.image_size, "mean": plan.data.mean, "std": plan.data.std}
    batch = next(loop.begin_epoch())
    views = make_views(batch, POLICIES[plan.views.policy], loop.method.views, seed=0, epoch=0, **where)
    views = views.with_full(*(x.contiguous(memory_format=torch.channels_last) for x in views.full))

    def turn(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            sum(loop.method.step(views, clock).losses.values()).backward()
            loop.method.after_backward(clock)
            loop.optimiser.step()
            loop.optimiser.zero_grad(set_to_none=True)
            loop.method.after_step(clock)
        return time.perf_counter() - began

    return turn


def lightly_input(pictures: Path, source: str) -> Any:
    """Lightly's SimCLR views of a folder, or of decoded pictures."""
    from lightly.data import LightlyDataset
    from lightly.transforms import SimCLRTransform

    colours = {"cj_bright": 0.4, "cj_contrast": 0.4, "cj_sat": 0.4, "cj_hue": 0.1, "cj_strength": 1.0}
    transform = SimCLRTransform(input_size=SIDE, cj_prob=0.8, random_gray_scale=0.2, gaussian_blur=0.0, **colours)
    if source == "memory":
        return LightlyDataset.from_torch_dataset(InMemory(pictures), transform=transform)
    return LightlyDataset(str(pictures), transform=transform)


def stable_input(pictures: Path, source: str) -> Any:
    """The same views from stable-pretraining's transforms."""
    from stable_pretraining.data import FromTorchDataset, transforms

    view = transforms.Compose(
        transforms.RGB(),
        transforms.RandomResizedCrop((SIDE, SIDE), scale=(0.08, 1.0)),
        transforms.ColorJitter(**COLOURS, p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.ToImage(mean=(0.5,) * 3, std=(0.25,) * 3),
    )
    pair = transforms.MultiViewTransform([view, view])
    base = InMemory(pictures) if source == "memory" else ImageFolder(str(pictures))
    return FromTorchDataset(base, names=["image", "label"], transform=pair)


class InMemory(Dataset[tuple[Any, int]]):
    """Decoded pictures, as torchvision's CIFAR class gives them."""

    def __init__(self, pictures: Path) -> None:
        self.pairs = [(picture.copy(), label) for picture, label in ImageFolder(str(pictures))]
        self.transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture, label = self.pairs[index]
        return (picture if self.transform is None else self.transform(picture)), label


def first_two(batch: Any) -> tuple[Tensor, Tensor]:
    """The two views of a peer's batch."""
    if isinstance(batch, dict):
        one, other = (view["image"] for view in batch["views"])
        return one, other
    (one, other), *_ = batch
    return one, other


PEERS = {"lightly": lightly_input, "stable-pretraining": stable_input}


def turn_of_peer(dataset: Any, name: str, network: str, workers: int) -> Turn:
    """Their input, and lightly's step in a plain loop."""
    method = FromLightly(name, make_backbone(network, 0)).to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=workers > 0
    )

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def turn(steps: int) -> float:
        for _ in islice(batches, 2 * workers):  # what was made while others had their turn
            pass
        began = time.perf_counter()
        for _ in range(steps):
            views = (x.contiguous(memory_format=torch.channels_last) for x in first_two(next(batches)))
            loss = method(*views)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if len(method.slow):
                method.follow(0.99)
            loss.item()
        return time.perf_counter() - began

    return turn


def arms_of(pictures: Path, name: str, network: str, source: str, scratch: Path) -> dict[str, Turn]:
    """Everything that is compared for one method, network and kind of input."""
    arms = {"iecl": turn_of_ours(our_loop(pictures, name, network, scratch))}
    if source == "memory":
        arms["bare step"] = turn_of_bare_step(our_loop(pictures, name, network, scratch))
    for peer, dataset_of in PEERS.items():
        try:
            dataset = dataset_of(pictures, source)
        except ImportError as problem:
            print(f"without {peer}: {problem}")
            continue
        # With a network that takes seconds the number of workers decides nothing.
        for workers in WORKERS if network != "resnet18-small" else (1,):
            arms[f"{peer}, {workers} workers"] = turn_of_peer(dataset, name, network, workers)
    return arms


def measure(arms: dict[str, Turn], steps: int) -> dict[str, list[float]]:
    """Images a second of each arm, in turn; the first round is left out."""
    speeds: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(ROUNDS + 1):
        for arm, turn in arms.items():
            seconds = turn(steps)
            if number:
                speeds[arm].append(BATCH * steps / seconds)
    return speeds


def ratios(speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Ours beside the bare step, and beside each peer at its best number of workers, round by round."""
    made: dict[str, Any] = {}
    if "bare step" in speeds:
        made["of the bare step"] = summary([a / b for a, b in zip(speeds["iecl"], speeds["bare step"], strict=True)])
    for peer in PEERS:
        own = {arm: values for arm, values in speeds.items() if arm.startswith(peer)}
        if own:
            best = max(own, key=lambda arm: sorted(own[arm])[len(own[arm]) // 2])
            made[f"over {best}"] = summary([a / b for a, b in zip(speeds["iecl"], own[best], strict=True)])
    return made


def main(data: str, networks: list[str]) -> None:
    BACKBONES["next to nothing"] = Entry("benchmarks.end_to_end:NextToNothing", "for this benchmark")
    rows = []
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        pictures = part_of(Path(data), scratch / "pictures", PER_CLASS)
        for network in networks or list(STEPS):
            for name in METHODS if network != "resnet18-small" else METHODS[:1]:
                for source in ("memory", "folder") if network == "next to nothing" else ("memory",):
                    speeds = measure(arms_of(pictures, name, network, source, scratch), STEPS[network])
                    row = {"method": name, "network": network, "input": source, "ratios": ratios(speeds)}
                    rows.append(row | {"images_per_second": {arm: summary(own) for arm, own in speeds.items()}})
                    print(
                        row["method"], network, source, {k: v["median"] for k, v in row["ratios"].items()}, flush=True
                    )
                    setting = f"{10 * PER_CLASS:,} pictures of {SIDE} px, batch {BATCH}, 32 bits, arms in turn"
                    write("end_to_end", "how fast is training as a whole?", {"setting": setting, "speeds": rows})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
