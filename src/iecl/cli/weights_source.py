"""The flags that say which weights are read: the same in every command."""

import argparse
from typing import Any

from iecl.runs.directory import refuse_missing

RANDOM = "random"
"""As in `iecl.evaluation.model`, which would import torch."""
NAMES = ("checkpoint", "backbone", "image_size", "layout", "allow")


def add_data(parser: argparse.ArgumentParser, otherwise: str = "") -> None:
    """Which images; the flag may be given several times."""
    words = "folder of images, .csv or .txt list of paths, 'pattern*', packed file, or a name from: iecl list datasets"
    more = "; several are joined" + (f"; {otherwise}" if otherwise else "")
    parser.add_argument("--data", action="append", default=[], help=words + more)
    add_exclude(parser)


def add_exclude(parser: argparse.ArgumentParser) -> None:
    """Which of the images are left out."""
    parser.add_argument("--exclude", default="", help="list of images to leave out, as iecl doctor writes it")


def add_source(parser: argparse.ArgumentParser) -> None:
    """Which weights of a run, or what a file from elsewhere holds and how large its images are."""
    choices = ("final", "last", "best")
    parser.add_argument("--checkpoint", default="final", choices=choices, help="which weights of a run")
    parser.add_argument("--backbone", default="", help="backbone of a file from elsewhere, or of random")
    parser.add_argument("--image-size", type=int, default=0, help="side of a view for such a backbone")
    add_exceptions(parser)


def add_exceptions(parser: argparse.ArgumentParser) -> None:
    """What may be unclear or missing in a file from elsewhere."""
    parser.add_argument("--layout", default="", help="how such a file names its tensors, where that is not clear")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PATTERN",
        help="tensors that such a file may lack or have too many of, as 'layer4.*'; anything else is refused",
    )


def source(args: argparse.Namespace, *models: str) -> dict[str, Any]:
    """What was said, as `iecl.evaluation.model.load_model` takes it. Models that are not there are refused at once."""
    for model in models:
        if model != RANDOM:
            refuse_missing(model)
    return {name: getattr(args, name) for name in NAMES}
