"""Exhibits of time, arithmetic and memory: steps of every row with made-up images, one of each in turn."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import iecl
from iecl import parallel
from iecl.console import ProgressLine
from iecl.reproduction.forecast import weight_bytes
from iecl.reproduction.plan import Panel, Wish
from iecl.reproduction.report import printed
from iecl.runs.environment import describe_environment
from iecl.studies.cell import Datasets
from iecl.studies.report import paired
from iecl.studies.study import Place
from iecl.training.config import RunConfig
from iecl.training.machine import on_this_machine
from iecl.training.step_cost import Flops
from iecl.training.trial import Steps, try_steps

WARM = 2
"""Steps of each row that are not counted: they compile, and ask for memory."""


def measured_panels(wish: Wish, threads: int, *, quiet: bool) -> dict[str, Any]:
    """Panels, notes and environment of an exhibit for which nothing is trained."""
    made: list[dict[str, Any]] = []
    with parallel.threads(threads), ProgressLine(quiet) as line:
        for panel in wish.panels():
            configs = _configs(panel)
            line.show(f"measuring {panel.column or wish.exhibit.name}")
            measure = _costs if wish.exhibit.kind == "cost" else _times
            made += measure(wish, panel, configs)
    notes = [f"one process with {threads} thread{'s' * (threads > 1)}"]
    if wish.exhibit.kind != "cost":
        notes.append(
            f"{wish.exhibit.rounds[wish.scale]} rounds, one step of each row in turn; 95 % intervals over rounds"
        )
    found = describe_environment()
    environment = {"processor": found["processor"], "torch": found["packages"]["torch"], "iecl": iecl.__version__}
    return {"panels": made, "notes": notes, "environment": environment | {"threads": threads}}


def _configs(panel: Panel) -> dict[str, RunConfig]:
    """The run of each row, on images that are made up."""
    datasets, cells = Datasets(), panel.study.cells()
    settings = panel.study.settings
    made = {}
    for arm in panel.study.arms:
        config = cells[Place(arm, settings.data[0], settings.seeds[0])].config(datasets)
        data = replace(config.data, name="digits", root="", num_workers=0)
        made[arm] = replace(config, data=data, training=on_this_machine(config.training))
    return made


def _times(wish: Wish, panel: Panel, configs: Mapping[str, RunConfig]) -> list[dict[str, Any]]:
    rounds = wish.exhibit.rounds[wish.scale]
    seconds: dict[str, list[float]] = {arm: [] for arm in configs}
    with tempfile.TemporaryDirectory() as scratch:
        steps = {
            arm: Steps(
                config, batch := config.training.batch_size, Path(scratch) / str(number), (WARM + rounds) * batch
            )
            for number, (arm, config) in enumerate(configs.items())
        }
        is_epoch = wish.exhibit.kind == "time"
        before = {arm: seconds_before_epoch(one) if is_epoch else 0.0 for arm, one in steps.items()}
        for number in range(WARM + rounds):
            for arm, one in steps.items():
                began = time.perf_counter()
                one.loop.optimize(one.batches)
                next(one.loop.method.parameters()).sum().item()  # waits for a GPU
                if number >= WARM:
                    seconds[arm].append((time.perf_counter() - began) / one.batch + before[arm])
        del steps
    images = 1000
    by_image = {arm: {n: images * one for n, one in enumerate(some)} for arm, some in seconds.items()}
    first = next(iter(configs.values()))
    what = f"{first.backbone.name}, {first.data.image_size} px, batch {first.training.batch_size}"
    if wish.exhibit.kind == "time":
        return [_panel(wish, panel, f"seconds for {images:,} images ({what})", by_image, " s", 1)]
    base = by_image[wish.exhibit.reference]
    added = {arm: {n: one / base[n] - 1 for n, one in some.items()} for arm, some in by_image.items()}
    zero = dict.fromkeys(base, 0.0)
    made = _panel(wish, panel, f"added to a step ({what})", added, " %", 100, zero)
    for row in made["rows"]:
        row["seconds_by_round"] = by_image[row["row"]]
    plain = mean(base.values())
    return [made | {"note": f"plain: {plain:.3g} s for {images:,} images", "against": "95 % interval, %"}]


def seconds_before_epoch(steps: Steps) -> float:
    """What an epoch takes before its first step, such as clustering, for each of its images.

    It is asked for a second time: the first one, when the steps were made, compiled what it needs.
    """
    steps.batches.close()
    began = time.perf_counter()
    steps.batches = steps.loop.begin_epoch()
    return (time.perf_counter() - began) / len(steps.loop.source)


def _costs(wish: Wish, panel: Panel, configs: Mapping[str, RunConfig]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for arm, config in configs.items():
        trial = try_steps(config)
        numbers = {
            "GFLOP of an image, forward and backward": _flops(config) / 1e9,
            "memory of an image in a step, MB": trial.image / 2**20,
            "weights and buffers, MB": weight_bytes(config) / 2**20,
        }
        for title, value in numbers.items():
            found.setdefault(title, {})[arm] = {0: value}
    made = [_panel(wish, panel, title, values, "", 1) for title, values in found.items()]
    for one in made:
        plain = next(row["mean"] for row in one["rows"] if row["row"] == wish.exhibit.reference)
        one["against"] = f"times {wish.exhibit.reference}"
        for row in one["rows"]:
            row["ratio"] = row["mean"] / plain
    return made


def _flops(config: RunConfig) -> float:
    """Of convolutions and matrix products in a training step, for each image: two for a multiply-add."""
    with tempfile.TemporaryDirectory() as scratch:
        steps = Steps(config, config.training.batch_size, Path(scratch) / "run")
        steps.loop.optimize(steps.batches)  # the first one also reads the meters
        with Flops() as counted:
            steps.loop.optimize(steps.batches)
        return float(counted.total / steps.batch)


def _panel(
    wish: Wish,
    panel: Panel,
    title: str,
    values: Mapping[str, Mapping[int, float]],
    unit: str,
    factor: float,
    base: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    reference = wish.exhibit.reference
    rows = [
        _row(wish, panel, arm, own, {} if arm == reference else base or values[reference])
        for arm, own in values.items()
    ]
    return {
        "title": f"{panel.column}, {title}" if panel.column else title,
        **{"column": panel.column, "data": "made-up images", "unit": unit, "factor": factor, "count": "rounds"},
        **{"is_claimed": True, "rows": rows},
    }


def _row(wish: Wish, panel: Panel, arm: str, values: Mapping[int, float], base: Mapping[int, float]) -> dict[str, Any]:
    line = next(one for one in wish.exhibit.rows if one.name == arm)
    every: Sequence[float] = list(values.values())
    row: dict[str, Any] = {"row": arm, "paper": printed(line, (panel.column,)), "values": dict(values), "n": len(every)}
    row |= {"failed": 0, "missing": 0, "protocols": ["steps"], "mean": mean(every)}
    row |= {"deviation": stdev(every)} if len(every) > 1 else {}
    return row | (paired(values, base) if base else {})
