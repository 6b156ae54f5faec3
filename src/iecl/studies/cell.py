"""A cell: one training run and what is measured of it, as data, under names that equal ones share. Free of torch."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from iecl.data.defaults import folder_of, resolve_data
from iecl.data.pack_format import open_packed
from iecl.data.places import is_files, list_places, parts_of
from iecl.data.shard_files import is_shards
from iecl.data.shard_set import open_shards
from iecl.errors import UserError, did_you_mean
from iecl.evaluation import EVALUATIONS
from iecl.files import open_plain
from iecl.registry import resolve
from iecl.runs.directory import RunDirectory
from iecl.settings import as_values, build, merge
from iecl.training.config import NAMES, SECTIONS, RunConfig, make_config, with_data, with_norms

FREE = {
    "saib": ("init_from",),
    "data": ("name", "root", "download", "cache_megabytes", "num_workers", "max_unreadable", "bad_shards"),
    "training": (
        *("accelerator", "strategy", "gradient_checkpointing", "deterministic", "loggers", "requeue"),
        *("log_steps", "meter_steps", "online_eval_epochs", "outcome", "checkpoint_steps", "keep_epochs"),
    ),
}
"""Settings without a part in the final weights, or known by what they name: where images and weights lie, how fast
they come, what is written meanwhile.

Precision is no such setting: it changes numbers. Nor is the number of processes: each may have batch norms of its own.
Another accelerator rounds differently, as another processor does, which no setting tells: a record says both.
"""
NEUTRAL: dict[str, dict[str, Any]] = {
    "augmentation": {
        **dict.fromkeys(
            ("vflip_prob", "rot90_prob", "rotation_prob", "degrees", "posterize_prob", "posterize_bits"), -1
        ),
        **dict.fromkeys(("equalize_prob", "sharpness_prob", "sobel_prob", "gaussian_noise_prob", "noise_sigma"), -1),
        **{key: [] for key in ("sharpness_factor", "erasing_scale", "erasing_ratio")},
        **{"erasing_prob": -1, "anchor": {}, "query": {}},
    },
    "backbone": {"zero_init_residual": False},
    "data": {"more": [], "channels": 3, "exclude": "", "plant": ""},
    "saib": {"confusion": 0.03},
    "training": {"sync_batch_norm": "off", "grad_cache": 0},
}
"""Settings that came later, each with the value at which a run is what it was before: such cells keep their names."""
PARTS = ("test", "validation")
PLACES = ("data.root", "saib.init_from")
"""Settings that say where something lies, which a record does not."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured of a run, and on which images."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """The evaluation's own settings."""
    data: str = ""
    """Labeled images; empty: those of the training."""
    part: str = ""
    """`test` or `validation`; empty: what the training kept."""
    seeds: int = 1
    """Repetitions of the evaluation, of which the mean counts."""

    @property
    def label(self) -> str:
        """As in `knn k=5` or `linear on cifar10 (validation)`."""
        words = [self.name, *(f"{key}={value}" for key, value in self.options.items())]
        words += [f"on {Path(self.data).name}"] * bool(self.data) + [f"({self.part})"] * bool(self.part)
        return " ".join(words)


class Datasets:
    """What is known of images for the time of a call: a folder is listed once, however many cells use it."""

    def __init__(self) -> None:
        self.resolved = cache(resolve_data)
        self.content = cache(content_of)
        self.weights = cache(weights_of)


def content_of(name: str) -> str:
    """Images by what they are and not by where they lie: a name, a count, and a hash of names and sizes of files.

    The name of a folder is a part of it, since uncompressed images of two versions of a dataset may agree in the rest.
    """
    path = folder_of(name)
    if is_shards(str(path or name)):
        shards = open_shards(((str(path or name),), False))
        images = sum(part.count for part in shards.parts.values())
        return f"{Path(name).name}-{images}-{shards.content}"
    if path is None:
        return name
    count, digest = 0, blake2b(digest_size=6)
    if not is_files(str(path)):
        for part in open_packed(path).parts.values():
            count += part.count
            for table in ("names", "sums"):
                digest.update(part.tables[table].tobytes())
    else:
        for split, places in parts_of((str(path),)).items():
            listing = list_places(places)
            count += len(listing)
            digest.update(split.encode())
            for i in range(len(listing)):
                size = os.stat(listing.path(i)).st_size  # noqa: PTH116 - bytes
                digest.update(b"%d %b\0" % (size, listing.relative(i)))
    return f"{path.name}-{count}-{digest.hexdigest()}"


