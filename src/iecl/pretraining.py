"""The ways a run begins: new, from weights, where it was stopped, or for longer than it was planned.

Each resolves a configuration, claims the run directory, puts into it what the run begins with, and trains.
"""

import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from iecl.brought import PREFIX, is_brought
from iecl.console import ProgressLine
from iecl.data.defaults import count_images, folder_of, resolve_data
from iecl.data.listing import one_walk
from iecl.errors import UserError
from iecl.launch import attempts, outside_launch, rank_at_start
from iecl.names import FLAGS
from iecl.runs.claim import Claim, claim
from iecl.runs.directory import RunDirectory, refuse_missing
from iecl.settings import merge, parse_assignment
from iecl.training.choices import BY_TIME, Said, check_batch, depends_on_time, with_batch
from iecl.training.config import RunConfig, layers, make_config, with_data, with_launch, without_effect
from iecl.training.resume import settings_to_resume
from iecl.training.scale import estimate, gpu_called

USUAL_IMAGES, USUAL_SIDE = 1_281_167, 224
"""Images and their side that an estimate is for, if nothing else is said."""
log = logging.getLogger("iecl.pretraining")
IMAGENET = "imagenet"
"""What `--from` calls torchvision's weights."""


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


@one_walk()
def start_afresh(asked: Asked, quiet: bool) -> Path:
    """A new run; returns its directory."""
    begun = _begun_before(asked)
    if begun is not None:
        return resume(begun, quiet)
    config, place = _config_afresh(asked, quiet)
    return _start(config, place, quiet, lambda claimed: {"kind": "start"}, overwrite=asked.overwrite)


def start_resolved(config: RunConfig, place: Path, source: str = "") -> Path:
    """A run in whose configuration every choice is made, from the weights in `source` if it names some.

    One that was stopped there goes on. Shows warnings only.
    """
    if RunDirectory(place).holds_run:
        return resume(Asked(place, "", "", {}, (), overwrite=False), quiet=True)
    # A start that was killed at once may have left a file or two, and no run.
    if not source:
        return _start(config, place, True, lambda claimed: {"kind": "start"}, overwrite=True)
    from iecl.continuation import keep_start
    from iecl.evaluation.model import load_model

    model = load_model(source)
    _refuse_another_backbone(model.name, config.backbone.name, source)
    return _start(config, place, True, lambda claimed: keep_start(claimed.run, model, source), overwrite=True)


@one_walk()
def start_from(source: str, foreign: Mapping[str, Any], asked: Asked, quiet: bool, *, download: bool = False) -> Path:
    """A new run whose backbone begins with the weights of another, which its folder keeps.

    Those that torchvision offers, called `imagenet`, may be fetched with `download`.
    """
    begun = _begun_before(asked)
    if begun is not None:
        return resume(begun, quiet)
    if source != IMAGENET:
        refuse_missing(source, "--from", IMAGENET)
    said = make_config(method=asked.method, recipe=asked.recipe, flags=asked.given, sets=asked.sets)
    for name in said.data.names:  # what is misspelled is found at once
        folder_of(name)
    _announce_torch()
    from iecl.continuation import keep_start
    from iecl.evaluation.model import load_model
    from iecl.weights.imagenet import imagenet_model

    if source == IMAGENET and not Path(source).exists():
        model = imagenet_model(asked.given.get("backbone", {}).get("name", ""), download=download)
    else:
        model = load_model(source, **foreign)
    given = merge({"backbone": {"name": model.name}}, asked.given)
    _refuse_another_backbone(model.name, given["backbone"]["name"], source)
    config, place = _config_afresh(replace(asked, given=given), quiet, is_from_weights=True)
    log.info("starting from %s: %s", source, model.proof)
    if not asked.recipe:
        rate, warmup = config.optimizer.lr, config.optimizer.warmup_epochs
        log.info("lr %g, warm-up %g epochs: for weights; change with --lr, optimizer.warmup_epochs", rate, warmup)
    return _start(
        config, place, quiet, lambda claimed: keep_start(claimed.run, model, source), overwrite=asked.overwrite
    )


def _begun_before(asked: Asked) -> Asked | None:
    """The run that this very job or torchrun began before it was started again: the same command goes on with it."""
    again = {name for name, count in attempts().items() if count}
    if not again:
        return None
    said: dict[str, Any] = {"method": asked.method, "recipe": asked.recipe, "flags": asked.given, "sets": asked.sets}
    run = RunDirectory(_place_of(asked, make_config(**said)))
    if not run.holds_run or not again & set(run.last_launch()):
        return None
    return Asked(run.path, "", "", {}, (), overwrite=False)


def _place_of(asked: Asked, config: RunConfig) -> Path:
    return Path(asked.out or Path("runs") / f"{config.title}-{_file_name(config.data.name)}")


def _refuse_another_backbone(held: str, wanted: str, source: str) -> None:
    if wanted != held:
        raise UserError(f"{source} holds a {held}, its weights do not fit {wanted}", where="--backbone")


def resume(asked: Asked, quiet: bool) -> Path:
    """A run that goes on where it was stopped."""
    if not asked.out:
        raise UserError("which run is to be resumed?", where="--resume", do="name its folder with --out")
    if asked.recipe:
        raise UserError("a resumed run has its settings already", where="--recipe", do="leave --recipe out")
    run = RunDirectory.existing(asked.out, "--out")
    config, changed = settings_to_resume(run, asked.method, asked.given, asked.sets)
    log.info("resuming %s", run.path)
    if run.read_summary().get("finished"):
        log.info("%s has already finished", run.path)
        return run.path
    origin = {"kind": "resume"} | ({"changed": [str(change) for change in changed]} if changed else {})
    return _start(config, run.path, quiet, lambda claimed: origin, goes_on=True)


