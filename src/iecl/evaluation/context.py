"""What every evaluation stands on: a model, images to measure it with, a device, and a place for work in progress."""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from iecl.console import ProgressLine
from iecl.data.defaults import folder_of, has_test, resolve_data
from iecl.data.factory import open_source
from iecl.data.loader import in_order
from iecl.data.settings import DataSettings
from iecl.data.source import Source
from iecl.errors import UserError
from iecl.evaluation.compute import FULL, best_device, device_of
from iecl.evaluation.features import Features, extract, extract_crops, no_labels
from iecl.evaluation.sharing import extract_together
from iecl.runs.directory import RunDirectory
from iecl.training.config import read_config
from iecl.views.pipeline import make_plain
from iecl.views.policies import SMALL, plain_share
from iecl.weights.external import PIXELS, RANDOM
from iecl.weights.model import LoadedModel

UNTRAINED, STATISTICS_BATCH = {RANDOM: 8, PIXELS: None}, 256
"""How many batches an untrained backbone's batch norms see before it is measured; None: all."""


@dataclass
class EvaluationContext:
    """Opens data when they are asked for, and keeps features once they are made: two evaluations may share it."""

    model: LoadedModel
    target: Path | str
    """The run directory or file that the model came from."""
    given: str | tuple[str, ...] | None
    """The data as the user named them; None: those of the run."""
    line: ProgressLine
    keep_decoded: bool = False
    """Keep decoded images in memory, which pays when they are read more than once."""
    work: Path | None = None
    """A folder in which a long evaluation may keep what it needs to go on after a break; None: it starts over."""
    part: str = ""
    """Other images to measure on than the run kept for it: `test`, or the `validation` tenth of the training images."""
    exclude: str = ""
    """A list of images to leave out; empty: of the run's own data what the run left out."""
    device: torch.device = field(default_factory=best_device)
    precision: str = FULL
    """Arithmetic of a frozen backbone; what an evaluation trains is trained in 32 bits."""
    devices: int = 1
    """Processes that make features."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Reason by path of each file that was left out."""
    beside_of: "EvaluationContext | None" = None
    """The context whose images these are; a result is then kept with the other model's, and nowhere else."""

    def __post_init__(self) -> None:
        self.model.backbone.to(self.device)

    @cached_property
    def data(self) -> DataSettings:
        """Which images to read: those named, or those of the run, for views of the model's size."""
        if self.beside_of is not None:
            data, size = self.beside_of.data, self.model.image_size
            return data if size == data.image_size else resolve_data(replace(data, image_size=size, decode_size=0))
        is_run = Path(self.target).is_dir()
        trained_on = read_config(RunDirectory(self.target)).data if is_run else DataSettings()
        if self.given is not None:
            # The same folder of named sets, the same limits; everything that depends on the images is chosen again.
            name, *more = (self.given,) if isinstance(self.given, str) else self.given
            named = replace(trained_on, name=name, more=tuple(more), labels="auto", exclude=self.exclude)
            chosen = replace(named, decode_size=0, mean=(), std=())
        elif is_run:
            # A run may have ignored the class folders; to measure it they are needed.
            chosen = replace(trained_on, labels="auto") if trained_on.labels == "none" else trained_on
        else:
            where = f"{self.target} does not say on which images to measure"
            raise UserError(where, where="--data", do="name a folder")
        if self.given is None and self.exclude:
            chosen = replace(chosen, exclude=self.exclude)
        if self.part:
            chosen = replace(chosen, validation=self.part == "validation")
        megabytes = chosen.cache_megabytes if self.keep_decoded else 0
        size, channels = self.model.image_size, self.model.info.channels
        return resolve_data(replace(chosen, image_size=size, channels=channels, cache_megabytes=megabytes))

    def beside(self, model: LoadedModel, target: Path | str) -> "EvaluationContext":
        """The same images for another model."""
        return replace(self, model=model, target=target, beside_of=self, work=None, skipped={})

    @property
    def data_name(self) -> str:
        """The data as a record names them: a folder by its whole path."""
        left_out = f" without {Path(self.exclude).name}" if self.exclude else ""
        left_out += f" with {self.data.plant} planted" if self.data.plant else ""
        if self.given is None:
            return " + ".join(self.data.names) + left_out
        names = (self.given,) if isinstance(self.given, str) else self.given
        return " + ".join(str(folder_of(name) or name) for name in names) + left_out

    @property
    def test_split(self) -> str:
        """Which images are measured on."""
        if self.data.validation:
            return "a fixed tenth of the training images"
        return "its own" if has_test(self.data) else "a fixed fifth of the folder"

    def place(self, name: str, *what: Any) -> Path | None:
        """Where a long evaluation keeps its checkpoints: other settings, weights or images have another place."""
        if self.work is None:
            return None
        model = self.model
        text = json.dumps([*what, model.proof, model.image_size, *model.mean, *model.std, self.data.decode_size])
        return self.work / f"{name}-{blake2b(text.encode(), digest_size=8).hexdigest()}"

    def open(self, split: str) -> Source:
        """The images of a split."""
        return open_source(self.data, split, self._skip, self.line.count(f"reading {split} images"))

    @cached_property
    def train_images(self) -> Source:
        """Labeled training images."""
        return self._labeled("train-part")

    @cached_property
    def test_images(self) -> Source:
        """Labeled test images."""
        return self._labeled("test")

    def _labeled(self, split: str) -> Source:
        """The images of a split; without labels it is refused now and not after the features were made."""
        source = self.open(split)
        if not (source.labels >= 0).any():
            raise no_labels(split.removesuffix("-part"))
        return source

    @cached_property
    def train(self) -> Features:
        """One row for each labeled training image, seen once and plain."""
        both = self.train_images, self.test_images  # a fault of either ends the work before it starts
        if self.model.method in UNTRAINED:
            self._estimate_statistics()
        return self.features(both[0], "train").labeled("train")

    @torch.no_grad()
    def _estimate_statistics(self) -> None:
        """Without this the running statistics of an untrained batch norm are those of no data at all.

        The mean of all pixels is that of all training images.
        """
        model = self.model
        model.backbone.train()
        batches = in_order(self.train_images, STATISTICS_BATCH, self.data.num_workers, self._skip)
        for images in islice(batches, UNTRAINED[model.method]):
            seen = images.to(self.device)
            share = plain_share(model.image_size)
            model.backbone(make_plain(seen.images, images.sizes, model.image_size, model.mean, model.std, share))
        batches.close()
        model.backbone.eval()

    @cached_property
    def test(self) -> Features:
        """One row for each labeled test image, seen once and plain."""
        assert self.train is not None  # first: an untrained backbone gets its statistics there
        return self.features(self.test_images, "test").labeled("test")

    def features(self, source: Source, what: str, backbone: nn.Module | None = None) -> Features:
        """One row for each readable image; `backbone` stands in for the model's own."""
        network = self.model.backbone if backbone is None else backbone
        how = self._pass | {"share": plain_share(self.model.image_size), "on_bad": self._skip}
        how["progress"] = self.line.count(f"features of {what} images")
        if self.devices == 1:
            return extract(network, source, **how)
        how["devices"] = [device_of(self.device, rank) for rank in range(self.devices)]
        del how["device"]
        return extract_together(network, source, **how)

    def crops(self, seed: int, epoch: int) -> Features:
        """One row for a random crop of each readable training image."""
        return extract_crops(self.model.backbone, self.train_images, **self._pass, seed=seed, epoch=epoch)

    @property
    def _pass(self) -> dict[str, Any]:
        """How images go through the backbone."""
        look: dict[str, Any] = {"image_size": self.model.image_size, "mean": self.model.mean, "std": self.model.std}
        look |= {"device": self.device, "precision": self.precision}
        return look | {"batch": self.batch, "workers": self.data.num_workers}

    @property
    def batch(self) -> int:
        """Images in a forward pass without gradient."""
        return 256 if self.model.image_size <= SMALL else 64  # activations of 64 large images fit in any memory

    @property
    def counts(self) -> dict[str, int]:
        """How many images and classes a classification rests on."""
        return {"n_train": len(self.train), "n_test": len(self.test), "classes": len(self.train_images.classes)}

    @property
    def protocol(self) -> dict[str, Any]:
        """Everything besides an evaluation's settings that moves a number of frozen features by points."""
        model = self.model
        short = {} if self.precision == FULL else {"precision": self.precision}
        return {
            "backbone": model.name,
            "checkpoint": model.checkpoint,
            "features": "output of the backbone, as it is",
            "batch_norm": "running statistics",
            "image_size": model.image_size,
            "crop_share": plain_share(model.image_size),
            "interpolation": "bilinear, antialiased",
            "mean": list(model.mean),
            "std": list(model.std),
            "test_split": self.test_split,
            **short,
        }

    @property
    def seen(self) -> str:
        """What the backbone sees of an image, as in `whole 32px` or `center 0.875 224px`."""
        share = plain_share(self.model.image_size)
        return f"{'whole' if share == 1 else f'center {share:g}'} {self.model.image_size}px"

    def _skip(self, path: str, reason: str) -> None:
        self.skipped[path] = reason
