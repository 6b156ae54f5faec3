"""What a run will take, before it starts; and afterwards, how far that was from the truth. Free of torch itself."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from iecl.allocation import is_kept
from iecl.console import duration, plain_table
from iecl.errors import TrainingError, UserError
from iecl.files import check, damaged, number, read_json
from iecl.launch import usable_cores
from iecl.names import current_settings
from iecl.runs.directory import RunDirectory
from iecl.settings import merge
from iecl.training.advice import forecast, suggested_batch, suggested_workers, warnings_for
from iecl.training.config import UNSAID, RunConfig, config_from_values, difference, with_norms

PROBE_SECONDS = 20.0
"""For which steps are tried; starting torch and opening images come on top."""
FREE = ("data.num_workers", "data.cache_megabytes", "training.loggers", "training.accelerator", "training.precision")
"""Settings that a run may resolve otherwise than its forecast did, and that leave the forecast what it is."""


def predict(
    config: RunConfig, seconds: float = PROBE_SECONDS, *, quiet: bool = True, threads: int = 0
) -> dict[str, Any]:
    """Probe a resolved configuration in a process of its own, and say what a run with it will take.

    `threads` is what that process computes with; 0: as this one.

    Returns:
        The forecast for the planned batch, one for each other batch of the table, what is suggested and why, warnings,
        and all that was measured.
    """
    measured = _probe(config, seconds, quiet, threads)
    batch, batch_reason = suggested_batch(measured, config)
    workers, workers_reason = suggested_workers(measured, config, usable_cores())
    asked = config.training.batch_size
    tried = [row["batch"] for row in measured["rows"]]
    table = sorted({*(size for size in tried if 4 * size >= asked), asked, batch, 2 * asked, 4 * asked})
    rows = [forecast(measured, config, size) for size in table if size <= measured["images"]]
    measured["settings"]["training"]["batch_size"] = batch  # the forecast is of the run that is suggested
    return {
        **forecast(measured, config, batch),
        "method": config.title,
        "backbone": config.backbone.name,
        "epochs": config.training.epochs,
        "images": measured["images"],
        "device": measured["device"],
        "processes": measured["processes"],
        "by_batch": rows,
        "suggested": {"batch_size": batch, "num_workers": workers, "why": [batch_reason, workers_reason]},
        "warnings": warnings_for(measured, config),
        "measured": measured,
    }


def _probe(config: RunConfig, seconds: float, quiet: bool, threads: int = 0) -> dict[str, Any]:
    request = json.dumps(
        {"values": config.plain_values(), "seconds": seconds, "quiet": quiet, "keeps_memory": is_kept()}
    )
    command = [sys.executable, "-m", "iecl.training.probe"]
    limit = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, text=True, check=False, env=limit)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not told:
        tried = [line["trying"] for line in told if "trying" in line]
        raise UserError(
            f"the probe ended with code {done.returncode}" + (f" at batches of {tried[-1]}" if tried else ""),
            where="iecl plan",
            do="most often the memory ran out: give a smaller --batch-size",
        )
    answer: dict[str, Any] = told[-1]
    if "error" in answer:
        kind = TrainingError if answer["kind"] == "TrainingError" else UserError
        raise kind(answer["error"], where=answer["where"], do=answer["do"])
    return answer


def words(made: Mapping[str, Any]) -> list[str]:
    """A forecast for people: the table by batch, then one line for each thing that is predicted."""
    heads = ["batch", "memory", "images/s", "step", "epoch", "total"]
    rows = [
        [
            f"{row['batch']:,}" + ("" if row["is_measured"] else " (estimated)"),
            f"{row['memory_megabytes']:,} MB",
            f"{row['images_per_second']:,.0f}",
            f"{1000 * row['step_seconds']:,.0f} ms",
            duration(row["epoch_seconds"]),
            duration(row["seconds"]),
        ]
        for row in made["by_batch"]
    ]
    shared = f", each of {made['processes']} processes" if made["processes"] > 1 else ""
    suggested = made["suggested"]
    return [
        *plain_table(heads, rows).split("\n"),
        f"{made['method']} with {made['backbone']} on {made['images']:,} images, {made['device']}, "
        f"batches of {made['batch']:,}: {made['epochs']} epochs of {duration(made['epoch_seconds'])}, "
        f"{duration(made['seconds'])} in total",
        f"memory: {made['memory_megabytes']:,} MB{shared}; disk: {made['disk_megabytes']:,.0f} MB",
        f"suggested batch size: {suggested['batch_size']} ({suggested['why'][0]})",
        f"suggested workers: {suggested['num_workers']} ({suggested['why'][1]})",
        *(f"warning: {line}" for line in made["warnings"]),
    ]


def held_against(run: RunDirectory, config: RunConfig, summary: Mapping[str, Any], share: float) -> dict[str, Any]:
    """What was predicted of a run beside what happened; empty: nothing was, or not of a run with these settings.

    Args:
        run: the run, which may have a `config.json`.
        config: its settings.
        summary: what it really took, in `seconds` and `peak_memory_megabytes`.
        share: part of the run's steps that these seconds were for; less than 1 after a resume.
    """
    made = read_json(run.forecast)
    if not made:
        return {}
    where = str(run.forecast)
    check(made, where, needed={"measured": dict, "seconds": float, "memory_megabytes": float})
    check(made["measured"], where, needed={"settings": dict})
    forecast_of = config_from_values(merge(UNSAID, current_settings(made["measured"]["settings"])))
    changed = difference(with_norms(forecast_of), config)  # as the run has resolved its own
    others = [str(change) for change in changed if change.name not in FREE]
    if others:
        return {"other_settings": others}
    seconds, megabytes = number(made["seconds"]), number(made["memory_megabytes"])
    if not math.isfinite(seconds + megabytes):
        raise damaged(where, "it predicts numbers that are not finite")
    pairs = {
        "seconds": (seconds * share, summary["seconds"]),
        "memory_megabytes": (megabytes, summary["peak_memory_megabytes"]),
    }
    return {name: {"predicted": round(a, 1), "real": b} for name, (a, b) in pairs.items()}


def comparison(held: Mapping[str, Any]) -> str:
    """One line on a forecast and what became of it.

    >>> pair = {"seconds": {"predicted": 100, "real": 110}, "memory_megabytes": {"predicted": 500, "real": 450}}
    >>> comparison(pair)
    'forecast: 1 min 40 s and 500 MB were predicted, it took 1 min 50 s (+10 %) and 450 MB (-10 %)'
    """
    if "other_settings" in held:
        return f"forecast.json was made for other settings and is not compared: {'; '.join(held['other_settings'])}"
    time, memory = held["seconds"], held["memory_megabytes"]
    off = [100 * (pair["real"] / max(pair["predicted"], 1e-9) - 1) for pair in (time, memory)]
    return (
        f"forecast: {duration(time['predicted'])} and {memory['predicted']:,.0f} MB were predicted, it took "
        f"{duration(time['real'])} ({off[0]:+.0f} %) and {memory['real']:,} MB ({off[1]:+.0f} %)"
    )
