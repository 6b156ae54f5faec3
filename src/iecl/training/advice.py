"""From what a probe measured to what a run will take, what to choose, and what to beware of. No torch, no clock."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from iecl.training.config import RunConfig

ROOM = 0.8
"""Share of the free memory that a run is advised to take at most."""
KNN_IMAGES = 2048
"""Training images that the online kNN looks at."""
FEW = 10_000
"""Images below which a run is advised to start from weights: see `benchmarks/studies/from-weights-*.toml`."""
KEPT = 3
"""Checkpoints that stay: last, previous and best; one more is there while it is written."""


def forecast(measured: Mapping[str, Any], config: RunConfig, batch: int) -> dict[str, Any]:
    """Time, memory and disk of a run with this batch."""
    rows, training, images = measured["rows"], config.training, measured["images"]
    steps = max(1, images // (batch * training.grad_accumulation))
    step = _at({0: 0.0} | {row["batch"]: mean(row["steps"]) for row in rows}, batch)
    if measured["decode_seconds"] and config.data.num_workers:  # the first steps live on what workers decoded ahead
        step = max(step, batch * training.grad_accumulation * measured["decode_seconds"] / config.data.num_workers)
    last = rows[-1]
    before = last["before"] * images / measured["opened"]
    knn = measured["knn_seconds"] * min(KNN_IMAGES, images)
    times = training.epochs // training.online_eval_epochs if training.online_eval_epochs else 0
    saves = 1 + (steps // training.checkpoint_steps if training.checkpoint_steps else 0)
    epoch = before + steps * step + saves * measured["save_seconds"]
    start = measured["open_seconds"] + max(0.0, last["first"] - mean(last["steps"]))
    return {
        "batch": batch,
        "is_measured": any(row["batch"] == batch for row in rows),
        "steps_per_epoch": steps,
        "step_seconds": step,
        "images_per_second": batch * training.grad_accumulation / step,
        "epoch_seconds": epoch + (knn * times / training.epochs),
        "seconds": start + training.epochs * epoch + knn * (times + bool(times)),
        "memory_megabytes": round(memory_at(measured, batch)),
        "disk_megabytes": _disk(measured, config, steps),
    }


def memory_at(measured: Mapping[str, Any], batch: int) -> float:
    """The most that one process will hold, to 50 MB: the base varies by a few from one process to the next."""
    exact: float = measured["fixed_megabytes"] + batch / measured["processes"] * measured["image_megabytes"]
    return 50.0 * round(exact / 50)


def _at(values: Mapping[int, float], batch: int) -> float:
    """The value at a batch: measured, else on the line through the two largest sizes, never below the least one.

    >>> _at({8: 2.0, 16: 3.0}, 32), _at({0: 1.0, 8: 2.0}, 4)
    (5.0, 1.5)
    """
    if batch in values:
        return values[batch]
    (few, low), (many, high) = sorted(values.items())[-2:]
    slope = max(0.0, (high - low) / (many - few))
    return max(high + slope * (batch - many), min(values.values()))


def _disk(measured: Mapping[str, Any], config: RunConfig, steps: int) -> float:
    training = config.training
    rows = training.epochs * (steps / training.log_steps + 1)
    logs = measured["metrics_megabytes"] * rows * (1 + len(training.loggers))  # a logger writes about the same again
    count = KEPT + 1 + len(training.kept_epochs())
    return float(count * measured["checkpoint_megabytes"] + measured["weights_megabytes"] + logs)


def suggested_batch(measured: Mapping[str, Any], config: RunConfig) -> tuple[int, str]:
    """The configured batch, or the nearest that memory, data and method allow; and why."""
    asked, images, free = config.training.batch_size, measured["images"], measured["free_megabytes"]
    if asked * config.training.grad_accumulation > images:
        batch = 2 ** ((images // config.training.grad_accumulation).bit_length() - 1)
        return max(2, batch), f"{images:,} images do not fill a batch of {asked:,}"
    if asked < measured["least_batch"]:
        return measured["least_batch"], f"{config.title} needs {measured['least_batch']}"
    batch = asked
    while free and memory_at(measured, batch) > ROOM * free and batch // 2 >= max(2, measured["least_batch"]):
        batch //= 2
    if batch < asked:
        return batch, f"{asked:,} would take {memory_at(measured, asked):,.0f} MB of {free:,} MB that are free"
    return asked, "as planned: it fits"


def suggested_workers(measured: Mapping[str, Any], config: RunConfig, cores: int) -> tuple[int, str]:
    """How many processes should decode; and why."""
    if measured["is_in_memory"]:
        return config.data.num_workers, "images are kept in memory: workers only decode them once, at the start"
    rows = measured["rows"]
    per_image = mean(rows[-1]["steps"]) / (rows[-1]["batch"] * config.training.grad_accumulation)
    wanted = -int(-measured["decode_seconds"] // per_image)
    count = min(max(1, wanted), cores)
    decoding = f"an image takes {1000 * measured['decode_seconds']:.1f} ms to decode"
    words = f"{decoding} and {1000 * per_image:.1f} ms to train on"
    return count, words + (f"; {wanted} would keep up, there are {cores} cores" if wanted > cores else "")


def warnings_for(measured: Mapping[str, Any], config: RunConfig) -> list[str]:
    """What speaks against the configuration, in words."""
    found, batch, side = [], config.training.batch_size, measured["image_side"]
    if batch * config.training.grad_accumulation > measured["images"]:
        found.append(f"a batch of {batch:,} is more than the {measured['images']:,} images there are: it cannot train")
    if batch < measured["least_batch"]:
        found.append(f"{config.title} needs at least {measured['least_batch']} images, the batch has {batch}")
    elif (small := measured["small_batch"]) and batch < small["below"]:
        found.append(f"a batch of {batch} is small for {config.title}: {small['reason']}")
    if config.data.image_size > side:
        found.append(
            f"views of {config.data.image_size} px are larger than the images, whose shorter side is {side:g} px: "
            "they are enlarged, which costs time and shows nothing new"
        )
    if measured["images"] < FEW:
        found.append(
            f"{measured['images']:,} images are few to learn from alone: start from weights, "
            "with iecl pretrain --from imagenet or --from FILE"
        )
    memory, free = memory_at(measured, batch), measured["free_megabytes"]
    if free and memory > free:
        found.append(f"it would take {memory:,.0f} MB of memory, {free:,} MB are free")
    return found
