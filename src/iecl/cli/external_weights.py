"""The flags that say what a file of weights from elsewhere is: the same wherever weights are read."""

import argparse
from typing import Any

NAMES = ("backbone", "layout", "allow")


def add_foreign(parser: argparse.ArgumentParser, *, image_size: bool = False) -> None:
    """Backbone, layout and exceptions, and the side of a view where images are looked at."""
    parser.add_argument("--backbone", default="", help="what a file from elsewhere, or random, is")
    if image_size:
        parser.add_argument("--image-size", type=int, default=0, help="side of a view for such a backbone")
    add_exceptions(parser)


def add_exceptions(parser: argparse.ArgumentParser) -> None:
    """What may be unclear or amiss in such a file."""
    parser.add_argument("--layout", default="", help="how such a file names its tensors, where that is not clear")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PATTERN",
        help="tensors that such a file may lack or have too many of, as 'layer4.*'; anything else is refused",
    )


def foreign(args: argparse.Namespace) -> dict[str, Any]:
    """What was said, as Python's functions take it."""
    found = {name: getattr(args, name) for name in NAMES}
    return found | ({"image_size": args.image_size} if hasattr(args, "image_size") else {})