def weights_of(name: str) -> str:
    """A run's weights, or a file of some, by what they are and not by where they lie."""
    path = RunDirectory(name).weights if Path(name).is_dir() else Path(name)
    digest = blake2b(digest_size=6)
    with open_plain(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return f"weights-{digest.hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run and its evaluations, as somebody asks for them."""

    data: str
    """A folder, a packed file, or a named dataset."""
    seed: int = 0
    recipe: str = ""
    """As for `iecl pretrain`; empty: the method's default."""
    init_from: str = ""
    """A run or a file of weights that the run starts from; empty: it starts from nothing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By section, as in `{"method": {"name": "simclr", "temperature": 0.2}}`."""
    evaluations: tuple[Measurement, ...] = (Measurement(name="knn"),)

    def config(self, datasets: Datasets) -> RunConfig:
        """The run with every choice made that needs no torch.

        Raises:
            UserError: a setting or an evaluation is wrong, or an evaluation would use images that were trained on.
        """
        for section, key, owner in (("data", "name", "data"), ("training", "seed", "seed")):
            if key in self.settings.get(section, {}):
                raise UserError(f"{section}.{key} is no setting of a cell", where="settings", do=f"use its {owner}")
        flags = merge({"training": {"loggers": [], "outcome": False}}, self.settings)
        flags = merge(flags, {"data": {"name": self.data}, "training": {"seed": self.seed}})
        method, is_from_weights = flags.get("method", {}).get("name", ""), bool(self.init_from)
        config = make_config(method=method, recipe=self.recipe, flags=flags, is_from_weights=is_from_weights)
        config = with_data(config, datasets.resolved(config.data))
        for one in self.evaluations:
            resolve(one.name, EVALUATIONS, "evaluation", "evaluations")
            if one.part not in ("", *PARTS):
                raise UserError(f"there is no part {one.part!r}", where=one.label, do=did_you_mean(one.part, PARTS))
            same = self.measured_on(one, datasets) == self.images(datasets)
            if one.part == "validation" and same and not config.data.validation:
                do = "set data.validation=true, which keeps them out of the training"
                raise UserError("the run would train on the images of the validation part", where=one.label, do=do)
        return config

    def content(self, datasets: Datasets) -> str:
        """What decides the run besides its settings: the images, and the weights that it starts from."""
        found, block = self.images(datasets), self.settings.get("saib", {}).get("init_from", "")
        found += f" from {datasets.weights(self.init_from)}" if self.init_from else ""
        return found + (f" behind {datasets.weights(block)}" if block else "")

    def images(self, datasets: Datasets) -> str:
        """The images by what they are, without those that are left out."""
        exclude = self.settings.get("data", {}).get("exclude", "")
        images = datasets.content(self.data)
        return f"{images} without {datasets.weights(exclude)}" if exclude else images

    def measured_on(self, one: Measurement, datasets: Datasets) -> str:
        """What one of the evaluations looks at."""
        return datasets.content(one.data) if one.data else self.images(datasets)

    def request(self, config: RunConfig, datasets: Datasets) -> str:
        """A name for what was asked for, by which results are found again without torch."""
        asked = [[one.label, one.seeds, self.measured_on(one, datasets)] for one in self.evaluations]
        return short_hash([training_name(config.plain_values(), self.content(datasets)), asked])

    def differences(self, config: RunConfig) -> dict[str, Any]:
        """Settings that were given and that are not those of the recipe anyway."""
        method = {key: value for key, value in self.settings.get("method", {}).items() if key in NAMES}
        flags = {"data": {"name": self.data}, "method": method}
        base = make_config(method=method.get("name", ""), recipe=self.recipe, flags=flags)
        plain, given = base.plain_values(), self.settings.items()
        other = {f"{s}.{k}": v for s, table in given for k, v in table.items() if plain[s].get(k) != v}
        return {name: value for name, value in other.items() if name not in PLACES}


def short_hash(content: Any) -> str:
    """Sixteen hexadecimal digits of plain values, whatever the order of their keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def training_name(values: Mapping[str, Mapping[str, Any]], content: str) -> str:
    """The name of a run with these settings on these images; what cannot change its result has no part in it.

    >>> training_name({"data": {"num_workers": 0}}, "digits") == training_name({"data": {"num_workers": 8}}, "digits")
    True
    """
    values, training = merge(values, _idle(values)), values.get("training", {})
    if training.get("devices") == training.get("nodes") == 1:  # alone it changes nothing
        values = merge(values, {"training": {"sync_batch_norm": "off"}})
    kept = {
        section: {
            key: value
            for key, value in table.items()
            if key not in FREE.get(section, ()) and (key, value) not in NEUTRAL.get(section, {}).items()
        }
        for section, table in values.items()
    }
    return short_hash([kept, content])


def _idle(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings of what is turned off, with their defaults: without a block it is one run, whatever they say."""
    found: dict[str, dict[str, Any]] = {}
    for section, cls in SECTIONS.items():
        for one in fields(cls):
            needed, _, key = one.metadata.get("needs", "").partition(".")
            if one.name in values.get(section, {}) and values.get(needed, {}).get(key) == "none":
                found.setdefault(section, {})[one.name] = one.default
    return found


@dataclass(frozen=True)
class Names:
    """What the results of a cell are called."""

    training: str
    evaluations: tuple[str, ...]
    """In the order in which they were asked for."""


def full_config(config: RunConfig) -> RunConfig:
    """The configuration as it runs here: the method's own defaults, accelerator and precision. Imports torch."""
    from iecl.training.machine import on_this_machine

    full = replace(config, method=config.values()["method"], training=on_this_machine(config.training))
    return with_norms(full)


def names_of(cell: Cell, config: RunConfig, datasets: Datasets) -> Names:
    """The names of a cell whose configuration is full; every default counts as if it had been given."""
    content, measured = cell.images(datasets), []
    for one in cell.evaluations:
        kind = EVALUATIONS[one.name].load()
        settings = as_values(build(kind.Settings, one.options, one.name, "evaluations"))
        part = one.part or ("validation" if config.data.validation else "test")
        images = datasets.content(one.data) if one.data else content
        measured.append(short_hash([one.name, settings, one.seeds, images, part]))
    return Names(training_name(config.values(), cell.content(datasets)), tuple(measured))
