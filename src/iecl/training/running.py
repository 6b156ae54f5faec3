"""A run from its plan to its summary: processes are started here, and end here."""

import json
import logging
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.multiprocessing.spawn import ProcessRaisedException

import iecl
from iecl import parallel
from iecl.allocation import give_back_freed_memory
from iecl.backbones.making import stem_of, width_of
from iecl.console import ProgressLine, counted, duration, log_to_terminal
from iecl.errors import Interrupted, TrainingError, UserError
from iecl.meters.verdict import UNTRAINED, verdict
from iecl.parts.spectral_norm import fold
from iecl.runs.directory import RunDirectory, rank_at_start, write_atomically, write_json
from iecl.runs.environment import describe_environment
from iecl.runs.proving import described, proof_features
from iecl.runs.weights import save_weights
from iecl.training.building import batch_per_process
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric, on_this_machine, peak_memory
from iecl.training.plan import Plan, plan_from_values
from iecl.training.planning import comparison, held_against

log = logging.getLogger("iecl.training")


def start(plan: Plan, run: RunDirectory, *, quiet: bool = False) -> dict[str, Any]:
    """Train (or go on training) in `run` and return its summary."""
    plan = replace(plan, training=on_this_machine(plan.training))
    batch_per_process(plan, max(1, plan.training.devices) * plan.training.nodes)  # told before processes start
    fabric = make_fabric(plan.training, run.path)  # first: what it refuses must not leave half a run behind
    if rank_at_start() == 0 and not run.holds_run:
        header = "Every setting of this run, resolved. Use it again: iecl pretrain --recipe THIS_FOLDER"
        write_atomically(run.settings, plan.to_toml(header))
        write_json(run.environment, describe_environment() | {"device": _device_name(plan)})
    # Plain values: Lightning looks into what it sends to other processes and stumbles over frozen dataclasses.
    try:
        result = fabric.launch(_train_in_process, plan.values(), str(run.path), quiet)  # type: ignore[arg-type]
    except ProcessRaisedException as problem:
        raise _error_of(problem) from problem
    if isinstance(result, UserError):
        raise result
    summary: dict[str, Any] = result
    return summary


def _error_of(problem: Exception) -> Exception:
    """What a user can mend arrives from another process as the last line of a traceback."""
    kind, _, words = str(problem).strip().rpartition("\n")[2].partition(": ")
    known = {f"{cls.__module__}.{cls.__name__}": cls for cls in (UserError, TrainingError, Interrupted)}
    return known[kind](words) if kind in known else problem


def _device_name(plan: Plan) -> str:
    return torch.cuda.get_device_name() if plan.training.accelerator == "cuda" else plan.training.accelerator


def _train_in_process(fabric: Fabric, values: dict[str, Any], out: str, quiet: bool) -> dict[str, Any] | UserError:
    """The whole run in one process. The first one hands an error back, since a raised one would arrive as text."""
    run, plan = RunDirectory(out), plan_from_values(values)
    quiet = quiet or not fabric.is_global_zero
    with log_to_terminal(quiet), ProgressLine(quiet) as line, _LogFile(run, fabric.is_global_zero):
        try:
            return _train(fabric, plan, run, line)
        except UserError as problem:
            if isinstance(problem, TrainingError):
                _write_summary(run, {"finished": False, "stopped": str(problem)})
            log.error("%s", problem, extra={"in_file_only": True})  # whoever catches it shows it
            if fabric.is_global_zero:
                return problem
            raise
        finally:
            for logger in fabric.loggers:
                logger.finalize("ended")  # or its thread would write on while the process goes
            parallel.leave()
            give_back_freed_memory()


def _train(fabric: Fabric, plan: Plan, run: RunDirectory, line: ProgressLine) -> dict[str, Any]:
    began = time.monotonic()
    loop = Loop(fabric, plan, run, line)
    loop.train()
    loop.skipped.share()
    if not fabric.is_global_zero:
        return {}
    seconds = time.monotonic() - began
    images = (loop.steps - loop.first) * plan.training.batch * plan.training.accumulate
    _write_weights(loop, run)
    summary: dict[str, Any] = {
        "finished": True,
        "steps": loop.steps,
        "steps_before": loop.first,
        "images": len(loop.source),
        "skipped": len(loop.skipped.reasons),
        "seconds": round(seconds, 1),
        "images_per_second": round(images / seconds, 1),
        "peak_memory_megabytes": peak_memory(fabric.device),
    }
    held = held_against(run, plan, summary, (loop.steps - loop.first) / loop.steps)
    if held:
        summary["plan"] = held
    return _write_summary(run, summary, width_of(loop.method.encoder()), is_untrained=not loop.method.online)


def _write_summary(
    run: RunDirectory, summary: dict[str, Any], width: int | None = None, *, is_untrained: bool = False
) -> dict[str, Any]:
    """The verdict and the last value of everything that was measured."""
    rows = list(run.read_metrics())
    judged = UNTRAINED if is_untrained else verdict(rows, width)
    last = {name: value for row in rows for name, value in row.items() if name not in ("step", "epoch")}
    summary |= {"verdict": judged.word, "reasons": list(judged.reasons), "advice": judged.advice, "last": last}
    write_json(run.summary, summary)
    if summary["finished"]:
        log.info("%s: %s", judged.word, "; ".join(judged.reasons) or "no reading gives cause for worry")
        if judged.advice and judged.word != "healthy":
            log.info("try: %s", judged.advice)
        listed = f", listed in {run.skipped}" if summary["skipped"] else ""
        log.info("%s skipped%s", counted(summary["skipped"], "file"), listed)
        log.info(
            "%s in %s, %.0f images/s; backbone in %s",
            counted(summary["steps"] - summary["steps_before"], "step"),
            duration(summary["seconds"]),
            summary["images_per_second"],
            run.weights,
        )
        if "plan" in summary:
            log.info("%s", comparison(summary["plan"]))
    return summary


def _write_weights(loop: Loop, run: RunDirectory) -> None:
    """The backbone under its plain names, with what is needed to use it."""
    plan = loop.plan
    encoder = deepcopy(loop.method.encoder()).cpu().eval()
    fold(encoder)
    metadata = {
        "backbone": plan.backbone.name,
        "width": str(width_of(encoder)),
        "image_size": str(plan.data.image_size),
        "mean": json.dumps(plan.data.mean),
        "std": json.dumps(plan.data.std),
        "method": plan.method_name,
        "step": str(loop.step),
        "epoch": str(plan.training.epochs),
        "iecl": iecl.__version__,
        "stem": stem_of(encoder),
        "recipe": plan.recipe(),
    }
    metadata |= described(proof_features(encoder, plan.data.image_size))
    save_weights(run.weights, encoder.state_dict(), metadata)


class _LogFile:
    """Writes log lines to RUN/log.txt while a run lasts."""

    def __init__(self, run: RunDirectory, is_on: bool) -> None:
        self.handler = logging.FileHandler(Path(run.log), encoding="utf-8") if is_on else None

    def __enter__(self) -> None:
        if self.handler is not None:
            self.handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logging.getLogger("iecl").addHandler(self.handler)

    def __exit__(self, *_: object) -> None:
        if self.handler is not None:
            logging.getLogger("iecl").removeHandler(self.handler)
            self.handler.close()
