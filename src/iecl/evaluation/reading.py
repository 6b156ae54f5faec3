"""From a model and a name of data to features: which pictures, in which size, on which device."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from iecl.console import ProgressLine
from iecl.data.listing import splits
from iecl.data.opening import open_source
from iecl.data.resolve import folder_of, resolve_data
from iecl.data.settings import DataSettings
from iecl.data.source import Source
from iecl.errors import UserError
from iecl.evaluation.features import Features, extract, extract_crops
from iecl.evaluation.model import LoadedModel
from iecl.runs.directory import RunDirectory
from iecl.settings import read_toml
from iecl.training.plan import plan_from_values
from iecl.views.policies import SMALL, plain_share


def data_for(model: LoadedModel, target: Path | str, data: str | None, *, keep_decoded: bool) -> DataSettings:
    """Which pictures to read: those named, or those of the run, for views of the model's size.

    Args:
        model: decides the size.
        target: the run directory or file that the model came from.
        data: a folder or the name of a data set; None: the data of the run.
        keep_decoded: keep decoded pictures in memory, which pays when they are read more than once.
    """
    is_run = Path(target).is_dir()
    trained_on = plan_from_values(read_toml(RunDirectory(target).settings)).data if is_run else DataSettings()
    if data is not None:
        # The same folder of named sets, the same limits; everything that depends on the pictures is chosen anew.
        chosen = replace(trained_on, name=data, labels="auto", canvas=0, mean=(), std=())
    elif is_run:
        # A run may have ignored the class folders; to measure it they are needed.
        chosen = replace(trained_on, labels="auto") if trained_on.labels == "none" else trained_on
    else:
        raise UserError(f"{target} does not say on which images to measure", where="--data", do="name a folder")
    resident = chosen.resident_megabytes if keep_decoded else 0
    return resolve_data(replace(chosen, image_size=model.image_size, resident_megabytes=resident))


def has_own_test(data: DataSettings) -> bool:
    """Whether the data come with test pictures; otherwise a fixed part of a folder takes their place."""
    folder = folder_of(data.name)
    return folder is None or "test" in splits(folder)


def best_device() -> torch.device:
    """A GPU if there is one."""
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return torch.device(next((kind for kind, is_there in kinds.items() if is_there), "cpu"))


@dataclass
class Reader:
    """Opens splits of the data and turns them into features of the model."""

    model: LoadedModel
    data: DataSettings
    line: ProgressLine
    device: torch.device = field(default_factory=best_device)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reason by path of each file that was left out."""

    def __post_init__(self) -> None:
        self.model.backbone.to(self.device)

    def open(self, split: str) -> Source:
        """The pictures of a split."""
        return open_source(self.data, split, self._skip, self.line.count(f"reading {split} images"))

    def features(self, source: Source, what: str) -> Features:
        """One row for each readable picture."""
        model = self.model
        return extract(
            model.backbone,
            source,
            image_size=model.image_size,
            mean=model.mean,
            std=model.std,
            share=plain_share(model.image_size),
            device=self.device,
            batch=self._batch,
            workers=self.data.workers,
            progress=self.line.count(f"features of {what} images"),
            on_bad=self._skip,
        )

    def crops(self, source: Source, seed: int, epoch: int) -> Features:
        """One row for a random crop of each readable picture."""
        model = self.model
        return extract_crops(
            model.backbone,
            source,
            image_size=model.image_size,
            mean=model.mean,
            std=model.std,
            seed=seed,
            epoch=epoch,
            device=self.device,
            batch=self._batch,
            workers=self.data.workers,
        )

    @property
    def _batch(self) -> int:
        return 256 if self.model.image_size <= SMALL else 64  # activations of 64 large pictures fit in any memory

    def _skip(self, path: str, reason: str) -> None:
        self.skipped[path] = reason
