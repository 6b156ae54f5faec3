"""A study: arms that differ in settings, each with the same seeds on the same data, read from TOML."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iecl.errors import UserError, did_you_mean
from iecl.files import LARGEST
from iecl.names import suggestion
from iecl.settings import build, merge, read_toml, setting
from iecl.studies.cell import Cell, Measurement

WORDS = ("recipe", "init_from")
"""What an arm may name besides settings: a recipe, and weights to start from."""


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """The keys of `[study]`, besides `base` and `evaluations`."""

    name: str = setting("", "what the study is called; empty: as its file")
    question: str = setting("", "what it asks")
    data: tuple[str, ...] = setting((), "folders, packed files or named datasets")
    seeds: tuple[int, ...] = setting((0,), "of the runs of every arm", low=0, high=LARGEST)
    reference: str = setting("", "the arm that others are held against; empty: the first")
    interval: str = setting("t", "Student's t over seeds, or a bootstrap over them", choices=("t", "bootstrap"))

    def __post_init__(self) -> None:
        if not self.data or not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise ValueError("a study needs data, and seeds that differ")
        if Path(self.name).name != self.name.strip() or self.name == "..":  # a folder is called so
            raise ValueError(f"{self.name!r} is no name of a study, since it is none of a folder")


@dataclass(frozen=True)
class Place:
    """Where a cell stands in a study."""

    arm: str
    data: str
    seed: int


@dataclass(frozen=True)
class Study:
    """A question, and the cells that answer it."""

    settings: StudySettings
    arms: Mapping[str, Mapping[str, Any]]
    """Settings of each arm by section, the common ones included; beside the sections a `recipe` and `init_from`."""
    evaluations: tuple[Measurement, ...]

    def cells(self) -> dict[Place, Cell]:
        """All cells; all arms of one seed come before the next seed, so that a part of a study is paired too."""
        made = {}
        for seed in self.settings.seeds:
            for data in self.settings.data:
                for arm, settings in self.arms.items():
                    own = {section: table for section, table in settings.items() if section not in WORDS}
                    words = {word: settings.get(word, "") for word in WORDS}
                    common = {"evaluations": self.evaluations, **words}
                    made[Place(arm, data, seed)] = Cell(data=data, seed=seed, settings=own, **common)
        return made


def read_study(source: Path | str | Mapping[str, Any]) -> Study:
    """A study from a TOML file, or from tables as in one.

    Raises:
        UserError: a key is unknown or of another kind, or something that is needed is missing.
    """
    where, tables = ("study", source) if isinstance(source, Mapping) else (str(source), read_toml(Path(source)))
    for key in tables:
        if key not in ("study", "arms"):
            raise UserError(f"there is no table [{key}]", where=where, do=did_you_mean(key, ("study", "arms")))
    head, arms = tables.get("study", {}), tables.get("arms", {})
    if not isinstance(head, Mapping) or not isinstance(arms, Mapping) or not arms:
        raise UserError("a study has a table [study] and a table [arms.NAME] for each arm", where=where)
    own = {key: value for key, value in head.items() if key not in ("base", "evaluations")}
    if own.get("name") == "":
        del own["name"]
    if isinstance(own.get("data"), str):
        own["data"] = [own["data"]]
    named = {"name": "study" if isinstance(source, Mapping) else Path(source).stem, "reference": next(iter(arms))}
    settings = build(StudySettings, named | own, "study", where)
    if settings.reference not in arms:
        do = did_you_mean(settings.reference, arms)
        raise UserError(f"there is no arm {settings.reference!r}", where=f"{where}, study.reference", do=do)
    base = _settings(head.get("base", {}), f"{where}, [study.base]")
    asked = head.get("evaluations", ["knn"])
    if not isinstance(asked, list) or not asked:
        raise UserError("evaluations are a list", where=f"{where}, [study]", do='write evaluations = ["knn"]')
    return Study(
        settings,
        {arm: merge(base, _settings(table, f"{where}, [arms.{arm}]")) for arm, table in arms.items()},
        tuple(_measurement(one, where) for one in asked),
    )


def _settings(table: Any, where: str) -> dict[str, Any]:
    """Settings by section from keys such as `training.epochs`, quoted or not; `recipe` and `init_from` are some too.

    >>> _settings({"training.epochs": 3, "method.name": "simclr", "recipe": "cifar"}, "")
    {'training': {'epochs': 3}, 'method': {'name': 'simclr'}, 'recipe': 'cifar'}
    """
    if not isinstance(table, Mapping):
        raise UserError(f"{table!r} is no table of settings", where=where, do='write "section.key" = value')
    made: dict[str, Any] = {}
    for key, value in table.items():
        if "." not in key and not isinstance(value, str if key in WORDS else Mapping):
            raise UserError(f"{key} is no setting", where=where, do=suggestion(key, WORDS))
        for part in reversed(key.split(".")):
            value = {part: value}
        made = merge(made, value)
    return made


def _measurement(one: Any, where: str) -> Measurement:
    """An evaluation by its name, or as a table with its name and options."""
    table = {"name": one} if isinstance(one, str) else one
    kinds = {"name": str, "data": str, "part": str, "seeds": int}
    if not isinstance(table, Mapping) or not all(type(table.get(key, kind())) is kind for key, kind in kinds.items()):
        do = 'write "knn", or { name = "knn", k = 5 }'
        raise UserError(f"{one!r} is no evaluation", where=f"{where}, evaluations", do=do)
    own = {key: table[key] for key in kinds if key in table}
    return Measurement(**({"name": ""} | own), options={key: table[key] for key in table if key not in own})
