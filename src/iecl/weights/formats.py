"""Which files a backbone can be written to: a table, beside that of the layouts by which each is read back."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from iecl.errors import UserError, did_you_mean
from iecl.weights.layouts import COUNTS, LAYOUTS, renamed

_RESNETS = r"(torchvision/)?(wide_resnet|resnext|resnet)\w*(-\w+)?"


@dataclass(frozen=True)
class ExportFormat:
    """One kind of file that can be written."""

    suffixes: tuple[str, ...]
    summary: str
    layout: str = "plain"
    """The row of `LAYOUTS` that names its tensors; empty: it holds a graph and no table."""
    backbones: str = ".*"
    """Pattern of the backbones that can be written so."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Further entries of the file, next to the table of tensors."""
    keeps_counts: bool = True
    """Whether batch norm's counters of batches are written."""


EXPORT_FORMATS: dict[str, ExportFormat] = {
    "safetensors": ExportFormat(
        (".safetensors",), "plain names, with everything that is needed to use and to verify them"
    ),
    "torchvision": ExportFormat((".pth", ".pt"), "a state_dict under torchvision's names", backbones=r"(?!timm/).*"),
    "timm": ExportFormat((".pth", ".pt"), "a state_dict under timm's names", backbones=rf"timm/.*|{_RESNETS}"),
    "detectron2": ExportFormat(
        (".pth",),
        "a ResNet for MODEL.WEIGHTS of Detectron2",
        layout="detectron2",
        backbones=r"(torchvision/)?resnet(18|34|50|101|152)",  # its stem is the one for large images
        extra=(("__author__", "iecl"), ("matching_heuristics", True)),
        keeps_counts=False,
    ),
    "onnx": ExportFormat((".onnx",), "a graph from images to features, with any number of images", layout=""),
}


def choose_format(out: Path, asked: str, backbone: str) -> str:
    """The format that was asked for, or the one that a file's name and its backbone suggest.

    >>> choose_format(Path("a.pth"), "", "resnet18"), choose_format(Path("a.onnx"), "", "resnet18")
    ('torchvision', 'onnx')

    Raises:
        UserError: there is no such format, or the file or the backbone does not go with it.
    """
    check_name(out, asked)
    fitting = [name for name, row in EXPORT_FORMATS.items() if re.fullmatch(row.backbones, backbone)]
    name = asked or next(name for name in fitting if out.suffix in EXPORT_FORMATS[name].suffixes)
    if name not in fitting:
        others = ", ".join(fitting)
        raise UserError(f"{backbone} cannot be written for {name}", where="--format", do=f"one of: {others}")
    return name


def check_name(out: Path, asked: str) -> None:
    """Refuse a format that does not exist, and a file whose name does not go with it."""
    if asked and asked not in EXPORT_FORMATS:
        raise UserError(f"no format is called {asked!r}", where="--format", do=did_you_mean(asked, EXPORT_FORMATS))
    endings = dict.fromkeys(
        end for name in ([asked] if asked else EXPORT_FORMATS) for end in EXPORT_FORMATS[name].suffixes
    )
    if out.suffix not in endings:
        do = f"name it {out.stem}{next(iter(endings))}"
        raise UserError(f"{out} does not end in {' or '.join(endings)}", where="--out", do=do)


def content_of(format: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a file of this format holds, from a backbone's tensors under their plain names."""
    row = EXPORT_FORMATS[format]
    layout = LAYOUTS[row.layout]
    renames = [(ours, theirs) for theirs, ours in layout.renames]
    kept = {name: tensor for name, tensor in state.items() if row.keeps_counts or not name.endswith(COUNTS)}
    table = {layout.prefix + (renamed(name, renames) if renames else name): tensor for name, tensor in kept.items()}
    return {layout.table: table, **dict(row.extra)} if layout.table else table
