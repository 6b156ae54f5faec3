"""What nobody asked for: chosen by the images and the machine, and said in one line each with the flag that changes it.

What was typed is never changed. A recipe keeps what it says, but for a batch that the images do not fill. Free of
torch: who calls brings what was measured.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from iecl.console import counted, duration
from iecl.data.defaults import resolve_data
from iecl.errors import UserError
from iecl.training.config import RunConfig, with_data

BY_TIME = frozenset({"training.epochs", "backbone.name", "data.image_size"})
"""What is chosen by how long it takes."""
LIMIT = 1500.0
"""Seconds that a run is meant to take where there is no GPU: with what comes before and after it, half an hour."""
ENOUGH = 20
"""Epochs that a network should get within the limit; with fewer a smaller one is taken."""
EPOCHS = (400, 200, 100, 50, 30, 20, 10, 5, 3, 2, 1)
STEPS = 1000
"""Steps that a run without a GPU should have: batches are halved and epochs added until it has, as far as both go."""
LEAST_BATCH = 64
"""Where that ends: fewer negatives teach less."""
CPU_SIDE = 64
"""Largest view that is chosen without a GPU. One run each on 200 photographs, kNN: resnet10-w32 with 64 px 46.0 % after
6 minutes of a core, ResNet-18 with 64 px 42.0 % after 8, with 128 px 32.3 % after 27; untrained 29 to 31 %."""
SMALL = ("resnet18-small", "resnet10-w32", "resnet10-w16")
"""Networks without a GPU, the dearest first; beyond 32 px the first would be too dear."""
BUSY = 1.5
"""From here on the machine is called busy."""
ROOM = 0.8
"""Share of the free memory that a chosen batch may take."""
SURE = 1.25
"""Beyond this share of the free memory a run is refused: forecasts are within a fifth of the truth."""


class Expected(Protocol):
    """What is known of a run's cost before it starts; seconds are those of an idle machine."""

    @property
    def busy(self) -> float:
        """How many times as long everything takes now."""

    def epoch_seconds(self, config: RunConfig, images: int) -> float:
        """Seconds of an epoch."""

    def start_seconds(self, config: RunConfig, images: int) -> float:
        """Seconds before the first step."""

    def megabytes(self, config: RunConfig, images: int) -> float:
        """The most memory that one process will hold."""

    def disk_megabytes(self) -> float:
        """What the run directory will take at most."""


T = TypeVar("T", bound=Expected)


@dataclass(frozen=True)
class Said:
    """Settings, as `section.key`, that are not to be chosen."""

    typed: frozenset[str]
    fixed: frozenset[str]
    """These, and what the recipe says."""

    @classmethod
    def of(cls, recipe: Mapping[str, Any], given: Mapping[str, Any]) -> "Said":
        """What somebody typed, and what the recipe says; auto, and 0 for a size, is no answer."""
        typed, written = (
            {
                f"{section}.{key}"
                for section, table in values.items()
                for key, value in table.items()
                if not _is_open(section, key, value)
            }
            for values in (given, recipe)
        )
        return cls(frozenset(typed), frozenset(typed | written))


def _is_open(section: str, key: str, value: Any) -> bool:
    return value == "auto" or (value == 0 and (section, key) in (("data", "image_size"), ("training", "devices")))


