"""A run as data: defaults, recipe, flags and --set laid over each other, checked, and every automatic choice made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from iecl.backbones.catalog import check_backbone
from iecl.data.datasets import DATASETS
from iecl.data.settings import DataSettings
from iecl.errors import UserError
from iecl.launch import outside_launch
from iecl.methods import DEFAULT_HOST, METHODS, WRAPPER, check_name, load_method
from iecl.names import suggested_place, suggestion
from iecl.objective.settings import ObjectiveSettings
from iecl.recipes import read_recipe
from iecl.runs.directory import RunDirectory
from iecl.saib.settings import PRINTED, SAIBSettings
from iecl.settings import Values, as_values, build, merge, parse_assignment, to_toml
from iecl.training.settings import BackboneSettings, OptimizerSettings, TrainingSettings
from iecl.views.policies import AugmentationSettings, ViewSpec, resolve_views

SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "augmentation": AugmentationSettings,
    "backbone": BackboneSettings,
    "saib": SAIBSettings,
    "objective": ObjectiveSettings,
    "optimizer": OptimizerSettings,
    "training": TrainingSettings,
}
NAMES = ("name", "host")
"""Keys of `[method]` that say whose settings its other keys are."""
LR_FROM_WEIGHTS, WARMUP_FROM_WEIGHTS = 0.3, 1.0
"""A run from weights has this share of its method's learning rate, and at most so many epochs of warm-up: measured in
`benchmarks/studies/from-weights-*.toml`."""

UNSAID: dict[str, dict[str, Any]] = {"training": {"sync_batch_norm": "off"}}
"""What is true of a run from before there was such a setting, where its default is something else."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run. `method` stays a table until its method is imported: it has the method's own keys."""

    method: Mapping[str, Any]
    data: DataSettings = field(default_factory=DataSettings)
    augmentation: AugmentationSettings = field(default_factory=AugmentationSettings)
    backbone: BackboneSettings = field(default_factory=BackboneSettings)
    saib: SAIBSettings = field(default_factory=SAIBSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    @property
    def method_name(self) -> str:
        """The name of the method, as on the command line."""
        return str(self.method["name"])

    @property
    def host_name(self) -> str:
        """The method whose settings `method` holds: the host of ie-cl, or the method itself."""
        return str(self.method.get("host", self.method_name))

    @property
    def title(self) -> str:
        """The method for people and file names: ie-cl with its host, where that is not the usual one."""
        is_usual = self.host_name in (self.method_name, DEFAULT_HOST)
        name, host = (text.rpartition(":")[2] for text in (self.method_name, self.host_name))  # of yours: the class
        return name if is_usual else f"{name}-{host}"

    def method_settings(self) -> Any:
        """The settings of the method, or of its host, as their own type; imports the method."""
        cls = load_method(self.host_name).Settings
        return build(cls, {key: value for key, value in self.method.items() if key not in NAMES}, "method")

    def _names(self) -> dict[str, str]:
        return {key: str(self.method[key]) for key in NAMES if key in self.method}

    def to_toml(self, header: str) -> str:
        """All settings as commented TOML, with the method's defaults filled in."""
        sections = {"method": self.method_settings()} | {name: getattr(self, name) for name in SECTIONS}
        return to_toml(sections, header, names={"method": self._names()})

    def recipe(self) -> str:
        """The settings as a recipe that may be given away: it says what the data were called, not where they were."""
        name = self.data.name if self.data.name in DATASETS else Path(self.data.name).name
        shared = replace(self, data=replace(self.data, name=name, more=(), root=""))
        return shared.to_toml(
            "The recipe of these weights. Use it again: iecl pretrain --recipe THIS_FILE --data FOLDER"
        )

    def values(self) -> dict[str, Any]:
        """All settings as plain values."""
        return self.plain_values() | {"method": self._names() | as_values(self.method_settings())}

    def plain_values(self) -> dict[str, Any]:
        """The same without importing the method: of its settings those that were given."""
        return {"method": dict(self.method)} | {name: as_values(getattr(self, name)) for name in SECTIONS}


def recorded_values(run: RunDirectory) -> Values:
    """The settings that a run wrote down, with what it had no word for."""
    return merge(UNSAID, run.read_settings())


def read_config(run: RunDirectory) -> RunConfig:
    """The configuration that a run wrote down, in which every choice is made.

    Raises:
        UserError: its settings.toml cannot be read, or somebody took a choice out of it.
    """
    where = str(run.settings)
    config = config_from_values(recorded_values(run), where)
    data, saib = config.data, config.saib
    is_said = {
        "data.image_size": data.image_size > 0,
        "data.decode_size": data.decode_size > 0,
        "data.mean": bool(data.mean),
        "data.std": bool(data.std),
        "data.num_workers": data.num_workers >= 0,
        "augmentation.policy": config.augmentation.policy != "auto",
        "backbone.name": config.backbone.name != "auto",
        "saib.probability": saib.form == "none" or saib.probability > 0,
        "saib.patch_size": saib.form == "none" or saib.patch_size > 0,
    }
    if not all(is_said.values()):
        missing = ", ".join(name for name, said in is_said.items() if not said)
        do = "restore it, or use it as a recipe: --recipe"
        raise UserError(f"settings.toml is not the record of a run: it does not say {missing}", where=where, do=do)
    return config


def make_config(
    *,
    method: str = "",
    recipe: str = "",
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
    is_from_weights: bool = False,
) -> RunConfig:
    """Lay defaults, recipe, flags and `--set` over each other, in this order, and check the result.

    Without a recipe the method's own `default` is taken, for weights that were trained already with smaller steps;
    without a method, the recipe's, or `ie-cl`. Names that are not known are refused here, before torch is imported.
    """
    values, given = layers(method=method, recipe=recipe, flags=flags, sets=sets, is_from_weights=is_from_weights)
    values = merge(_without_other_block(values, given), given)
    if not values.get("data", {}).get("name"):
        raise UserError("which images?", where="--data", do="name a folder of images, or one of: iecl list datasets")
    if values.get("saib", {}).get("form") in PRINTED:  # the printed block is trained by the printed term
        values = merge({"objective": {"entropy": "coding-rate"}}, values)
    config = config_from_values(values)
    _check_names(config)
    return config


def layers(
    *,
    method: str = "",
    recipe: str = "",
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
    is_from_weights: bool = False,
) -> tuple[Values, Values]:
    """What the recipe says, the method's name included, and what is laid over it."""
    given: Values = flags or {}
    for text in sets:
        given = _sections(merge(given, parse_assignment(text)), "--set")
    if recipe:
        values = _sections(read_recipe(recipe, method or WRAPPER), recipe)
        named = values.get("method", {}).get("name", WRAPPER)
        if method and method != named:
            raise UserError(f"recipe {recipe} is for {named}, not for {method}", where="--method")
        method = named
    method = method or WRAPPER
    check_name(method, "method", "--method")
    if not recipe:
        values = _default_recipe(method, given.get("method", {}).get("host", ""))
        values = _for_weights(values) if is_from_weights else values
    return merge({"method": {"name": method}}, values), given


def _without_other_block(values: Values, given: Values) -> Values:
    """What the recipe says, without its block if another form is asked for: frozen there says nothing of this one."""
    form = given.get("saib", {}).get("form")
    is_other = form is not None and form != values.get("saib", {}).get("form")
    return {name: table for name, table in values.items() if not (is_other and name == "saib")}


def _check_names(config: RunConfig) -> None:
    """Refuse a backbone, a policy or a setting of the method that does not exist."""
    resolve_views(config.augmentation, config.data.image_size, config.data.channels)
    if config.backbone.name != "auto":
        check_backbone(config.backbone.name)
    known = METHODS[config.host_name].setting_names() if config.host_name in METHODS else set()
    for key in config.method:
        if known and key not in NAMES and key not in known:
            raise UserError(f"[method] has no setting {key!r}", do=suggestion(key, known, "method"))


def _default_recipe(method: str, host: str) -> dict[str, Any]:
    """The default of a method; of ie-cl around another host: that of the host, with the block and terms of ie-cl."""
    if method != WRAPPER or host in ("", DEFAULT_HOST):
        return read_recipe("default", method) if method in METHODS else {}
    if host == WRAPPER:
        raise UserError(f"no host is called {host!r}", where="method.host", do="name another method")
    check_name(host, "host", "method.host")
    own, under = read_recipe("default", WRAPPER), read_recipe("default", host) if host in METHODS else {}
    return merge(under, {"method": {"name": method}, "saib": own["saib"], "objective": own["objective"]})


def _for_weights(values: Values) -> dict[str, Any]:
    """The same recipe for a backbone that need not be found from nothing."""
    usual = build(OptimizerSettings, values.get("optimizer", {}), "optimizer")
    smaller = {"lr": usual.lr * LR_FROM_WEIGHTS, "warmup_epochs": min(usual.warmup_epochs, WARMUP_FROM_WEIGHTS)}
    return merge(values, {"optimizer": smaller})


def config_from_values(values: Mapping[str, Any], origin: str = "") -> RunConfig:
    """A configuration from plain tables, as in settings.toml; `origin` is the file that they are from, if any."""
    _sections(values, origin or "settings")
    built: dict[str, Any] = {name: build(cls, values.get(name, {}), name, origin) for name, cls in SECTIONS.items()}
    built["training"].check()
    if "name" not in values.get("method", {}):
        raise UserError("which method? there is no method.name", where=origin, do="see: iecl list methods")
    for key in NAMES:
        check_name(values["method"].get(key, WRAPPER), key.replace("name", "method"), origin or f"method.{key}")
    is_plain = built["saib"].is_absent and built["objective"].is_plain
    return RunConfig(method=_with_host(values["method"], is_plain), **built)


def _with_host(method: Values, is_plain: bool) -> dict[str, Any]:
    """The table of a method: one with a block or terms of [objective] is ie-cl around it."""
    name, rest = method["name"], {key: value for key, value in method.items() if key not in NAMES}
    if name == WRAPPER:
        return {"name": name, "host": method.get("host", DEFAULT_HOST), **rest}
    if "host" in method:
        raise UserError(f"{name} has no host", where="method.host", do=f"use --method {WRAPPER}")
    return {"name": name, **rest} if is_plain else {"name": WRAPPER, "host": name, **rest}


def _sections(values: Values, where: str) -> Values:
    """The same tables, if they are the sections of a run's settings."""
    known = {"method", *SECTIONS}
    for section, table in values.items():
        if section not in known:
            do = _place_of(section) or suggested_place(section, table) or suggestion(section, known)
            raise UserError(f"there is no section {section!r}", where=where, do=do)
        if not isinstance(table, Mapping):
            raise UserError(f"{section} is a section", where=where, do=f"write {section}.key=value")
    return values


def _place_of(key: str) -> str:
    """The section of a setting that was given without one."""
    found = [f"{section}.{key}" for section, cls in SECTIONS.items() if key in {field.name for field in fields(cls)}]
    return f"did you mean {found[0]}?" if found else ""


def without_effect(config: RunConfig, given: Mapping[str, Any]) -> list[str]:
    """Settings that somebody gave and that change nothing, as `objective.kl_weight: objective.kl is none`."""
    found = []
    for section, cls in SECTIONS.items():
        for declared in fields(cls):
            needs = declared.metadata["needs"]
            owner, _, key = needs.partition(".")
            if needs and declared.name in given.get(section, {}) and getattr(getattr(config, owner), key) == "none":
                found.append(f"{section}.{declared.name}: {needs} is none")
    return found


@dataclass(frozen=True)
class Change:
    """A setting that has two values."""

    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.name} was {self.before}, now {self.after}"


