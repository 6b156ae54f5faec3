"""From a configuration with choices left open to one that this machine can train: what is tried, chosen and said."""

from dataclasses import replace

import torch

from iecl.console import ProgressLine, counted
from iecl.errors import TrainingError
from iecl.launch import usable_cores
from iecl.training.choices import (
    Said,
    check_memory,
    choice_lines,
    depends_on_time,
    estimate_lines,
    with_batch,
    within_limit,
    within_memory,
)
from iecl.training.config import RunConfig
from iecl.training.machine import free_memory, on_this_machine
from iecl.training.trial import Trial, kept_megabytes, try_steps


def fit(
    given: RunConfig, config: RunConfig, said: Said, images: int, line: ProgressLine, *, is_checked: bool
) -> tuple[RunConfig, list[str]]:
    """The configuration with every choice made, and what to say of it; `given` is the same with none made.

    Without a GPU a network, a size of views and a number of epochs are chosen that end within half an hour; with one
    they stay what they are. What cannot be tried is not predicted: the run itself will say what is wrong.

    Raises:
        UserError: it `is_checked`, and needs far more memory than is free.
    """
    training = on_this_machine(config.training)
    config, given = replace(config, training=training), replace(given, training=training)
    device = torch.device(config.training.accelerator)
    free = free_memory(device)
    line.show("trying a few steps")
    if device.type == "cpu" and depends_on_time(given, said):
        config, cost = within_limit(given, said, images, _try)
    else:
        cost = _try(config)
    if "data.cache_megabytes" not in said.fixed and device.type == "cpu" and free:
        config = replace(config, data=replace(config.data, cache_megabytes=min(config.data.cache_megabytes, free // 4)))
    if cost is not None:
        config = with_batch(config, said, images, cost.least_batch)
        config = within_memory(config, said, images, cost, free, cost.least_batch)
        if is_checked:
            check_memory(config, images, cost, free)
    names = {"cpu": "no GPU", "cuda": "a GPU", "mps": "Apple's GPU"}
    machine = f"{counted(usable_cores(), 'core')} and {names[device.type]}"
    lines = choice_lines(config, said, images, machine, kept_megabytes(config, images))
    return config, lines + ([] if cost is None else estimate_lines(config, images, cost, free))


def _try(config: RunConfig) -> Trial | None:
    try:
        return try_steps(config)
    except (TrainingError, RuntimeError, MemoryError, OSError):
        return None
