"""Whether a checkpoint fits what is to go on from it: all of it is looked at before anything is loaded.

A file may be whole and still be of another run. Torch takes over whatever an optimizer remembers, and then reads and
writes past the end of moments that are too short.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from iecl.errors import UserError
from iecl.runs.checkpoint import is_plain, shown
from iecl.training.optimizers import COUNTER, remembered
from iecl.weights.file import few

KEYS = frozenset({"format", "step", "steps", "best", "method", "optimizer", "precision"})
BROKEN_KEY = "samples"
"""What a checkpoint of a step that failed holds besides: its weights may be anything."""

REBUILT = {
    "summary.places": "the position code of All4One ran along the sequence then",
    "maker.inward.0.0.weight": "the view maker had no noise at its input then",
    "stages.3.0.bias": "a norm and an activation ended the block of four convolutions then",
}
"""Tensors, by the end of their names, that earlier versions had in another shape or not at all, and why."""


def check_run(state: Mapping[str, Any]) -> None:
    """Raise a `UserError` unless a state has the parts of a run's checkpoint and its numbers make sense."""
    refuse(list(_wrong_numbers(state)))


def check_checkpoint(
    state: Mapping[str, Any], method: nn.Module, optimizer: Optimizer, *, steps: int, precision: Mapping[str, Any]
) -> None:
    """Raise a `UserError` that names what does not fit; nothing is changed.

    Args:
        state: the checkpoint of a run.
        method: what its weights and buffers are for.
        optimizer: what remembers something of each weight.
        steps: of the whole run.
        precision: the state that the arithmetic has now, such as the scale of 16-bit gradients.
    """
    check_run(state)
    problems = [] if state["steps"] == steps else [f"it is of a run of {state['steps']} steps, this one has {steps}"]
    problems += unfit_tensors(state["method"], method.state_dict())
    problems += unfit_optimizer(state["optimizer"], optimizer, method, state["step"])
    problems += _unfit_precision(state["precision"], precision)
    if not problems and BROKEN_KEY not in state:
        problems += not_finite(state["method"], state["optimizer"])
    refuse(problems)


def check_fit(state: Mapping[str, Any], network: nn.Module, optimizer: Optimizer, *, steps: int) -> None:
    """The same for a network that an evaluation trains."""
    problems = list(unfit_tensors(state.get("network"), network.state_dict()))
    problems += unfit_optimizer(state.get("optimizer"), optimizer, network, state["step"])
    problems += [] if state["step"] <= steps else [f"step is {shown(state['step'])} of {steps}"]
    for name in ("curve", "partial"):
        losses = state.get(name)
        if not isinstance(losses, list) or not all(type(loss) is float for loss in losses):
            problems.append(f"{name} is {shown(losses)}")
    refuse(problems)


def refuse(problems: list[str]) -> None:
    """Raise a `UserError` with the first of the problems, if there are any."""
    if problems:
        raise UserError(
            f"does not fit: {few(problems)}", do="use the checkpoints, settings and images that the run was made with"
        )


def _wrong_numbers(state: Mapping[str, Any]) -> Iterator[str]:
    if KEYS - state.keys() or state.keys() - KEYS - {BROKEN_KEY}:
        yield f"it holds {few(sorted(state))} and not {few(sorted(KEYS))}"
        return
    step, steps, best = state["step"], state["steps"], state["best"]
    if type(steps) is not int or not 0 < steps < 2**63:
        yield f"steps is {shown(steps)}"
    elif type(step) is not int or not 0 <= step <= steps:
        yield f"step is {shown(step)} of {steps}"
    if type(best) is not float or math.isnan(best):
        yield f"best is {shown(best)}"


def unfit_tensors(saved: Any, wanted: Mapping[str, Tensor]) -> Iterator[str]:
    """What differs in names, shapes and types from the tensors that are wanted."""
    if not isinstance(saved, dict):
        yield f"the weights are {shown(saved)}"
        return
    for end, words in REBUILT.items():
        old = [name for name in wanted if name.endswith(end) and not _has_shape(saved.get(name), wanted[name])]
        yield from (f"it is of an earlier version: {words} ({name})" for name in old[:1])
    yield from (f"{name} is missing" for name in wanted if name not in saved)
    yield from (f"{shown(name)} is not known" for name in saved if name not in wanted)
    for name in wanted.keys() & saved.keys():
        yield from _unlike(name, saved[name], wanted[name].shape, wanted[name].dtype)


def _has_shape(value: Any, wanted: Tensor) -> bool:
    return isinstance(value, Tensor) and not value.is_nested and value.shape == wanted.shape