def difference(old: RunConfig, new: RunConfig) -> list[Change]:
    """Every setting that differs."""
    before, after = old.values(), new.values()
    return [
        Change(f"{section}.{key}", value, after[section].get(key))
        for section, table in before.items()
        for key, value in table.items()
        if value != after[section].get(key)
    ]


def with_data(config: RunConfig, data: DataSettings) -> RunConfig:
    """The configuration with its data resolved, and with what follows from the image size: views, backbone, block."""
    augmentation = resolve_views(config.augmentation, data.image_size, data.channels)
    small = "-small" if data.image_size <= 64 else ""
    name = f"resnet18{small}" if config.backbone.name == "auto" else config.backbone.name
    crops_only = all(policy.color_jitter_prob == 0 for policy in augmentation.policies(ViewSpec()))
    saib = config.saib.for_views(are_crops_only=crops_only).for_size(data.image_size)
    return replace(
        config, data=data, augmentation=augmentation, backbone=replace(config.backbone, name=name), saib=saib
    )


def with_norms(config: RunConfig) -> RunConfig:
    """The configuration with `training.sync_batch_norm` on or off; imports the method.

    On is the same run for any number of processes; a norm in groups is that already, and means to see no more.
    """
    asked, training = config.training.sync_batch_norm, config.training
    has_groups = load_method(config.host_name).has_group_norms(config.method_settings())
    if has_groups and asked == "on":
        raise UserError(
            "batch norm cannot see groups of the batch apart and all of it at once",
            where="training.sync_batch_norm, method.norm_groups",
            do="set the one to off, or the other to 0",
        )
    chosen = ("off" if has_groups else "on") if asked == "auto" else asked
    return replace(config, training=replace(training, sync_batch_norm=chosen))


def with_launch(config: RunConfig, *, is_asked: bool = True) -> RunConfig:
    """The configuration with as many processes as torchrun or SLURM has started, if one of them did.

    Args:
        config: says how many processes are to be there.
        is_asked: somebody asks for so many now; otherwise it is how many there were before.

    Raises:
        UserError: another number of processes was asked for.
    """
    launch, training = outside_launch(), config.training
    if launch is None:
        return config
    asked = (training.devices, training.nodes)
    if is_asked and asked not in ((0, 1), (1, 1), (0, launch.nodes), (launch.devices, launch.nodes)):
        raise UserError(
            f"{launch.launcher} has started {launch.devices} processes on each of {launch.nodes} machines, "
            f"the settings ask for {training.devices} on {training.nodes}",
            where="--devices, --nodes",
            do="leave --devices and --nodes out, or give the same numbers",
        )
    return replace(config, training=replace(training, devices=launch.devices, nodes=launch.nodes))
