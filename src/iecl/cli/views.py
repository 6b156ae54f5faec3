"""`iecl views RUN --step N --index I --out FILE.png`."""

import argparse
from typing import Any

from iecl.cli.command import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run, a moment, an image."""
    parser.add_argument("run", help="run directory")
    parser.add_argument("--step", type=int, required=True, help="optimizer step, from 1 on")
    parser.add_argument("--index", type=int, help="which image of the data: its views in the epoch of that step")
    parser.add_argument("--row", type=int, help="which of the step's own images")
    parser.add_argument("--out", required=True, help="image to write, ending in .png")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Draw the views again and write them beside the plain image."""
    from iecl import api

    result = api.views(args.run, args.step, args.out, index=args.index, row=args.row)
    say(
        args,
        f"{result['image']}: image {result['index']:,} of the data, row {result['row']} of step {result['step']:,} "
        f"(epoch {result['epoch'] + 1})",
        f"plain, then its {len(result['draws'])} views, before any input block: {result['path']}",
    )
    return result
