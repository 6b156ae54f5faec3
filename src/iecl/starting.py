"""The ways a run begins: afresh, from weights, where it was stopped, or for longer than it was planned.

Each makes a plan, claims the run directory, puts into it what the run begins with, and trains.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from iecl.data.resolve import folder_of, resolve_data
from iecl.errors import UserError
from iecl.launch import rank_at_start
from iecl.runs.claim import Claim, claim
from iecl.runs.directory import RunDirectory
from iecl.settings import merge, parse_assignment
from iecl.training.plan import Plan, make_plan, with_data, with_launch, without_effect
from iecl.training.resuming import settings_to_resume

log = logging.getLogger("iecl.starting")


@dataclass(frozen=True)
class Asked:
    """What somebody asked for, as the command and `iecl.pretrain` take it."""

    out: str | Path
    method: str
    recipe: str
    given: Mapping[str, Any]
    """Settings by section."""
    sets: tuple[str, ...]
    """The same as text."""
    overwrite: bool


def start_afresh(asked: Asked, quiet: bool) -> Path:
    """A new run; returns its directory."""
    plan, place = _plan_afresh(asked)
    return _start(plan, place, quiet, lambda claimed: {"kind": "start"}, overwrite=asked.overwrite)


def start_from(source: str, foreign: Mapping[str, Any], asked: Asked, quiet: bool) -> Path:
    """A new run whose backbone begins with the weights of another, which its folder keeps."""
    _announce_torch()
    from iecl.continuing import keep_start
    from iecl.evaluation.model import load_model

    model = load_model(source, **foreign)
    given = merge({"backbone": {"name": model.name}}, asked.given)
    if given["backbone"]["name"] != model.name:
        raise UserError(
            f"{source} holds a {model.name}, its weights do not fit {given['backbone']['name']}", where="--backbone"
        )
    plan, place = _plan_afresh(replace(asked, given=given))
    log.info("starting from %s: %s", source, model.proof)
    return _start(plan, place, quiet, lambda claimed: keep_start(claimed.run, model, source), overwrite=asked.overwrite)


def resume(asked: Asked, quiet: bool) -> Path:
    """A run that goes on where it was stopped."""
    if not asked.out:
        raise UserError("which run is to be resumed?", where="--resume", do="name its folder with --out")
    if asked.recipe:
        raise UserError("a resumed run has its settings already", where="--recipe", do="leave --recipe out")
    run = RunDirectory.existing(asked.out, "--out")
    _announce_torch()
    plan, changed = settings_to_resume(run, asked.method, asked.given, asked.sets)
    log.info("resuming %s", run.path)
    if run.read_summary().get("finished"):
        log.info("%s is finished already", run.path)
        return run.path
    origin = {"kind": "resume"} | ({"changed": changed} if changed else {})
    return _start(plan, run.path, quiet, lambda claimed: origin, goes_on=True)


def extend(parent: RunDirectory, epochs: int, out: str | Path, *, overwrite: bool, quiet: bool) -> Path:
    """A run that goes on where another stands, for longer."""
    from iecl.continuing import copy_state, curves, longer

    plan, origin = longer(parent, epochs)
    for line in (f"the schedule of {parent.path}, old and new:", *curves(parent, plan).split("\n")):
        log.info("%s", line)

    def prepare(claimed: Claim) -> Mapping[str, Any]:
        copy_state(parent, claimed.run, epochs)
        claimed.steps_before = max((row["step"] for row in claimed.run.read_metrics()), default=0)
        return origin

    place = Path(out or f"{parent.path}-{epochs}-epochs")
    return _start(with_launch(plan), place, quiet, prepare, overwrite=overwrite)


def _plan_afresh(asked: Asked) -> tuple[Plan, Path]:
    plan = make_plan(method=asked.method, recipe=asked.recipe, flags=asked.given, sets=asked.sets)
    place = Path(asked.out or Path("runs") / f"{plan.method_name}-{Path(plan.data.name).name}")
    if rank_at_start() == 0 and not asked.overwrite:
        RunDirectory(place).refuse_another()  # before any work is done
    folder = folder_of(plan.data.name)
    if folder is not None and place.resolve() == folder.resolve():  # a run would be listed with the images
        raise UserError(f"{place} holds the images", where="--out", do="name another folder for the run")
    log.info("looking at %s", plan.data.name)
    plan = with_launch(with_data(plan, resolve_data(plan.data)))
    for line in without_effect(plan, reduce(merge, map(parse_assignment, asked.sets), asked.given)):
        log.warning("has no effect: %s", line)
    return plan, place


def _start(
    plan: Plan,
    place: Path,
    quiet: bool,
    prepare: Callable[[Claim], Mapping[str, Any]],
    *,
    goes_on: bool = False,
    overwrite: bool = False,
) -> Path:
    """Train in this process or in those that it starts.

    `prepare` puts what the run begins with into its directory, and returns what its history says of it.
    """
    _announce_torch()
    from iecl.training.running import start

    if rank_at_start() > 0:  # the first process makes the directory, and this one joins it
        start(plan, Claim(RunDirectory(place)), quiet=quiet)
        return place
    with claim(place, resume=goes_on, overwrite=overwrite) as claimed:
        log.info("writing to %s", place)
        claimed.run.append_history(prepare(claimed))
        start(plan, claimed, quiet=quiet)
    return place


def _announce_torch() -> None:
    if "torch" not in sys.modules:  # it takes seconds
        log.info("loading torch")
