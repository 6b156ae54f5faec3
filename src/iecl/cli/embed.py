"""`iecl embed MODEL --data ... --out FILE`."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_data, add_source, source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, images, a file."""
    parser.add_argument("model", help="run directory, file of weights, or random")
    add_data(parser, "default: the run's own")
    parser.add_argument("--out", required=True, help="file to write, .npz, .parquet or .csv")
    parser.add_argument(
        "--device", default="", help="where to compute, as cpu or cuda:1; default: a GPU if there is one"
    )
    add_source(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the features and say how many."""
    from iecl import api

    asked = {name: getattr(args, name) for name in ("exclude", "overwrite", "quiet", "device")}
    made = api.embed(args.model, args.data, args.out, **asked, **source(args, args.model))
    result = {name: value for name, value in made.items() if not hasattr(value, "dtype")}  # the file has the arrays
    say(
        args,
        f"{result['rows']:,} vectors of length {result['width']} in {result['path']}"
        + (f"; {result['skipped']:,} files could not be read" if result["skipped"] else ""),
        f"weights: {result['weights']}",
    )
    return result
