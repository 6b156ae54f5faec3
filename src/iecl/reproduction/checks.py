"""What would stop an exhibit is told before anything is trained: missing images, missing labels, a full disk."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from iecl.data.datasets import DATASETS
from iecl.errors import UserError
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.card import ON_VOC
from iecl.settings import build
from iecl.studies.cell import Cell, Datasets, Measurement
from iecl.training.config import RunConfig

MADE = ("shapes", "digits")
"""Datasets that need no folder."""


def check_images(cells: Iterable[Cell]) -> list[RunConfig]:
    """The configurations of cells whose images and labels are there.

    Raises:
        UserError: a setting is wrong, or images or labels are missing.
    """
    from iecl.reproduction.forecast import images_of

    datasets, configs = Datasets(), []
    checked, sizes = set[tuple[str, str]](), dict[tuple[str, str], int]()
    for cell in cells:
        config = cell.config(datasets)
        configs.append(config)
        asks = any(one.name not in ON_VOC for one in cell.evaluations) or config.host_name == "supervised"
        if asks and config.data.labels == "none":
            do = "put each class into a folder of its own, or name other images"
            raise UserError(f"{cell.data} has no labels to measure with", where="--data", do=do)
        for one in cell.evaluations:
            if one.name in ON_VOC and (one.label, one.data) not in checked:
                _check_voc(one)
            checked.add((one.label, one.data))
        key = (cell.data, str(config.data.validation))
        if cell.data in DATASETS and cell.data not in MADE and key not in checked:
            _check_named(cell.data, config)
        if key not in checked:
            sizes[key] = images_of(config)
        checked.add(key)
        if sizes[key] < (batch := config.training.batch_size):
            what = f"{cell.data} has {sizes[key]:,} images to train on, fewer than the {batch:,} of a step"
            raise UserError(what, where="--data", do="name more, or a smaller scale")
    return configs


def _check_voc(one: Measurement) -> None:
    from iecl.data.voc import check_lists

    kind = EVALUATIONS[one.name].load()
    settings = build(kind.Settings, one.options, one.name, "evaluations")
    for lists in (settings.train, settings.test):
        check_lists(one.data, lists, masks=one.name == "segmentation")


def _check_named(name: str, config: RunConfig) -> None:
    from iecl.data.factory import list_source
    from iecl.data.skipped_files import Skipping

    try:
        list_source(config.data, "pretrain", Skipping())
    except UserError as problem:
        is_beside = Path(name).is_dir()
        do = f"write --data {name}/ for the folder of that name here, or add --data {name}=FOLDER" if is_beside else ""
        do = do or f"add --data {name}=FOLDER, the folder that holds it"
        raise UserError(f"{name} is not here: {problem.what}", where="--data", do=do) from problem


def check_room(configs: Sequence[RunConfig], folder: Path, *, workers: int, keep: str) -> int:
    """Megabytes that the cells will take at most.

    Raises:
        UserError: the disk has less.
    """
    from iecl.reproduction.forecast import room_of

    need, place = room_of(configs, workers=workers, keep=keep), folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free // 2**20
    if need > free:
        do = "name another --out, or add --keep none"
        raise UserError(f"it will take about {need:,} MB, {free:,} MB are free", where=str(place), do=do)
    return need
