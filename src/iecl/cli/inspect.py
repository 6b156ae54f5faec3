"""`iecl inspect MODEL --data ...`."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_exclude, add_source, source
from iecl.console import plain_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, images, and where the report goes."""
    parser.add_argument("model", help="run directory, or a file of weights")
    parser.add_argument("--data", help="folder of images, packed file or dataset; default: that of the run")
    add_exclude(parser)
    parser.add_argument("--images", type=int, default=256, help="how many images to measure; default: 256")
    add_source(parser)
    parser.add_argument("--out", help="folder for the report; default: RUN/inspection")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Say what was found, stage by stage."""
    from iecl import api

    asked = {name: getattr(args, name) for name in ("exclude", "images", "out", "quiet")}
    result = api.inspect(args.model, args.data, **asked, **source(args, args.model))
    say(args, f"weights: {result['weights']}", "")
    say(args, *plain_table(HEAD, [_row(stage) for stage in result["layers"]]).split("\n"), "")
    say(args, *result["findings"], f"verdict of the run: {result['verdict']}", f"written: {', '.join(result['files'])}")
    return result


HEAD = ("stage", "numbers", "entropy", "of views", "behind the block", "distance of views")


def _row(stage: dict[str, Any]) -> list[str]:
    block = stage["block_entropy"]
    return [
        stage["name"],
        f"{stage['units']:,}",
        f"{stage['entropy']:.2f}",
        f"{stage['view_entropy']:.2f}",
        "" if block is None else f"{block:.2f}",
        f"{stage['view_distance']:.2f}",
    ]
