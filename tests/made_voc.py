"""Tiny folders in the layout of PASCAL VOC: colored rectangles with their boxes and masks."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from iecl.backbones.factory import make_backbone
from iecl.console import ProgressLine
from iecl.data.voc import CLASSES
from iecl.evaluation.context import EvaluationContext
from iecl.weights.info import BackboneInfo
from iecl.weights.model import LoadedModel

Object = tuple[str, tuple[float, float, float, float]]
"""Class, and box as VOC has it: 1-based, inclusive."""
COLORS = {"aeroplane": (220, 40, 40), "bicycle": (40, 200, 40), "bird": (40, 40, 220)}


class MadeVoc:
    """A VOCdevkit with one year."""

    def __init__(self, parent: Path, year: str = "VOC2012") -> None:
        self.devkit = parent / "VOCdevkit"
        self.root = self.devkit / year
        for name in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
            (self.root / name).mkdir(parents=True)

    def image(self, name: str) -> Path:
        return self.root / "JPEGImages" / f"{name}.png"

    def annotation(self, name: str) -> Path:
        return self.root / "Annotations" / f"{name}.xml"

    def mask(self, name: str) -> Path:
        return self.root / "SegmentationClass" / f"{name}.png"

    def lists(self, name: str, names: Sequence[str]) -> None:
        """Write a list for boxes and one for masks."""
        for kind in ("Main", "Segmentation"):
            (self.root / "ImageSets" / kind / f"{name}.txt").write_text("".join(f"{one}\n" for one in names))

    def add(
        self,
        name: str,
        objects: Sequence[Object],
        size: tuple[int, int] = (64, 48),
        difficult: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        """An image of this (width, height) with rectangles on noise, and all that is known of it."""
        width, height = size
        pixels = np.random.default_rng(seed).integers(90, 140, (height, width, 3), dtype=np.uint8)
        numbers = np.zeros((height, width), np.uint8)
        rows = []
        for number, (kind, (left, top, right, bottom)) in enumerate(objects):
            inside = (slice(max(0, int(top) - 1), int(bottom)), slice(max(0, int(left) - 1), int(right)))
            pixels[inside] = COLORS.get(kind, (250, 250, 250))
            numbers[inside] = CLASSES.index(kind) + 1 if kind in CLASSES else 0
            rows.append(
                f"<object><name>{kind}</name><difficult>{int(number in difficult)}</difficult>"
                f"<bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            )
        numbers[0] = 255  # an outline that belongs to no class
        Image.fromarray(pixels).save(self.image(name))
        size_row = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        self.annotation(name).write_text(f"<annotation>{size_row}{''.join(rows)}</annotation>")
        mask = Image.fromarray(numbers, mode="P")
        mask.putpalette([value for i in range(256) for value in (i, 255 - i, 7)])
        mask.save(self.mask(name))


def made_voc(parent: Path, count: int = 4, size: tuple[int, int] = (64, 48)) -> MadeVoc:
    """Images p0, p1, ... with one or two objects of three classes; all are in `train`, the first two in `val`."""
    voc = MadeVoc(parent)
    for number in range(count):
        first, second = list(COLORS)[number % 3], list(COLORS)[(number + 1) % 3]
        left, top = 3 + 5 * (number % 3), 4 + 4 * (number % 2)
        objects: list[Object] = [(first, (left, top, left + 19, top + 23))]
        if number % 2:
            objects.append((second, (40, 10, 61, 41)))
        voc.add(f"p{number}", objects, size=size, seed=number)
    names = [f"p{number}" for number in range(count)]
    voc.lists("train", names)
    voc.lists("val", names[:2])
    return voc


def loaded(backbone: str, seed: int = 0) -> LoadedModel:
    """A backbone as if it had been pretrained: other weights than any that is made by its name alone."""
    made = make_backbone(backbone, seed=seed + 100)
    info = BackboneInfo(backbone=backbone, image_size=16, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    return LoadedModel(made.eval(), info, "final", "")


def context(
    backbone: str, given: Path | str | None, work: Path | None = None, line: ProgressLine | None = None
) -> EvaluationContext:
    """A bench with a small backbone, on the CPU."""
    data = None if given is None else str(given)
    quiet = line or ProgressLine(quiet=True)
    return EvaluationContext(loaded(backbone), "made", data, quiet, work=work, device=torch.device("cpu"))


class Breaking(ProgressLine):
    """Does something when a text is shown: a power cut, or a signal."""

    def __init__(self, at: str, what: Callable[[], None]) -> None:
        super().__init__(quiet=True)
        self.at, self.what = at, what

    def show(self, text: str, share: float | None = None) -> None:
        if self.at in text:
            self.what()
