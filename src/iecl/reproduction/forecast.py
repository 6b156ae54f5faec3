"""What an exhibit takes on this machine, from two steps of each kind of run with made-up images of the right shape."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from iecl.console import ProgressLine, duration, log_to_terminal, plain_table
from iecl.data.cache import cache_folder
from iecl.data.datasets import FACTS
from iecl.data.defaults import count_images
from iecl.errors import UserError
from iecl.files import read_json
from iecl.launch import usable_cores
from iecl.reproduction.exhibit import STEPS
from iecl.reproduction.plan import Wish, cells_of
from iecl.runs.directory import write_json
from iecl.studies.cell import Cell, Datasets, short_hash
from iecl.training.config import RunConfig

SHARES = 4
"""A weight, its gradient and two moments of the optimizer."""


def _file() -> Path:
    return cache_folder() / f"reproduce-{usable_cores()}-cores.json"


def key_of(config: RunConfig) -> str:
    """What decides how long an image takes and what it needs: everything but weights, rates and other fractions."""
    sections = {name: getattr(config, name) for name in ("augmentation", "backbone", "saib", "objective")}
    values: dict[str, Any] = {name: asdict(one) for name, one in sections.items()} | {"method": dict(config.method)}
    kept = {name: {k: v for k, v in table.items() if not isinstance(v, float)} for name, table in values.items()}
    training = [config.optimizer.name, config.training.batch_size, config.data.image_size, config.data.decode_size]
    return short_hash([kept, training])


def images_of(config: RunConfig) -> int:
    """How many images there are to train on; a named dataset knows it without being there."""
    facts = FACTS.get(config.data.name)
    return facts.pretrain if facts else count_images(config.data)


def try_out(wish: Wish, quiet: bool = True) -> dict[str, Any]:
    """Build every kind of run of an exhibit and take two steps with it; what was measured is remembered for `expect`.

    Raises:
        UserError: a setting is wrong. A kind that cannot be built is a row with its error.
    """
    from iecl.training.machine import on_this_machine
    from iecl.training.trial import try_steps

    rows, datasets, known, kinds = [], Datasets(), read_json(_file()), dict[str, str]()
    with log_to_terminal(quiet), ProgressLine(quiet) as line:
        cells = cells_of(wish.panels())
        for (column, place), cell in cells.items():
            config = cell.config(datasets)
            key = key_of(config)
            if key in kinds:
                continue
            kinds[key] = name = ", ".join(filter(None, (place.arm, column)))
            line.show(f"trying {name}", len(kinds) / len(cells))
            row = {"row": name, "backbone": config.backbone.name, "image_size": config.data.image_size}
            row["batch_size"] = config.training.batch_size
            images, fake = images_of(config), replace(config.data, name="digits", num_workers=0, root="")
            ready = replace(config, data=fake, training=on_this_machine(config.training))
            real = replace(ready, data=replace(config.data, num_workers=0))
            try:
                trial = try_steps(ready)
            except (UserError, RuntimeError, MemoryError) as problem:
                rows.append(row | {"error": str(problem)})
                continue
            weights = weight_bytes(ready)
            more = SHARES * max(0, weights - trial.weights) / 2**20  # a block that grows with the batch
            known[key] = {
                "megabytes": round(trial.megabytes(real, images) + more),
                "seconds": trial.seconds,
                "look": trial.look_seconds,
            }
            rows.append(row | known[key] | {"epoch": trial.epoch_seconds(real, images), "weights": weights})
            _file().parent.mkdir(parents=True, exist_ok=True)
            write_json(_file(), known)
    made: dict[str, Any] = {"exhibit": wish.exhibit.name, "scale": wish.scale, "rows": rows, "text": _table(rows)}
    is_kept = wish.exhibit.kind not in STEPS and not any("error" in row for row in rows)
    made["disk_megabytes"] = room_of([cell.config(datasets) for cell in cells.values()]) if is_kept else 0
    return made | expect(wish)


def weight_bytes(config: RunConfig) -> int:
    """Of all weights and buffers of a method, with the block for the whole batch."""
    from iecl.training.factory import sketch_method

    method = sketch_method(config)
    return sum(t.numel() * t.element_size() for t in (*method.parameters(), *method.buffers()))


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["row", "backbone", "px", "batch", "weights", "memory at this batch", "an epoch takes"]
    body = []
    for row in rows:
        start = [row["row"], row["backbone"], str(row["image_size"]), f"{row['batch_size']:,}"]
        if "error" in row:
            body.append([*start, "", "", f"failed: {row['error']}"])
        else:
            size = [f"{row['weights'] / 2**20:,.0f} MB", f"{row['megabytes']:,} MB"]
            body.append([*start, *size, duration(row["epoch"])])
    return plain_table(head, body)


def expect(wish: Wish) -> dict[str, Any]:
    """Cells of an exhibit, and what all of them will take; hours and memory are None where nothing was tried yet."""
    try:
        panels, datasets = wish.panels(), Datasets()
        seeds = panels[0].study.settings.seeds
        cells = [cell for (_, place), cell in cells_of(panels).items() if place.seed == seeds[0]]
        configs = [(cell, cell.config(datasets)) for cell in cells]
    except UserError as problem:
        return {"cells": 0, "hours": None, "gigabytes": None, "missing": str(problem)}
    known = read_json(_file())
    found = [(known.get(key_of(config)), cell, config) for cell, config in configs]
    times = 1 if wish.exhibit.kind in STEPS else len(seeds)
    if any(one is None for one, _, _ in found):
        return {"cells": times * len(found), "hours": None, "gigabytes": None}
    seconds = times * sum(_seconds(one, cell, config, wish) for one, cell, config in found if one is not None)
    most = max(one["megabytes"] for one, _, _ in found if one is not None)
    return {"cells": times * len(found), "hours": seconds / 3600, "gigabytes": most / 1024}


def _seconds(known: Mapping[str, float], cell: Cell, config: RunConfig, wish: Wish) -> float:
    """Of one cell: steps, and the passes that its evaluations make over the images."""
    if wish.exhibit.kind in STEPS:
        rounds = 2 + wish.exhibit.rounds.get(wish.scale, 1)
        return rounds * config.training.batch_size * known["seconds"]
    passes = [one.options.get("epochs", 200) if one.options.get("mode") == "literal" else 1 for one in cell.evaluations]
    images = images_of(config)
    return images * (config.training.epochs * known["seconds"] + 1.2 * max(passes) * known["look"])


def room_of(configs: Sequence[RunConfig], *, workers: int = 1, keep: str = "weights") -> int:
    """Megabytes that cells take on the disk at most: those that run, and what stays of those that ended."""
    kinds = {key_of(config): config for config in configs}
    sizes = {key: _megabytes(config) for key, config in kinds.items()}
    times = [sizes[key_of(config)] for config in configs]
    working = max(running for running, _, _ in times) * max(1, workers)
    stays = {"none": 0.0, "weights": sum(kept for _, kept, _ in times), "all": sum(a + c for a, _, c in times)}[keep]
    return round(working + stays)


def _megabytes(config: RunConfig) -> tuple[float, float, float]:
    """Of a run while it trains; of what stays as weights, moments that were asked for included; and of the backbone."""
    from iecl.training.advice import KEPT
    from iecl.training.factory import sketch_method

    method = sketch_method(config)
    weights = sum(p.numel() for p in method.parameters()) * 4 / 2**20
    backbone = sum(p.numel() for p in method.encoder().parameters()) * 4 / 2**20
    checkpoint = weights * (3 if config.optimizer.name == "adamw" else 2)
    asked = len(config.training.kept_epochs()) * checkpoint
    return (KEPT + 1) * checkpoint + asked, backbone + asked, backbone