def extend(parent: RunDirectory, epochs: int, out: str | Path, *, overwrite: bool, quiet: bool) -> Path:
    """A run that goes on where another stands, for longer."""
    from iecl.continuation import copy_state, curves, longer

    config, origin = longer(parent, epochs)
    for line in (f"the schedule of {parent.path}, old and new:", *curves(parent, config).split("\n")):
        log.info("%s", line)

    def prepare(claimed: Claim) -> Mapping[str, Any]:
        copy_state(parent, claimed.run, epochs)
        claimed.steps_before = max((row["step"] for row in claimed.run.read_metrics()), default=0)
        return origin

    place = Path(out or f"{parent.path}-{epochs}-epochs")
    return _start(with_launch(config, is_asked=False), place, quiet, prepare, overwrite=overwrite)


def _config_afresh(asked: Asked, quiet: bool, *, is_from_weights: bool = False) -> tuple[RunConfig, Path]:
    said: dict[str, Any] = {"method": asked.method, "recipe": asked.recipe, "flags": asked.given, "sets": asked.sets}
    said["is_from_weights"] = is_from_weights
    config = make_config(**said)
    place = _place_of(asked, config)
    if rank_at_start() == 0 and not asked.overwrite:
        RunDirectory(place).refuse_another()  # before any work is done
    folder = folder_of(config.data.name)
    if folder is not None and place.resolve() == folder.resolve():  # a run would be listed with the images
        raise UserError(f"{place} holds the images", where="--out", do="name another folder for the run")
    log.info("scanning %s", ", ".join(config.data.names))
    whole = with_choices(with_launch(config), Said.of(*layers(**said)), quiet=quiet)
    for line in without_effect(whole, reduce(merge, map(parse_assignment, asked.sets), asked.given)):
        log.warning("has no effect: %s", line)
    return whole, place


@one_walk()
def planned(asked: Asked) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration that `start_afresh` would train, and flags for what it would choose by a look at the clock."""
    said: dict[str, Any] = {"method": asked.method, "recipe": asked.recipe, "flags": asked.given, "sets": asked.sets}
    kept = Said.of(*layers(**said))
    config = with_choices(make_config(**said), kept, quiet=True, is_plan=True)
    values = config.plain_values()
    places = {name: name.partition(".") for name in sorted(BY_TIME - kept.fixed)}
    flags = {
        FLAGS.get(name, f"--{key.replace('_', '-')}"): values[section][key]
        for name, (section, _, key) in places.items()
    }
    return config, flags


def estimated(gpu: str, images: float, *, flags: Mapping[str, Any], **said: Any) -> dict[str, Any]:
    """What a run would take on GPUs that are not here: see `iecl.training.scale`. No image is looked at.

    Raises:
        UserError: there is no such GPU, images were named, or the batch cannot be shared.
    """
    gpu_called(gpu)
    if flags.get("data", {}).get("name"):
        do = "leave out --data and say how many there are: --images"
        raise UserError("an estimate looks at no images", where="--data", do=do)
    there = {"name": "shapes", "image_size": USUAL_SIDE} | flags.get("data", {})
    config = make_config(**said, flags={**flags, "data": there})
    mean, std = ((number,) * config.data.channels for number in (0.5, 0.25))
    config = with_data(config, replace(config.data, decode_size=config.data.image_size, mean=mean, std=std))
    from iecl.training.step_cost import count_step

    training = config.training
    if not training.devices:
        raise UserError("all GPUs of this machine are none", where="--devices", do="give their number in all")
    made = estimate(
        count_step(config),
        gpu=gpu,
        devices=training.devices * training.nodes,
        batch=training.batch_size,
        images=images or USUAL_IMAGES,
        epochs=training.epochs,
    )
    return made | {"method": config.title, "backbone": config.backbone.name, "image_size": config.data.image_size}


def with_choices(config: RunConfig, said: Said, *, quiet: bool, is_plan: bool = False) -> RunConfig:
    """A configuration as it was given, with everything chosen that nobody said, and a few lines on that.

    Several processes that somebody else started each choose for themselves, so that they choose by the images alone.
    A plan may be of a run that cannot work, and says so itself.

    Raises:
        UserError: there are too few images, or by far too little memory.
    """
    whole = with_data(config, resolve_data(config.data))
    images = count_images(whole.data)
    whole = with_batch(whole, said, images)
    if not is_plan:
        check_batch(whole, images)
    if outside_launch() is not None or (quiet and not depends_on_time(config, said)):
        return whole
    _announce_torch()
    from iecl.training.fitting import fit

    with ProgressLine(quiet) as line:
        whole, lines = fit(config, whole, said, images, line, is_checked=not is_plan)
    for words in lines:
        log.info("%s", words)
    return whole


def _start(
    config: RunConfig,
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
    from iecl.training.run import start

    if rank_at_start() > 0:  # the first process makes the directory, and this one joins it
        start(config, Claim(RunDirectory(place)), quiet=quiet)
        return place
    with claim(place, resume=goes_on, overwrite=overwrite) as claimed:
        log.info("writing to %s", place)
        launch = {"launch": names} if (names := list(attempts())) else {}
        claimed.run.append_history({**prepare(claimed), **launch})
        start(config, claimed, quiet=quiet)
    return place


def _file_name(data: str) -> str:
    """What a run directory is called after: a folder's or file's last part, without what only a pattern may have."""
    name = data.removeprefix(PREFIX) if is_brought(data) else Path(data).name
    return re.sub(r"[^\w.+-]+", "_", name).strip("_") or "images"


def _announce_torch() -> None:
    if "torch" not in sys.modules:  # it takes seconds
        log.info("loading torch")