def _unlike(name: str, value: Any, shape: torch.Size, dtype: torch.dtype) -> Iterator[str]:
    if not is_plain(value):
        yield f"{name} is {'no plain tensor' if isinstance(value, Tensor) else shown(value)}"
    elif value.shape != shape or value.dtype != dtype:
        yield f"{name} is {shown(value)}, not {f'{dtype} {[*shape]}'.removeprefix('torch.')}"


def unfit_optimizer(saved: Any, optimizer: Optimizer, module: nn.Module, step: int) -> Iterator[str]:
    """What differs in the groups of an optimizer, and in what it remembers of each weight after `step` steps."""
    own = optimizer.state_dict()["param_groups"]
    parts = (saved.get("state"), saved.get("param_groups")) if isinstance(saved, dict) else (None, None)
    if not isinstance(parts[0], dict) or type(parts[1]) is not list or len(parts[1]) != len(own):
        groups = len(parts[1]) if type(parts[1]) is list else "no"
        yield f"the optimizer has {groups} groups of weights, not {len(own)}"
        return
    for mine, theirs in zip(own, parts[1], strict=True):
        yield from _unfit_group(theirs, mine)
    names = {id(weight): name for name, weight in module.named_parameters()}
    weights = {
        number: weight
        for mine, group in zip(own, optimizer.param_groups, strict=True)
        for number, weight in zip(mine["params"], group["params"], strict=True)
    }
    for number, values in parts[0].items():
        if type(number) is not int or number not in weights:
            yield f"the optimizer remembers weight {shown(number)} of {len(weights)}"
        else:
            name = names.get(id(weights[number]), f"weight {number}")
            yield from _unfit_memory(name, values, weights[number], remembered(optimizer), step)


def _unfit_group(theirs: Any, mine: Mapping[str, Any]) -> Iterator[str]:
    """Weights and settings of one group; lr is set at each step. Other versions of torch know other keys."""
    where = f"group {mine.get('name', '')}".strip()
    if not isinstance(theirs, dict) or not _is_same(theirs.get("params"), mine["params"]):
        found = theirs.get("params") if isinstance(theirs, dict) else None
        yield f"{where} of the optimizer has {len(found) if isinstance(found, list) else 'no'} weights or others, " + (
            f"not these {len(mine['params'])}"
        )
        return
    for key in sorted(mine.keys() & theirs.keys() - {"params"}):
        fits = _is_number(theirs[key]) if key == "lr" else _is_same(theirs[key], mine[key])
        if not fits:
            yield f"{where}: {key} is {shown(theirs[key])}, not {shown(mine[key])}"


def _is_same(one: Any, other: Any) -> bool:
    """Equal plain values: what a file holds may be anything, and comparing tensors asks for trouble."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is None or (isinstance(one, bool | int | float | str) and one == other)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _unfit_memory(name: str, values: Any, weight: Tensor, keys: frozenset[str], step: int) -> Iterator[str]:
    """What is remembered of one weight: nothing, or moments of its own shape and a counter."""
    if not isinstance(values, dict) or (values and values.keys() != keys):
        kept = few([shown(key) for key in values]) if isinstance(values, dict) else shown(values)
        yield f"of {name} the optimizer remembers {kept}, not {few(sorted(keys))}"
        return
    for key, value in values.items():
        if key != COUNTER:
            yield from _unlike(f"{key} of {name}", value, weight.shape, weight.dtype)
        elif not is_plain(value) or value.shape or not value.is_floating_point() or not 0 <= value.item() <= step:
            told = f"{value.item():g}" if is_plain(value) and not value.shape else shown(value)
            yield f"{key} of {name} is {told}, not 0 to {step}"


def _unfit_precision(saved: Any, own: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(saved, dict) or saved.keys() != own.keys():
        kept = few([shown(key) for key in saved]) if isinstance(saved, dict) else shown(saved)
        yield f"the precision keeps {kept or 'nothing'}, not {few(sorted(own)) or 'nothing'}"
        return
    for name, value in saved.items():
        if type(value) is not type(own[name]) or not _is_number(value) or (name == "scale" and not value):
            yield f"{name} of the precision is {shown(value)}"


def not_finite(weights: Mapping[str, Tensor], optimizer: Mapping[str, Any]) -> Iterator[str]:
    """Tensors that hold NaN or infinity: nothing can come of them but more of it."""
    yield from (f"{name} is not finite" for name, value in weights.items() if not value.isfinite().all())
    for number, values in optimizer["state"].items():
        bad = [key for key, value in values.items() if not value.isfinite().all()]
        yield from (f"{key} of weight {number} is not finite" for key in bad)
