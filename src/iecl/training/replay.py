"""Repeat one optimizer step of a run and look inside: inputs, outputs and gradients of each layer."""

import shutil
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iecl.console import ProgressLine
from iecl.errors import TrainingError, UserError
from iecl.runs.checkpoint import BROKEN
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, read_config
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric

CHECKPOINTS = ("last", "previous", "best", BROKEN.removesuffix(".ckpt"))


def replay(folder: Path | str, step: int, *, quiet: bool = True) -> dict[str, Any]:
    """Run the steps from the nearest earlier checkpoint (or the start) up to `step`, and report on that step.

    Nothing is written to the run. Data order, views and noise are those of the run; it is taken in one process, so that
    batch norm sees the whole batch where the run had several.

    Returns:
        The step, where it was run from, its losses, its images, and one row for each layer.

    Raises:
        UserError: the run has no such step.
    """
    run = RunDirectory.existing(folder)
    config = read_config(run)
    training = replace(
        config.training, devices=1, nodes=1, strategy="auto", loggers=(), online_eval_epochs=0, log_steps=1
    )
    with tempfile.TemporaryDirectory() as scratch, ProgressLine(quiet) as line:
        copy = RunDirectory.fresh(Path(scratch) / "run")
        if run.start.exists():
            shutil.copyfile(run.start, copy.start)
        return _replay_in(copy, run.checkpoints, replace(config, training=training), step, line)


def _replay_in(
    scratch: RunDirectory, checkpoints: Path, config: RunConfig, step: int, line: ProgressLine
) -> dict[str, Any]:
    loop = Loop(make_fabric(config.training, scratch.path), config, scratch, line)
    if not 1 <= step <= loop.steps:
        raise UserError(f"the run has steps 1 to {loop.steps:,}", where="--step")
    kept = [path.stem for path in sorted(checkpoints.glob("epoch-*.ckpt"))]
    found = loop.restore(checkpoints, [*CHECKPOINTS, *kept], until=step - 1)
    counted = line.count("replayed steps")
    batches = loop.begin_epoch()
    while loop.step < step - 1:
        loop.optimize(batches)
        counted(loop.step - loop.first, step - 1 - loop.first)
        if loop.step % loop.steps_per_epoch == 0:
            batches = loop.begin_epoch()
    watched, given, problem = _Watched(loop.method), list(islice(batches, config.training.grad_accumulation)), ""
    try:
        loop.optimize(iter(given))
        loop.recorder.flush()
    except TrainingError as failure:
        problem = failure.what
    loop.loader.close()
    rows = [row for row in scratch.read_metrics() if row["step"] == step and "loss" in row]
    return {
        "step": step,
        "from": str(found or "the start"),
        "problem": problem,
        "losses": rows[-1] if rows else {},
        "images": [loop.source.path(int(index)) for batch in given for index in batch.index],
        "layers": watched.rows(),
    }


class _Watched:
    """Hooks on every module that has weights of its own, for one step."""

    def __init__(self, method: nn.Module) -> None:
        self._modules = {name: part for name, part in method.named_modules() if part._parameters}
        self._outputs: dict[str, dict[str, float]] = {}
        self._gradients: dict[str, dict[str, float]] = {}
        self._weights = {name: _numbers(_joined(part)) for name, part in self._modules.items()}
        for name, part in self._modules.items():
            part.register_forward_hook(self._note_output(name))
            for weight in part._parameters.values():
                if weight is not None and weight.requires_grad:
                    weight.register_post_accumulate_grad_hook(self._note_gradient(name))

    def _note_output(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self._outputs[name] = _numbers(output)

        return hook

    def _note_gradient(self, name: str) -> Any:
        def hook(weight: Tensor) -> None:
            assert weight.grad is not None
            before = self._gradients.get(name, {"largest": 0.0, "not_finite": 0.0})
            own = _numbers(weight.grad)
            self._gradients[name] = {key: max(before[key], own[key]) for key in before}

        return hook

    def rows(self) -> list[dict[str, Any]]:
        """One row for each layer, in the order of the network."""
        nothing = {"mean": 0.0, "deviation": 0.0, "largest": 0.0, "not_finite": 0.0}
        return [
            {
                "layer": name,
                "weight_deviation": self._weights[name]["deviation"],
                "weight_largest": self._weights[name]["largest"],
                "output_mean": self._outputs.get(name, nothing)["mean"],
                "output_deviation": self._outputs.get(name, nothing)["deviation"],
                "output_largest": self._outputs.get(name, nothing)["largest"],
                "output_not_finite": int(self._outputs.get(name, nothing)["not_finite"]),
                "gradient_largest": self._gradients.get(name, nothing)["largest"],
                "gradient_not_finite": int(self._gradients.get(name, nothing)["not_finite"]),
            }
            for name in self._modules
        ]


def _joined(part: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in part._parameters.values() if weight is not None])


def _numbers(x: Tensor) -> dict[str, float]:
    """Of the finite entries: mean, deviation, largest size; and how many are not finite."""
    flat = x.detach().float().flatten()
    finite = flat[flat.isfinite()]
    if not len(finite):
        return {"mean": 0.0, "deviation": 0.0, "largest": 0.0, "not_finite": float(len(flat))}
    deviation, mean = torch.std_mean(finite, correction=0)
    return {
        "mean": mean.item(),
        "deviation": deviation.item(),
        "largest": finite.abs().max().item(),
        "not_finite": float(len(flat) - len(finite)),
    }
