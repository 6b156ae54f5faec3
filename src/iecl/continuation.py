"""Three ways to go on, each with its own spelling: the same run, the same run for longer, a new run from weights.

`--resume` changes nothing and needs nothing from here. `extend` makes a new schedule, `--init-from`
takes weights only.
"""

import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from iecl.console import plain_table
from iecl.errors import UserError
from iecl.runs.checkpoint import NAMES, latest_checkpoint, load_checkpoint, write_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.schedule import Clock, Ramp, lr_factor
from iecl.training.checkpoint_check import check_run
from iecl.training.config import RunConfig, read_config
from iecl.weights.model import LoadedModel, save_model

POINTS = 6
"""Moments of the new schedule at which both curves are shown."""


def keep_start(run: RunDirectory, model: LoadedModel, source: str) -> dict[str, Any]:
    """Write the weights that a run begins with into its folder; returns what its history says of them."""
    save_model(run.start, model)
    return {"kind": "from", "parent": str(Path(source).absolute()), "weights": model.proof, "method": model.method}


def longer(parent: RunDirectory, epochs: int) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of a run that goes on where `parent` stands and ends after `epochs`, and its line of history.

    Raises:
        UserError: the parent has no checkpoint, or has already come as far.
    """
    config, state = read_config(parent), latest_checkpoint(parent.checkpoints, check_run)
    if state is None:
        raise UserError(f"{parent.path} has no checkpoint to extend", where="RUN", do="resume it, or start a new run")
    per_epoch, rest = divmod(state["steps"], config.training.epochs)
    if rest or not per_epoch:
        words = f"the checkpoint in {parent.path} is of {state['steps']} steps"
        raise UserError(f"{words}, which are not {config.training.epochs} epochs", where="RUN", do="use --init-from")
    if epochs * per_epoch <= state["step"]:
        done = state["step"] / per_epoch
        raise UserError(f"{parent.path} has done {done:g} epochs already", where="--epochs", do="give a larger number")
    new = replace(config, training=replace(config.training, epochs=epochs))
    return new, {
        "kind": "extend",
        "parent": str(parent.path.absolute()),
        "step": state["step"],
        "epochs_before": config.training.epochs,
        "epochs": epochs,
    }


def copy_state(parent: RunDirectory, run: RunDirectory, epochs: int) -> None:
    """Give a new run of so many epochs the checkpoints and the metrics of its parent."""
    before = read_config(parent).training.epochs
    for path in (path for name in NAMES if (path := parent.checkpoints / f"{name}.ckpt").exists()):
        try:
            state = load_checkpoint(path)
            check_run(state)
        except UserError:  # an older one serves: `longer` has checked, and has warned
            continue
        write_checkpoint(run.checkpoints / path.name, state | {"steps": state["steps"] // before * epochs})
    for path in (parent.checkpoints / "best.ckpt", *map(parent.kept_checkpoint, parent.kept_epochs())):
        if path.exists():
            shutil.copyfile(path, run.checkpoints / path.name)
    if parent.metrics.exists():
        shutil.copyfile(parent.metrics, run.metrics)


def curves(parent: RunDirectory, new: RunConfig) -> str:
    """Old and new learning rate, and every value of the method that changes over a run, at some of its moments."""
    old, state = read_config(parent), latest_checkpoint(parent.checkpoints, check_run)
    assert state is not None  # `longer` has checked
    per_epoch, now = state["steps"] // old.training.epochs, int(state["step"])
    end = per_epoch * new.training.epochs
    moments = sorted({*(end * number // (POINTS - 1) for number in range(POINTS)), now})
    names = ["lr", *(name for name, _ in _ramps(new))]
    head = ["step", "epoch", *(f"{name}, {which}" for name in names for which in ("old", "new"))]
    rows = []
    for step in moments:
        columns = zip(_values(old, step, per_epoch), _values(new, step, per_epoch), strict=True)
        shown = [f"{value:.4g}" if value is not None else "-" for pair in columns for value in pair]
        rows.append([f"{step:,}" + (" (now)" if step == now else ""), f"{step / per_epoch:.4g}", *shown])
    return plain_table(head, rows)


def _ramps(config: RunConfig) -> Iterator[tuple[str, Ramp]]:
    settings = config.method_settings()
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Ramp):
            yield field.name, value


def _values(config: RunConfig, step: int, per_epoch: int) -> list[float | None]:
    """Learning rate and ramps at a step; nothing after the end of the run."""
    training, optimizer, steps = config.training, config.optimizer, per_epoch * config.training.epochs
    ramps = list(_ramps(config))
    if step > steps:
        return [None] * (1 + len(ramps))
    clock = Clock(training.seed, step, steps, min(step // per_epoch, training.epochs - 1), training.epochs)
    share = lr_factor(clock, warmup=optimizer.warmup_steps(per_epoch, steps), floor=optimizer.min_lr_ratio)
    peak = optimizer.peak(training.batch_size * training.grad_accumulation)
    return [peak * share, *(ramp.at(clock) for _, ramp in ramps)]
