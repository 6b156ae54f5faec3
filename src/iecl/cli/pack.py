"""`iecl pack FOLDER --out FILE`."""

import argparse
import shlex
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_exclude


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A folder, a file, and how large the images are kept."""
    parser.add_argument("data", help="folder of images")
    parser.add_argument("--out", required=True, help="file to write")
    parser.add_argument("--side", type=int, default=0, help="side of a kept image in pixels; default: as for pretrain")
    add_exclude(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the data, as data.labels=none"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the file, say what is in it and what to do with it."""
    from iecl import api

    made = api.pack(
        args.data,
        args.out,
        side=args.side,
        exclude=args.exclude,
        sets=args.set,
        overwrite=args.overwrite,
        quiet=args.quiet,
    )
    parts = ", ".join(f"{count:,} {name}" for name, count in made["parts"].items() if name != "all")
    say(
        args,
        f"{made['images']:,} images of {made['side']} px{f' ({parts})' if parts else ''} in {made['path']}, "
        f"{made['megabytes']:,.0f} MB" + (f"; {made['skipped']:,} files could not be read" if made["skipped"] else ""),
        f"next: iecl pretrain --data {shlex.quote(made['path'])}",
    )
    return made