def with_batch(config: RunConfig, said: Said, images: int, least: int = 2) -> RunConfig:
    """The configuration with a batch that these images fill.

    A chosen one is a power of two and at most half of the images, so that it is filled even if half of them cannot be
    read; where more than that is unreadable the run ends anyway. One that was typed stays.

    Raises:
        UserError: the method needs more images than there are.
    """
    training = config.training
    asked, group = training.batch_size, training.grad_accumulation
    if "training.batch_size" in said.typed:
        return config
    world = max(1, training.devices) * training.nodes
    if world > images:
        where, do = "--devices", f"give {images} or less"
        raise UserError(f"{counted(images, 'image')} cannot be shared out to {world} processes", where=where, do=do)
    half = max(2, images // (2 * group))
    if least <= asked <= half and asked % world == 0:
        return config
    share = max(1, min(asked, half) // world)
    batch = max(2 ** (share.bit_length() - 1) * world, least)
    if batch * group > images:
        raise UserError(
            f"{config.title} needs batches of {max(least, world):,}, there are {images:,} images",
            where="--data",
            do="give more images, or choose another --method",
        )
    return replace(config, training=replace(training, batch_size=max(2, batch)))


def check_batch(config: RunConfig, images: int) -> None:
    """Raise a `UserError` if the images do not fill one optimizer step."""
    asked, group = config.training.batch_size, config.training.grad_accumulation
    if asked * group > images:
        do = f"give {max(2, images // group)} or less, or leave it out"
        raise UserError(f"{images:,} images do not fill a batch of {asked * group:,}", where="--batch-size", do=do)


def check_memory(config: RunConfig, images: int, cost: Expected, free: int) -> None:
    """Raise a `UserError` if a run needs far more memory than there is."""
    need = max(1, config.training.devices) * cost.megabytes(config, images)
    if free and need > SURE * free:
        do = "give a smaller --batch-size or --image-size, --set training.gradient_checkpointing=true, "
        do += "or --set training.grad_cache=N for N images in the backbone at a time"
        raise UserError(f"it would take about {need:,.0f} MB of memory, {free:,} MB are free", do=do)


def rungs(config: RunConfig, said: Said) -> Iterator[RunConfig]:
    """A configuration as it was given, with each network and image size that may be chosen, the costliest first."""
    side = resolve_data(config.data).image_size
    sides = (
        [side] if "data.image_size" in said.fixed else sorted({min(side, CPU_SIDE), *(s for s in (64, 32) if s < side)})
    )
    for own in reversed(sides):
        data = resolve_data(replace(config.data, image_size=own))
        names = SMALL[1:] if own > 32 else SMALL if own == side else SMALL[2:]
        if own > CPU_SIDE:  # by somebody's wish
            names = ("resnet18",)
        if "backbone.name" in said.fixed:
            names = (config.backbone.name,)
        for name in names:
            backbone = replace(config.backbone, name=name)
            yield with_data(replace(config, backbone=backbone), data)


def depends_on_time(config: RunConfig, said: Said) -> bool:
    """Whether there is more than one possible network, size and length for a configuration as it was given."""
    return "training.epochs" not in said.fixed or len(list(rungs(config, said))) > 1


def within_limit(
    config: RunConfig, said: Said, images: int, measure: Callable[[RunConfig], T | None]
) -> tuple[RunConfig, T | None]:
    """The largest network, size of views and number of epochs that end within the limit, of those to be chosen.

    Args:
        config: the configuration as it was given.
        said: what is not to be chosen.
        images: to train on.
        measure: tries steps of a configuration; None: they cannot be tried, and all stays as it is.

    Returns:
        The configuration, and what its steps cost.
    """
    is_open = "training.epochs" not in said.fixed
    wanted = min(ENOUGH, config.training.epochs) if is_open else config.training.epochs
    fitting, seconds, cost = config, 0.0, None
    for tried in rungs(config, said):
        cost = measure(tried)
        if cost is None:
            return with_data(config, resolve_data(config.data)), None
        fitting, seconds = tried, cost.epoch_seconds(tried, images)
        if wanted * seconds <= LIMIT:
            break
    if not is_open:
        return fitting, cost
    most = max(config.training.epochs, STEPS * LEAST_BATCH // images)
    epochs = next((n for n in EPOCHS if n <= most and n * seconds <= LIMIT), 1)
    return with_steps(replace(fitting, training=replace(fitting.training, epochs=epochs)), said, images), cost


def with_steps(config: RunConfig, said: Said, images: int) -> RunConfig:
    """The configuration with a smaller batch where it would have few steps, and nobody says which batch."""
    batch, world = config.training.batch_size, max(1, config.training.devices) * config.training.nodes
    while batch // 2 >= LEAST_BATCH and images // batch * config.training.epochs < STEPS and batch // 2 % world == 0:
        batch //= 2
    if "training.batch_size" in said.fixed:
        return config
    return replace(config, training=replace(config.training, batch_size=batch))


def within_memory(config: RunConfig, said: Said, images: int, cost: Expected, free: int, least: int) -> RunConfig:
    """The configuration with a batch that fits into the free memory, where the batch is to be chosen."""
    need = cost.megabytes(config, images)
    world = max(1, config.training.devices)
    while free and world * need > ROOM * free and "training.batch_size" not in said.typed:
        half = config.training.batch_size // 2
        if half < max(2, least, world) or half % world:
            break
        config = replace(config, training=replace(config.training, batch_size=half))
        need = cost.megabytes(config, images)
    return config


def choice_lines(config: RunConfig, said: Said, images: int, machine: str, in_memory: float) -> list[str]:
    """One line for each thing that was chosen, with the flag that changes it; `in_memory` are MB of images kept."""
    data, training, optimizer = config.data, config.training, config.optimizer
    steps = max(1, images // (training.batch_size * training.grad_accumulation))
    warmup = optimizer.warmup_steps(steps, steps * training.epochs) / steps
    kept = f"all images, {in_memory:,.0f} MB" if in_memory else "no image, they are decoded in each epoch"
    rows = {
        "data.image_size": ("image size", f"{data.image_size} px", "--image-size"),
        "backbone.name": ("backbone", config.backbone.name, "--backbone"),
        "training.batch_size": ("batch size", f"{training.batch_size}", "--batch-size"),
        "training.epochs": ("epochs", f"{training.epochs}", "--epochs"),
        "optimizer.warmup_epochs": (
            "warm-up",
            f"{warmup:.2g} epoch{'' if warmup == 1 else 's'}",
            "--set optimizer.warmup_epochs=N",
        ),
        "training.precision": ("precision", training.precision, "--precision"),
        "data.num_workers": ("workers", f"{data.num_workers}", "--workers"),
        "data.cache_megabytes": ("kept in memory", kept, "--set data.cache_megabytes=N"),
    }
    shown = [row for name, row in rows.items() if name not in said.typed]
    if not shown:
        return []
    width = max(len(value) for _, value, _ in shown)
    return [
        f"chosen for {counted(images, 'image')}, {machine}; each line ends with the flag that changes it:",
        *(f"  {what:<14}  {value:<{width}}  {flag}" for what, value, flag in shown),
    ]


def estimate_lines(config: RunConfig, images: int, cost: Expected, free: int) -> list[str]:
    """What the run will take, on one line, and on another how to make it shorter if it takes hours."""
    epoch = cost.busy * cost.epoch_seconds(config, images)
    seconds = cost.busy * cost.start_seconds(config, images) + epoch * config.training.epochs
    memory, processes = cost.megabytes(config, images), max(1, config.training.devices)
    each = f" in each of {processes} processes" if processes > 1 else ""
    busy = " while others use this machine too" if cost.busy > BUSY else ""
    left = f" ({free:,} MB are free)" if free else ""
    lines = [
        f"estimate: about {_about(seconds)}{busy}, {memory:,.0f} MB of memory{each}{left}, "
        f"{cost.disk_megabytes():,.0f} MB on disk; iecl plan tries more steps and says more"
    ]
    if seconds > 2 * LIMIT:
        epochs = next((n for n in EPOCHS if n * epoch <= LIMIT), 1)
        shorter = f"--epochs {epochs} takes about {_about(epochs * epoch)}"
        lower = "a smaller --image-size or --backbone takes less"
        lines.append(f"this is long: {shorter if epochs < config.training.epochs else lower}")
    return lines


def _about(seconds: float) -> str:
    """A length of time in whole minutes from two minutes on: an estimate is no better than that."""
    return duration(60 * round(seconds / 60) if seconds >= 120 else seconds).removesuffix(" 0 s")
